"""The EC2 API function's entry: an API Gateway event in, an EC2 answer out, whatever happens.

The one place where an error becomes XML. What launching doesn't need is not imported here: this
is the cold start that a launch waits for.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import secrets
import time
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import botocore.session
from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers
from botocore.config import Config

from fleetcast.errors import (
    EC2Error,
    InternalError,
    InvalidParameterValue,
    MalformedQueryString,
    ServiceUnavailable,
)
from fleetcast.instance_types import ec2_catalogue
from lambdas.bus import Bus
from lambdas.caller import account_id
from lambdas.fleet_table import FleetTable
from lambdas.nats_credentials import secret_reader
from lambdas.region_scores import RegionScoresTable
from lambdas.run_instances.console_output import get_console_output
from lambdas.run_instances.ec2_protocol import (
    decode_request,
    encode_error,
    encode_response,
)
from lambdas.run_instances.instance_actions import describe_instances, terminate_instances
from lambdas.run_instances.instance_types_action import describe_instance_types
from lambdas.run_instances.launching import run_instances
from lambdas.run_instances.power_actions import (
    reboot_instances,
    start_instances,
    stop_instances,
)
from lambdas.run_instances.refusals import RefusalMemory
from lambdas.run_instances.services import Call, Services
from lambdas.settings import RunInstancesSettings, decode_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from aws_lambda_powertools.utilities.typing import LambdaContext

    from lambdas.run_instances.descriptions import Result

_log = logging.getLogger(__name__)

ACTIONS: Final = {
    "RunInstances": run_instances,
    "DescribeInstances": describe_instances,
    "DescribeInstanceTypes": describe_instance_types,
    "GetConsoleOutput": get_console_output,
    "RebootInstances": reboot_instances,
    "StartInstances": start_instances,
    "StopInstances": stop_instances,
    "TerminateInstances": terminate_instances,
}
_AWS_CALLS: Final = Config(
    connect_timeout=1,
    read_timeout=3,
    retries={"mode": "standard", "total_max_attempts": 3},
)
# Sent by this function before API Gateway or Lambda cuts it off.
_ANSWERING_S: Final = 1.0

# One loop for the process: a NATS connection made under another never answers.
loop: Final = asyncio.new_event_loop()


def handle(event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answer one call of an EC2 client. Never raises for what a client sends."""
    request_id = context.aws_request_id
    try:
        request = decode_request(_body(event))
        action = ACTIONS[request.action]
        services = at_cold_start()
        call = Call(
            account_id=account_id(event),
            request_id=request_id,
            deadline_s=(
                time.monotonic() + context.get_remaining_time_in_millis() / 1000 - _ANSWERING_S
            ),
            region=_region(event, services.settings),
        )
        result = loop.run_until_complete(_in_time(action(services, call, request.parameters), call))
        return _answer(200, encode_response(request.action, result, request_id=request_id))
    except EC2Error as error:
        # What is wrong with a request may quote it, user data and tags included.
        why = error.message if error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR else None
        _log.info("refused", extra={"request": request_id, "code": error.code, "why": why})
        return _answer(error.http_status, encode_error(error, request_id=request_id))
    except Exception:  # noqa: BLE001 - the process boundary: the client gets EC2's answer for it
        _log.exception("failed", extra={"request": request_id})
        ours = InternalError("An internal error has occurred. Retry with the same ClientToken.")
        return _answer(ours.http_status, encode_error(ours, request_id=request_id))


async def _in_time(action: Awaitable[Result], call: Call) -> Result:
    """Return what an action returns. Raises ServiceUnavailable if that takes too long."""
    try:
        async with asyncio.timeout(call.deadline_s - time.monotonic()):
            return await action
    except TimeoutError as error:
        raise ServiceUnavailable(
            "The request could not be answered in time. The same request, with the same "
            "ClientToken, may be repeated."
        ) from error


def _body(event: Mapping[str, Any]) -> str:
    """Return the form of a POST, or of a GET's query string. Raises MalformedQueryString."""
    if event["httpMethod"] == "GET":
        return urlencode(event.get("multiValueQueryStringParameters") or {}, doseq=True)
    body: str = event.get("body") or ""
    if not event.get("isBase64Encoded"):
        return body
    try:
        return base64.b64decode(body, validate=True).decode()
    except ValueError as error:
        raise MalformedQueryString("The request is not a form of names and values") from error


def _region(event: Mapping[str, Any], settings: RunInstancesSettings) -> str | None:
    """Return the region whose endpoint was called. Raises InvalidParameterValue."""
    region: str | None = (event.get("pathParameters") or {}).get("region")
    if region is not None and region not in settings.region_names:
        names = ", ".join(settings.region_names)
        raise InvalidParameterValue(f"There is no region '{region}'; the regions are {names}.")
    return region


def _answer(status: int, document: str) -> dict[str, Any]:
    return {
        "statusCode": status,
        "headers": {"Content-Type": "text/xml;charset=UTF-8"},
        "body": document,
    }


@cache
def at_cold_start() -> Services:
    """Check the settings and make what all calls share, once a process."""
    settings = decode_settings(RunInstancesSettings, os.environ)
    session = botocore.session.get_session()
    # botocore's own stubs know no services.
    dynamodb: Any = session.create_client("dynamodb", config=_AWS_CALLS)
    bus = Bus(
        {region.name: region for region in settings.regions},
        secret_reader(lambda: session.create_client("secretsmanager", config=_AWS_CALLS)),
    )
    fleet = FleetTable(dynamodb, settings.fleet_table)
    return Services(
        settings=settings,
        instance_types=ec2_catalogue().with_types(settings.instance_types),
        fleet=fleet,
        scores=RegionScoresTable(dynamodb, settings.region_scores_table),
        bus=bus,
        known_nodes=lambda region: fleet.seen_nodes(region, now_s=time.time()),
        refusals=RefusalMemory(time.monotonic),
        now_s=time.time,
        clock_s=time.monotonic,
        sleep=asyncio.sleep,
        random_hex=lambda digits: secrets.token_hex(digits // 2 + 1)[:digits],
    )


def _log_as_json() -> None:
    logger = Logger(service="run_instances")
    logging.getLogger("lambdas")  # only loggers that exist by now are copied to
    copy_config_to_registered_loggers(source_logger=logger, include={"lambdas"})


_log_as_json()
if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
    at_cold_start()  # in the init phase, where it costs the caller least
