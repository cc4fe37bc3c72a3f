"""The RegionScores table: its rows, who may overwrite them, and how launching reads them.

Beside the scores stand, for each region, what the next sweep needs to know of the last ones
(MEMORY#region) and the sweeps of the past (SWEEPS#region).

Launching imports this module: it works on a plain botocore client, and must import neither boto3
nor Powertools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from fleetcast.score_history import (
    RECORD_ATTRIBUTE,
    encode_record,
    history_partition,
    history_sort_key,
)
from fleetcast.selection import RegionScore
from lambdas.attribute_values import decode_item, encode_item
from lambdas.transactions import cancellation_reasons, transact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import TransactWriteItemTypeDef

    from fleetcast.score_history import SweepRecord
    from fleetcast.scoring import Reading, TelemetryStatus

ANY_TYPE = "*"  # the score that needs no instance type
ITEMS_A_TRANSACTION = 100


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


@dataclass(frozen=True, kw_only=True)
class RegionSweep:
    """All that one sweep writes of one region.

    memory: for the next sweep's read_memory. memory_expires_at_s, record_expires_at_s: when
    DynamoDB may delete them, whole epoch seconds.
    """

    rows: Sequence[ScoreRow]
    memory: bytes
    memory_expires_at_s: int
    record: SweepRecord
    record_expires_at_s: int


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

    def read_memory(self, region: str) -> bytes | None:
        """Return what the last sweep left for the next one; None if there was no sweep.

        Consistent: a sweep sees what the one before it wrote. Raises botocore's errors.
        """
        answer = self._client.get_item(
            TableName=self._name, Key=encode_item(_memory_key(region)), ConsistentRead=True
        )
        memory: bytes | None = decode_item(answer.get("Item", {})).get("memory")
        return memory

    def write(self, sweep: RegionSweep) -> bool:
        """Write a region's sweep unless a newer one stands there; tell whether it was written.

        In transactions of ITEMS_A_TRANSACTION items, memory and record in the first. Raises
        botocore's errors, and ValueError for a number that isn't finite.
        """
        writes = [_put(self._name, item, sweep.record) for item in _to_items(sweep)]
        try:
            for first in range(0, len(writes), ITEMS_A_TRANSACTION):
                transact(self._client, writes[first : first + ITEMS_A_TRANSACTION])
        except self._client.exceptions.TransactionCanceledException as error:
            reasons = {reason.get("Code") for reason in cancellation_reasons(error)}
            if "ConditionalCheckFailed" not in reasons:
                raise
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


def _memory_key(region: str) -> dict[str, str]:
    return {"pk": f"MEMORY#{region}", "sk": "SIGNALS"}


def _put(table: str, item: Mapping[str, object], record: SweepRecord) -> TransactWriteItemTypeDef:
    mark: dict[str, object] = {"computed_at": record.computed_at_s, "sweep_id": record.sweep_id}
    return {
        "Put": {
            "TableName": table,
            "Item": encode_item({**item, **mark}),
            # The sweep's own item may stand there: the client repeats a write whose answer it lost.
            "ConditionExpression": (
                "attribute_not_exists(pk) OR computed_at < :computed_at OR sweep_id = :sweep_id"
            ),
            "ExpressionAttributeValues": encode_item(
                {f":{name}": value for name, value in mark.items()}
            ),
        }
    }


def _to_items(sweep: RegionSweep) -> Iterator[dict[str, object]]:
    record = sweep.record
    yield _memory_key(record.region) | {
        "memory": sweep.memory,
        "expires_at": sweep.memory_expires_at_s,
    }
    yield {
        "pk": history_partition(record.region),
        "sk": history_sort_key(record.computed_at_s),
        RECORD_ATTRIBUTE: encode_record(record),
        "expires_at": sweep.record_expires_at_s,
    }
    yield from map(_to_item, sweep.rows)


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
