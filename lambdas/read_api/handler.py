"""The read API's entry: an API Gateway event in, JSON out, whatever happens.

The one place where an error becomes JSON.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import botocore.session
import msgspec
from aws_lambda_powertools import Logger
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from fleetcast.errors import EC2Error, InternalError, InvalidAction, ServiceUnavailable
from fleetcast.instance_types import ec2_catalogue
from fleetcast.read_answers import (
    GPU_REQUIRED,
    GPUS,
    INSTANCE_TYPE,
    LAUNCH_PATH,
    RECOMMENDATION_PATH,
    RESERVATION_ID,
    SCORES_PATH,
    ErrorAnswer,
    ErrorBody,
    LaunchAnswer,
    RecommendationAnswer,
    ScoresAnswer,
)
from fleetcast.selection import recommend, report_regions
from lambdas.caller import account_id
from lambdas.fleet_table import FleetTable
from lambdas.read_api.launches import read_launch
from lambdas.read_api.parameters import Asked, read_parameters
from lambdas.read_api.score_rows import read_scored_regions
from lambdas.settings import ReadApiSettings, decode_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aws_lambda_powertools.utilities.typing import LambdaContext
    from mypy_boto3_dynamodb import DynamoDBClient

    from fleetcast.instance_types import Catalogue
    from fleetcast.selection import ScoredRegion

logger = Logger(service="read_api")

_AWS_CALLS: Final = Config(
    connect_timeout=1,
    read_timeout=3,
    retries={"mode": "standard", "total_max_attempts": 3},
)


@dataclass(frozen=True, kw_only=True)
class Services:
    """The process's side of a call. now_s: epoch seconds."""

    settings: ReadApiSettings
    instance_types: Catalogue
    dynamodb: DynamoDBClient
    fleet: FleetTable
    now_s: Callable[[], float]


def handle(event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answer one GET. Never raises for what a client sends."""
    request_id = context.aws_request_id
    try:
        return _respond(HTTPStatus.OK, _answer(event, at_cold_start()))
    except EC2Error as error:
        logger.info("refused", request=request_id, code=error.code, why=error.message)
        return _respond_with_error(error)
    except Exception:
        logger.exception("failed", request=request_id)
        return _respond_with_error(InternalError("An internal error has occurred."))


def _answer(event: Mapping[str, Any], services: Services) -> msgspec.Struct:
    path: str = event["resource"]  # "path" has a custom domain's base path in it
    if path not in _ROUTES:
        raise InvalidAction(f"There is nothing at {path}")
    try:
        return _ROUTES[path](services, event)
    except (BotoCoreError, ClientError) as error:
        logger.exception("a table can't be read")
        raise ServiceUnavailable("The answer can't be read now. Retry.") from error


def _scores(services: Services, event: Mapping[str, Any]) -> ScoresAnswer:
    settings = services.settings
    asked = _asked(services, event, allowed=(INSTANCE_TYPE,))
    scored_type, scores = _read(services, asked)
    now_s = services.now_s()
    return ScoresAnswer(
        instance_type=asked.instance_type,
        scored_type=scored_type,
        answered_at_s=now_s,
        weights=settings.weights,
        regions=tuple(
            report_regions(
                [region.name for region in settings.regions],
                scores,
                default_region=settings.default_region,
                now_s=now_s,
                max_score_age_s=settings.max_score_age_s,
            )
        ),
    )


def _recommendation(services: Services, event: Mapping[str, Any]) -> RecommendationAnswer:
    settings = services.settings
    asked = _asked(services, event, allowed=(INSTANCE_TYPE, GPUS, GPU_REQUIRED))
    scored_type, scores = _read(services, asked)
    now_s = services.now_s()
    recommendation = recommend(
        [region.name for region in settings.regions],
        scores,
        default_region=settings.default_region,
        now_s=now_s,
        max_score_age_s=settings.max_score_age_s,
        tie_band=settings.tie_band,
        gpus=asked.gpus,
        gpu_required=asked.gpu_required,
    )
    logger.info(
        "recommended",
        asked=msgspec.to_builtins(asked),
        outcome=recommendation.outcome,
        region=recommendation.region,
        reason=recommendation.reason,
    )
    return RecommendationAnswer(
        **msgspec.structs.asdict(recommendation),
        instance_type=asked.instance_type,
        scored_type=scored_type,
        answered_at_s=now_s,
    )


def _launch(services: Services, event: Mapping[str, Any]) -> LaunchAnswer:
    _asked(services, event, allowed=())
    return read_launch(
        services.fleet,
        account_id(event),
        event["pathParameters"][RESERVATION_ID],
        now_s=services.now_s(),
    )


_ROUTES: Final[Mapping[str, Callable[[Services, Mapping[str, Any]], msgspec.Struct]]] = {
    SCORES_PATH: _scores,
    RECOMMENDATION_PATH: _recommendation,
    LAUNCH_PATH: _launch,
}


def _asked(services: Services, event: Mapping[str, Any], *, allowed: Sequence[str]) -> Asked:
    return read_parameters(
        event.get("multiValueQueryStringParameters") or {},
        allowed=allowed,
        instance_types=services.instance_types,
    )


def _read(services: Services, asked: Asked) -> tuple[str | None, dict[str, ScoredRegion]]:
    return read_scored_regions(
        services.dynamodb, services.settings.region_scores_table, asked.instance_type
    )


def _respond(status: int, answer: msgspec.Struct) -> dict[str, Any]:
    return {
        "statusCode": int(status),
        "headers": {"Content-Type": "application/json"},
        "body": msgspec.json.encode(answer).decode(),
    }


def _respond_with_error(error: EC2Error) -> dict[str, Any]:
    body = ErrorAnswer(error=ErrorBody(code=error.code, message=error.message))
    return _respond(error.http_status, body)


@cache
def at_cold_start() -> Services:
    """Check the settings and make what all calls share, once a process."""
    settings = decode_settings(ReadApiSettings, os.environ)
    # botocore's own stubs know no services.
    dynamodb: Any = botocore.session.get_session().create_client("dynamodb", config=_AWS_CALLS)
    return Services(
        settings=settings,
        instance_types=ec2_catalogue().with_types(settings.instance_types),
        dynamodb=dynamodb,
        fleet=FleetTable(dynamodb, settings.fleet_table),
        now_s=time.time,
    )
