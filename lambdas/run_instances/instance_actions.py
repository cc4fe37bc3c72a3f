"""DescribeInstances and TerminateInstances: the table's records, and what nodes say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.errors import DryRunOperation
from fleetcast.subjects import NodeAction
from lambdas.run_instances.descriptions import Result, describe_result, termination_result
from lambdas.run_instances.node_answers import ask_nodes, follow_up, write_reports
from lambdas.run_instances.visible_instances import named_instances, visible_instances
from lambdas.run_instances.wishes import wish_shut_down

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcast.messages import InstanceState
    from lambdas.run_instances.services import Call, Services

_ENDS_FROM: Final[frozenset[InstanceState]] = frozenset(
    {"pending", "running", "stopping", "stopped"}
)


class _NamedInstances(msgspec.Struct, frozen=True, rename="pascal"):
    instance_ids: tuple[str, ...] = ()
    dry_run: bool = False


async def describe_instances(
    services: Services,
    call: Call,
    parameters: Mapping[str, object],
) -> Result:
    """List instances; those on their way to another state are asked after at their nodes.

    One that is to be stopped or terminated is told so again: its node may not have heard it.
    Raises EC2Error. A node that doesn't answer leaves its instances as they were last known.
    """
    asked = msgspec.convert(parameters, _NamedInstances)
    if asked.dry_run:
        raise DryRunOperation("Request would have succeeded, but DryRun flag is set.")
    now_s = services.now_s()
    records = visible_instances(services, call, asked.instance_ids)
    describe_result(records, parameters, now_s=now_s)  # refuse bad parameters before asking nodes
    current, _ = await follow_up(services, records)
    return describe_result(current, parameters, now_s=now_s)


async def terminate_instances(
    services: Services,
    call: Call,
    parameters: Mapping[str, object],
) -> Result:
    """Terminate instances. Raises EC2Error, and then none was terminated.

    The wish is recorded first: an instance whose node can't be asked now is shutting down until
    it is known to be gone. A node never asks a guest for leave to end it, so that Force and
    SkipOsShutdown change nothing.
    """
    asked = msgspec.convert(parameters, _NamedInstances)
    before = named_instances(services, call, asked.instance_ids)
    if asked.dry_run:
        raise DryRunOperation("Request would have succeeded, but DryRun flag is set.")
    wished = [
        wish_shut_down(services, record, "shutting-down", from_states=_ENDS_FROM)
        for record in before
    ]
    # Also those that were shutting down before.
    ending = [record for record in wished if record.state == "shutting-down"]
    answers = await ask_nodes(services, [(NodeAction.TERMINATE, record) for record in ending])
    return termination_result(zip(before, write_reports(services, wished, answers), strict=True))
