"""DescribeInstances and TerminateInstances: the table's records, and what nodes say of them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast import messages
from fleetcast.errors import DryRunOperation, InvalidMessage, MissingParameter
from fleetcast.subjects import NodeAction, node_subject
from lambdas.bus import RegionError
from lambdas.run_instances.descriptions import (
    Result,
    check_instance_ids,
    chosen_records,
    describe_result,
    termination_result,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fleetcast.messages import InstanceState
    from lambdas.records import InstanceRecord
    from lambdas.run_instances.services import Call, Services

_log = logging.getLogger(__name__)

_NODE_TIMEOUT_S: Final = 1.0
# What the node of an instance is asked while it is on its way to another state.
_ACTION_WHILE: Final[Mapping[InstanceState, NodeAction]] = {
    "pending": NodeAction.DESCRIBE,
    "shutting-down": NodeAction.TERMINATE,
}


class _NamedInstances(msgspec.Struct, frozen=True, rename="pascal"):
    instance_ids: tuple[str, ...] = ()


class _TerminateParameters(_NamedInstances, frozen=True, rename="pascal"):
    dry_run: bool = False


async def describe_instances(
    services: Services,
    call: Call,
    parameters: Mapping[str, object],
) -> Result:
    """List instances; those on their way to another state are asked after at their nodes.

    One that is to be terminated is told so again: its node may not have heard it.
    Raises EC2Error. A node that doesn't answer leaves its instances as they were last known.
    """
    if parameters.get("DryRun"):
        raise DryRunOperation("Request would have succeeded, but DryRun flag is set.")
    now_s = services.now_s()
    records = services.fleet.instances(call.account_id)
    describe_result(records, parameters, now_s=now_s)  # refuse bad parameters before asking nodes
    changed = await _ask_nodes(services, _named(records, parameters))
    current = [changed.get(record.instance_id, record) for record in records]
    return describe_result(current, parameters, now_s=now_s)


async def terminate_instances(
    services: Services,
    call: Call,
    parameters: Mapping[str, object],
) -> Result:
    """Terminate instances. Raises EC2Error, and then none was terminated.

    The wish is recorded first: an instance whose node can't be asked now is shutting down until
    it is known to be gone.
    """
    asked = msgspec.convert(parameters, _TerminateParameters)
    if not asked.instance_ids:
        raise MissingParameter("InstanceId")
    check_instance_ids(asked.instance_ids)
    now_s = services.now_s()
    found = services.fleet.instances_by_id(call.account_id, asked.instance_ids)
    before = chosen_records(found, asked.instance_ids, now_s=now_s)
    if asked.dry_run:
        raise DryRunOperation("Request would have succeeded, but DryRun flag is set.")
    wished = {record.instance_id: _wish_gone(services, record) for record in before}
    changed = await _ask_nodes(services, wished.values())
    after = wished | changed
    return termination_result((record, after[record.instance_id]) for record in before)


def _named(
    records: Sequence[InstanceRecord],
    parameters: Mapping[str, object],
) -> Sequence[InstanceRecord]:
    """Return the records that a request is about, so that it waits for no other nodes."""
    names = msgspec.convert(parameters, _NamedInstances).instance_ids
    return [one for one in records if one.instance_id in names] if names else records


def _wish_gone(services: Services, record: InstanceRecord) -> InstanceRecord:
    """Record that the instance is to go, whatever else happens to it at the same moment."""
    while record.state not in {"shutting-down", "terminated"}:
        wished = msgspec.structs.replace(
            record,
            state="shutting-down",
            state_reason_code="Client.UserInitiatedShutdown",
            state_reason_message="Client.UserInitiatedShutdown: User initiated shutdown",
        )
        if services.fleet.change_state(record, wished):
            return wished
        current = services.fleet.instances_by_id(record.account_id, [record.instance_id])
        if not current:  # its launch was refused after all
            return msgspec.structs.replace(
                wished, state="terminated", terminated_at_s=services.now_s()
            )
        record = current[0]
    return record


# --- asking nodes --------------------------------------------------------------------------


async def _ask_nodes(
    services: Services,
    records: Iterable[InstanceRecord],
) -> dict[str, InstanceRecord]:
    """Ask the nodes of those records that are on their way to another state, side by side.

    Return the records that have changed, by id.
    """
    by_question: dict[tuple[str, str, NodeAction], list[InstanceRecord]] = {}
    for record in records:
        action = _ACTION_WHILE.get(record.state)
        if record.region and record.node and action:
            by_question.setdefault((record.region, record.node, action), []).append(record)
    answers = await asyncio.gather(
        *(
            _ask_node(services, region, node, action, held)
            for (region, node, action), held in by_question.items()
        )
    )
    changed: dict[str, InstanceRecord] = {}
    for held, reports in zip(by_question.values(), answers, strict=True):
        if reports is not None:
            changed |= _apply(services, held, reports)
    return changed


async def _ask_node(
    services: Services,
    region: str,
    node: str,
    action: NodeAction,
    records: Iterable[InstanceRecord],
) -> dict[str, messages.InstanceReport] | None:
    """Return the node's reports by instance id, or None if it gave no answer."""
    request = messages.InstancesRequest(
        instance_ids=tuple(record.instance_id for record in records)
    )
    try:
        payload = await services.bus.ask(
            region,
            node_subject(region, node, action),
            messages.encode(request),
            timeout_s=_NODE_TIMEOUT_S,
        )
        reply = messages.decode(payload, messages.InstancesReply)
    except (RegionError, InvalidMessage) as problem:
        _log.warning(
            "node gave no answer",
            extra={"region": region, "node": node, "action": action.value, "why": str(problem)},
        )
        return None
    return {report.instance_id: report for report in reply.instances}


def _apply(
    services: Services,
    records: Iterable[InstanceRecord],
    reports: Mapping[str, messages.InstanceReport],
) -> dict[str, InstanceRecord]:
    """Record what a node says of its instances. One that it doesn't hold stays as it is."""
    now_s = services.now_s()
    changed: dict[str, InstanceRecord] = {}
    for record in records:
        report = reports.get(record.instance_id)
        if report is None or report.state == record.state:
            continue
        if record.state == "shutting-down" and report.state != "terminated":
            continue  # the node hasn't heard of it yet, or is at it
        after = msgspec.structs.replace(
            record,
            state=report.state,
            state_reason_code=report.state_reason_code,
            state_reason_message=_reason(report),
            terminated_at_s=now_s if report.state == "terminated" else None,
        )
        if services.fleet.change_state(record, after):
            changed[record.instance_id] = after
    return changed


def _reason(report: messages.InstanceReport) -> str | None:
    """Return the message as EC2 words it, with its code in front."""
    if report.state_reason_code is None:
        return None
    return f"{report.state_reason_code}: {report.state_reason_message}"
