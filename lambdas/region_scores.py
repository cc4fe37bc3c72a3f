"""The RegionScores table: its rows, who may overwrite one, and how launching reads them.

Launching imports this module: it works on a plain botocore client, and must import neither boto3
nor Powertools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import msgspec

from fleetcast.scoring import UNUSABLY_LARGE
from fleetcast.selection import RegionScore
from lambdas.attribute_values import decode_item, encode_item

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_dynamodb import DynamoDBClient

    from fleetcast.scoring import TelemetryStatus

ANY_TYPE = "*"  # the score that needs no instance type

# ok: read just now. stale: the last good value stands in. missing: an answer without it, or none
# in time. refused: AWS says no, and will again. not_offered: there is nothing to read.
# failed: anything else.
SignalStatus = Literal["ok", "stale", "missing", "refused", "not_offered", "failed"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was seen of one signal; value and observed_at_s are None when there is no value.

    observed_at_s: epoch seconds. error: why the status isn't ok.
    """

    value: float | None
    status: SignalStatus
    observed_at_s: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, value: float, *, observed_at_s: float) -> Self:
        """Record a value; one that is not a usable finite number is a failure instead."""
        if not abs(value) < UNUSABLY_LARGE:  # NaN is not
            return cls.absent("failed", f"{value!r} is not a finite number")
        return cls(value=value, status="ok", observed_at_s=observed_at_s)

    @classmethod
    def absent(cls, status: SignalStatus, error: str) -> Self:
        """Record why there is no value."""
        return cls(value=None, status=status, error=error)


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """One region's score for one instance type (or ANY_TYPE), and what it was made of.

    computed_at_s: when the sweep began, epoch seconds; it decides which of two sweeps is newer.
    expires_at_s: when DynamoDB may delete the row, whole epoch seconds.
    """

    instance_type: str
    region: str
    score: float
    missing_scored_signals: int
    telemetry_status: TelemetryStatus
    signals: Mapping[str, Reading]
    reasons: tuple[str, ...]
    computed_at_s: float
    sweep_id: str
    expires_at_s: int


class RegionScoresTable:
    """The table over a DynamoDB client, boto3's or botocore's. Safe to share between threads."""

    def __init__(self, client: DynamoDBClient, name: str) -> None:
        self._client = client
        self._name = name

    def read_scores(self, instance_type: str) -> dict[str, RegionScore]:
        """Read a type's score in each region, by region; those without a type if it has none.

        One Query, or two; empty when nothing has been scored. Eventually consistent: a score is
        minutes old anyway. Raises botocore's errors, and KeyError or msgspec.ValidationError for a
        row that no sweep could have written.
        """
        scores = self._query(instance_type)
        return scores or self._query(ANY_TYPE)

    def write(self, row: ScoreRow) -> bool:
        """Write a row unless a newer sweep's stands there; tell whether it was written.

        Raises botocore's errors, and ValueError for a number that isn't finite.
        """
        try:
            self._client.put_item(
                TableName=self._name,
                Item=encode_item(_to_item(row)),
                # The sweep's own row may stand there: the client repeats a write whose answer
                # it lost.
                ConditionExpression=(
                    "attribute_not_exists(pk) OR computed_at < :computed_at OR sweep_id = :sweep_id"
                ),
                ExpressionAttributeValues=encode_item(
                    {":computed_at": row.computed_at_s, ":sweep_id": row.sweep_id}
                ),
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    def _query(self, instance_type: str) -> dict[str, RegionScore]:
        # One page holds the rows of hundreds of regions.
        answer = self._client.query(
            TableName=self._name,
            KeyConditionExpression="pk = :pk",
            ProjectionExpression="sk, score, missing_scored_signals, telemetry_status, computed_at",
            ExpressionAttributeValues=encode_item({":pk": _partition_key(instance_type)}),
        )
        scores = (_to_region_score(decode_item(item)) for item in answer["Items"])
        return {score.region: score for score in scores}


def _partition_key(instance_type: str) -> str:
    return f"TYPE#{instance_type}"


def _to_item(row: ScoreRow) -> dict[str, object]:
    return {
        "pk": _partition_key(row.instance_type),
        "sk": f"REGION#{row.region}",
        "score": row.score,
        "missing_scored_signals": row.missing_scored_signals,
        "telemetry_status": row.telemetry_status,
        "signals": {
            name: {
                "value": reading.value,
                "status": reading.status,
                "observed_at": reading.observed_at_s,
                "error": reading.error,
            }
            for name, reading in row.signals.items()
        },
        "reasons": row.reasons,
        "computed_at": row.computed_at_s,
        "sweep_id": row.sweep_id,
        "expires_at": row.expires_at_s,
    }


def _to_region_score(item: Mapping[str, object]) -> RegionScore:
    return msgspec.convert(
        {
            "region": str(item["sk"]).removeprefix("REGION#"),
            "score": item["score"],
            "missing_scored_signals": item["missing_scored_signals"],
            "telemetry_status": item["telemetry_status"],
            "computed_at_s": item["computed_at"],
        },
        RegionScore,
    )
