"""StartInstances, StopInstances and RebootInstances.

Stop is a wish: it is recorded first, and repeated to the node until it has come true. Start and
reboot are asked of the node first: it alone knows whether there is room, and what runs. An
instance never leaves its node.

All instances are checked before anything is done to one. What is done to some when another one
fails stays done, and the error says so.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from fleetcast.errors import (
    DryRunOperation,
    IncorrectInstanceState,
    InsufficientInstanceCapacity,
    InternalError,
    UnknownParameter,
)
from fleetcast.subjects import NodeAction
from lambdas.run_instances.descriptions import Result, start_result, stop_result
from lambdas.run_instances.node_answers import (
    ask_nodes,
    follow_up,
    node_silent,
    write_reports,
)
from lambdas.run_instances.visible_instances import named_instances
from lambdas.run_instances.wishes import wish_shut_down

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fleetcast.messages import InstanceState
    from lambdas.records import InstanceRecord
    from lambdas.run_instances.node_answers import NodeAnswers
    from lambdas.run_instances.services import Call, Services

_Deed: TypeAlias = Literal["started", "stopped", "rebooted"]

# The states in which there is something to do, or nothing, but no error.
# Source: EC2 API reference; it ignores reboots of what is terminated.
_ALLOWED: Final[Mapping[_Deed, frozenset[InstanceState]]] = {
    "started": frozenset({"stopped", "pending", "running"}),
    "stopped": frozenset({"running", "stopping", "stopped"}),
    "rebooted": frozenset({"running", "shutting-down", "terminated"}),
}


class _PowerParameters(msgspec.Struct, frozen=True, rename="pascal"):
    instance_ids: tuple[str, ...] = ()
    hibernate: bool = False
    dry_run: bool = False


async def start_instances(
    services: Services,
    call: Call,
    parameters: Mapping[str, object],
) -> Result:
    """Start stopped instances, each on its node.

    Raises EC2Error: InsufficientInstanceCapacity when a node has no room, ServiceUnavailable when
    it gives no answer; the record then stays as it is, and reconcile corrects it.
    """
    before = await _checked(services, call, parameters, "started")
    stopped = [record for record in before if record.state == "stopped"]
    answers = await ask_nodes(services, [(NodeAction.START, record) for record in stopped])
    after = {record.instance_id: record for record in write_reports(services, stopped, answers)}
    _check_done(stopped, answers, "started")
    return start_result((record, after.get(record.instance_id, record)) for record in before)


async def stop_instances(
    services: Services,
    call: Call,
    parameters: Mapping[str, object],
) -> Result:
    """Stop running instances. Raises EC2Error, and then none was stopped.

    An instance whose node can't be asked now is stopping until it is known to have stopped. How a
    guest is shut down, and for how long it is waited for, is for its node to know: Force and
    SkipOsShutdown change nothing.
    """
    before = await _checked(services, call, parameters, "stopped")
    wished = [
        wish_shut_down(services, record, "stopping", from_states={"running"}) for record in before
    ]
    # Also what is stopped already: a start that had no answer may still be on its way there.
    stopping = [record for record in wished if record.state in {"stopping", "stopped"}]
    answers = await ask_nodes(services, [(NodeAction.STOP, record) for record in stopping])
    after = [
        wish_shut_down(services, record, "stopping", from_states={"pending", "running"})
        for record in write_reports(services, wished, answers)
    ]
    return stop_result(zip(before, after, strict=True))


async def reboot_instances(
    services: Services,
    call: Call,
    parameters: Mapping[str, object],
) -> Result:
    """Have running instances rebooted. Raises EC2Error, ServiceUnavailable for a silent node."""
    records = await _checked(services, call, parameters, "rebooted")
    running = [record for record in records if record.state == "running"]
    answers = await ask_nodes(services, [(NodeAction.REBOOT, record) for record in running])
    write_reports(services, running, answers)
    _check_done(running, answers, "rebooted")
    return {"Return": True}


# --- what stands against it ----------------------------------------------------------------


async def _checked(
    services: Services, call: Call, parameters: Mapping[str, object], deed: _Deed
) -> list[InstanceRecord]:
    """Return the named instances as they are now. Raises EC2Error if one may not be `deed`."""
    asked = msgspec.convert(parameters, _PowerParameters)
    if asked.hibernate:
        raise UnknownParameter("Hibernate")
    found = named_instances(services, call, asked.instance_ids)
    records, silent = await follow_up(services, found)
    wrong = [
        record for record in records if record.node is None or record.state not in _ALLOWED[deed]
    ]
    # It may be booted or stopped by now: that it isn't would be a guess.
    in_doubt = [
        record
        for record in wrong
        if record.instance_id in silent and record.state in {"pending", "stopping"}
    ]
    if len(in_doubt) < len(wrong):
        raise _wrong_state([record for record in wrong if record not in in_doubt], deed)
    if in_doubt:
        raise node_silent(in_doubt)
    if asked.dry_run:
        raise DryRunOperation("Request would have succeeded, but DryRun flag is set.")
    return records


def _check_done(asked: Sequence[InstanceRecord], answers: NodeAnswers, deed: _Deed) -> None:
    """Raise what keeps nodes from having done it, if anything does."""
    undone: defaultdict[str, list[InstanceRecord]] = defaultdict(list)
    for record in asked:
        undone[_why_undone(record, answers)].append(record)
    done = ", ".join(record.instance_id for record in undone.pop("", ()))
    also = f" These were {deed}: {done}." if done else ""
    if wrong := undone["state"]:
        raise _wrong_state(wrong, deed, also=also)
    if full := undone["full"]:
        raise InsufficientInstanceCapacity(
            f"There is no room now to start {_places(full)}, and no instance leaves its node.{also}"
        )
    if silent := undone["silent"]:
        raise node_silent(silent, also=also)
    if lost := undone["lost"]:
        raise InternalError(f"No longer on its node: {_places(lost)}.{also}")


def _why_undone(record: InstanceRecord, answers: NodeAnswers) -> str:
    """Return why a node has not done what it was asked, or nothing if it has."""
    if record.instance_id in answers.silent:
        return "silent"
    if record.instance_id not in answers.reports:
        return "lost"  # reconcile will close its record
    return answers.refused.get(record.instance_id, "")


def _wrong_state(
    records: Sequence[InstanceRecord], deed: _Deed, *, also: str = ""
) -> IncorrectInstanceState:
    """Return the error in EC2's words."""
    first = records[0]
    names = ", ".join(record.instance_id for record in records)
    if len(records) > 1:
        message = f"The instances '{names}' are not in a state from which they can be {deed}."
    elif deed == "stopped" and first.state == "pending" and first.shutdown_asked_at_s is None:
        message = (
            f"Instance '{names}' cannot be stopped as it has never reached the 'running' state."
        )
    else:
        message = f"The instance '{names}' is not in a state from which it can be {deed}."
    return IncorrectInstanceState(message + also)


def _places(records: Iterable[InstanceRecord]) -> str:
    return ", ".join(
        f"{record.instance_id} on node {record.node} in {record.availability_zone}"
        for record in records
    )
