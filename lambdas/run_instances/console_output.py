"""GetConsoleOutput: what an instance has written to its console, as its node has it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from fleetcast import messages
from fleetcast.errors import DryRunOperation, InvalidMessage
from fleetcast.subjects import NodeAction, node_subject
from lambdas.bus import RegionError
from lambdas.run_instances.node_answers import NODE_TIMEOUT_S, node_silent
from lambdas.run_instances.visible_instances import named_instances

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lambdas.records import InstanceRecord
    from lambdas.run_instances.descriptions import Result
    from lambdas.run_instances.services import Call, Services

_log = logging.getLogger(__name__)


class _ConsoleParameters(msgspec.Struct, frozen=True, rename="pascal"):
    instance_id: str
    dry_run: bool = False


async def get_console_output(
    services: Services,
    call: Call,
    parameters: Mapping[str, object],
) -> Result:
    """Return the end of an instance's console output, base64, with or without Latest.

    Empty as long as there is none. Raises EC2Error, ServiceUnavailable for a silent node.
    """
    asked = msgspec.convert(parameters, _ConsoleParameters)
    (record,) = named_instances(services, call, [asked.instance_id])
    if asked.dry_run:
        raise DryRunOperation("Request would have succeeded, but DryRun flag is set.")
    reply = await _ask_console(services, record)
    written_at_s = reply.written_at_ms / 1000 if reply and reply.written_at_ms else services.now_s()
    return {
        "InstanceId": record.instance_id,
        "Timestamp": datetime.fromtimestamp(written_at_s, UTC),
        "Output": (reply and reply.output_base64) or "",
    }


async def _ask_console(services: Services, record: InstanceRecord) -> messages.ConsoleReply | None:
    """Ask the instance's node; None if it has none. Raises ServiceUnavailable."""
    if record.region is None or record.node is None:
        return None
    try:
        payload = await services.bus.ask(
            record.region,
            node_subject(record.region, record.node, NodeAction.GET_CONSOLE_OUTPUT),
            messages.encode(messages.InstancesRequest(instance_ids=(record.instance_id,))),
            timeout_s=NODE_TIMEOUT_S,
        )
        return messages.decode(payload, messages.ConsoleReply)
    except (RegionError, InvalidMessage) as problem:
        _log.warning(
            "node gave no answer",
            extra={
                "region": record.region,
                "node": record.node,
                "action": NodeAction.GET_CONSOLE_OUTPUT.value,
                "why": str(problem),
            },
        )
        raise node_silent([record]) from problem
