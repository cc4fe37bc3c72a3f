"""Asks the nodes of instances, side by side, and writes down what they say.

A node that gives no answer leaves its instances as they were last known: silence is no state.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from fleetcast import messages
from fleetcast.errors import InvalidMessage, ServiceUnavailable
from fleetcast.subjects import NodeAction, node_subject
from lambdas.bus import RegionError
from lambdas.records import NEXT_STATES, followed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fleetcast.messages import InstanceReport, InstanceState
    from lambdas.records import InstanceRecord
    from lambdas.run_instances.services import Services

_log = logging.getLogger(__name__)

NODE_TIMEOUT_S: Final = 1.0
# What the node of an instance is asked while it is on its way to another state. An end is final
# and is wished again at once: the node may not have heard it.
_ACTION_WHILE: Final[Mapping[InstanceState, NodeAction]] = {
    "pending": NodeAction.DESCRIBE,
    "stopping": NodeAction.DESCRIBE,
    "shutting-down": NodeAction.TERMINATE,
}


@dataclass(frozen=True, kw_only=True)
class NodeAnswers:
    """What nodes have said, by instance id.

    reports: of the instances that they hold. refused: why they have not done what was asked.
    silent: the instances whose nodes gave no answer.
    """

    reports: dict[str, InstanceReport] = field(default_factory=dict)
    refused: dict[str, Literal["full", "state"]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)


async def follow_up(
    services: Services, records: Sequence[InstanceRecord]
) -> tuple[list[InstanceRecord], set[str]]:
    """Ask after those instances that are on their way to another state.

    One that is to be stopped or terminated is told so again if its node may not have heard it.
    Return all records as they are now, and the ids of those that were asked after in vain.
    """
    questions = [
        (_ACTION_WHILE[record.state], record) for record in records if record.state in _ACTION_WHILE
    ]
    answers = await ask_nodes(services, questions)
    current = write_reports(services, records, answers)
    unheard = [
        record
        for record in current
        if record.state == "stopping"
        and (report := answers.reports.get(record.instance_id))
        and report.state == "running"
    ]
    again = {record.instance_id: record for record in await _stop_again(services, unheard)}
    return [again.get(record.instance_id, record) for record in current], answers.silent


async def _stop_again(
    services: Services, records: Sequence[InstanceRecord]
) -> list[InstanceRecord]:
    """Repeat a stop that a node has not heard. Return the records as they are now."""
    if not records:
        return []
    # Read again, as late as can be: one that has stopped and been started by now must not be
    # stopped for a wish that has come true.
    current = services.fleet.instances_by_id(
        records[0].account_id, [record.instance_id for record in records]
    )
    wished = [record for record in current if record.state == "stopping"]
    answers = await ask_nodes(services, [(NodeAction.STOP, record) for record in wished])
    return write_reports(services, current, answers)


async def ask_nodes(
    services: Services, questions: Iterable[tuple[NodeAction, InstanceRecord]]
) -> NodeAnswers:
    """Put each question to the node of its instance. Those that have no node are left out."""
    asked: dict[tuple[str, str, NodeAction], list[str]] = {}
    for action, record in questions:
        if record.region and record.node:
            asked.setdefault((record.region, record.node, action), []).append(record.instance_id)
    replies = await asyncio.gather(
        *(
            _ask_node(services, region, node, action, instance_ids)
            for (region, node, action), instance_ids in asked.items()
        )
    )
    answers = NodeAnswers()
    for instance_ids, reply in zip(asked.values(), replies, strict=True):
        if reply is None:
            answers.silent.update(instance_ids)
            continue
        answers.reports.update({report.instance_id: report for report in reply.instances})
        if reply.refused is not msgspec.UNSET:
            answers.refused.update(reply.refused)
    return answers


async def _ask_node(
    services: Services, region: str, node: str, action: NodeAction, instance_ids: Sequence[str]
) -> messages.InstancesReply | None:
    request = messages.InstancesRequest(instance_ids=tuple(instance_ids))
    try:
        payload = await services.bus.ask(
            region,
            node_subject(region, node, action),
            messages.encode(request),
            timeout_s=NODE_TIMEOUT_S,
        )
        return messages.decode(payload, messages.InstancesReply)
    except (RegionError, InvalidMessage) as problem:
        _log.warning(
            "node gave no answer",
            extra={"region": region, "node": node, "action": action.value, "why": str(problem)},
        )
        return None


def write_reports(
    services: Services, records: Iterable[InstanceRecord], answers: NodeAnswers
) -> list[InstanceRecord]:
    """Move records on to what their nodes say. Return all of them as they are now."""
    return [
        _written(services, record, answers.reports.get(record.instance_id)) for record in records
    ]


def _written(
    services: Services, record: InstanceRecord, report: InstanceReport | None
) -> InstanceRecord:
    if (
        report is None
        or report.attempt < record.attempt
        or report.state not in NEXT_STATES[record.state]
    ):
        return record
    after = followed(record, report, now_s=services.now_s())
    if services.fleet.change_state(record, after):
        return after
    # Somebody else was faster, and may know more than this answer did.
    current = services.fleet.instances_by_id(record.account_id, [record.instance_id])
    return current[0] if current else record


def node_silent(records: Iterable[InstanceRecord], *, also: str = "") -> ServiceUnavailable:
    """Return the error for instances whose nodes gave no answer. also: what else to say."""
    where = ", ".join(
        f"{record.node} in {record.availability_zone}, which has {record.instance_id}"
        for record in records
    )
    return ServiceUnavailable(
        f"No answer from node {where}.{also} The same request may be repeated."
    )
