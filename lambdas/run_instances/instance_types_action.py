"""DescribeInstanceTypes: which types the nodes of the fleet serve, asked of every one of them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast import messages
from fleetcast.errors import (
    DryRunOperation,
    InvalidInput,
    InvalidInstanceType,
    ServiceUnavailable,
)
from fleetcast.subjects import RegionAction, check_node, region_subject
from lambdas.bus import NoResponders, RegionError
from lambdas.run_instances.instance_type_listing import (
    ListingParameters,
    ServedType,
    listing_result,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lambdas.run_instances.descriptions import Result
    from lambdas.run_instances.services import Call, Services

_log = logging.getLogger(__name__)

# All of it is waited for: a node that nobody knows yet may serve what no other one does.
_WAIT_S: Final = 1.0


class _Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What one region serves. silent: who gave no answer and might serve more, or None."""

    replies: tuple[messages.InstanceTypesReply, ...]
    silent: str | None


async def describe_instance_types(
    services: Services,
    call: Call,
    parameters: Mapping[str, object],
) -> Result:
    """List the types that the nodes serve, in all regions or in that of the endpoint.

    What silent nodes serve is missing. Raises EC2Error: a type asked for by name that nobody
    serves is an InvalidInstanceType only if everybody was heard, and else ServiceUnavailable.
    """
    asked = msgspec.convert(parameters, ListingParameters)
    listing_result((), asked)  # refuse bad parameters before asking nodes
    unknown = [name for name in asked.instance_types if name not in services.instance_types]
    if unknown:
        raise _no_such_types(unknown)
    names = [call.region] if call.region else services.settings.region_names
    heard = await asyncio.gather(*(_hear(services, region) for region in names))
    served = _served_types(services, heard)
    unserved = [name for name in asked.instance_types if name not in served]
    silent = [one.silent for one in heard if one.silent]
    if unserved and silent:
        raise ServiceUnavailable(
            f"Could not find out whether anybody serves {', '.join(unserved)}: "
            f"no answer from {', '.join(silent)}. The same request may be repeated."
        )
    if unserved:
        raise _no_such_types(unserved)
    if asked.dry_run:
        raise DryRunOperation("Request would have succeeded, but DryRun flag is set.")
    return listing_result(served.values(), asked)


def _no_such_types(names: Iterable[str]) -> InvalidInstanceType:
    listed = ", ".join(dict.fromkeys(names))
    return InvalidInstanceType(f"The following supplied instance types do not exist: [{listed}]")


def _served_types(services: Services, heard: Iterable[_Heard]) -> dict[str, ServedType]:
    """Return all types that somebody serves, by name; those that can't be launched are left out."""
    replies = [reply for one in heard for reply in one.replies]
    with_room = {name for reply in replies for name in reply.room}
    names = {name for reply in replies for name in reply.instance_types}
    return {
        name: ServedType(
            instance_type=services.instance_types.lookup(name), has_room=name in with_room
        )
        for name in names
        if name in services.instance_types
    }


async def _hear(services: Services, region: str) -> _Heard:
    known = frozenset(await asyncio.to_thread(services.known_nodes, region))
    try:
        payloads = await services.bus.gather(
            region,
            region_subject(region, RegionAction.DESCRIBE_INSTANCE_TYPES),
            messages.encode(messages.RegionRequest()),
            timeout_s=_WAIT_S,
        )
    except NoResponders:
        payloads = []
    except RegionError as problem:
        _log.warning("region did not answer", extra={"region": region, "why": problem.why})
        return _Heard(replies=(), silent=f"region {region}")
    return _understood(region, payloads, known)


def _understood(region: str, payloads: Sequence[bytes], known: frozenset[str]) -> _Heard:
    replies = []
    for payload in payloads:
        try:
            reply = messages.decode(payload, messages.InstanceTypesReply)
            check_node(reply.node)
        except InvalidInput as problem:
            _log.warning("reply not understood", extra={"region": region, "why": str(problem)})
        else:
            replies.append(reply)
    missing = sorted(known - {reply.node for reply in replies})
    if missing:
        _log.warning("nodes did not answer", extra={"region": region, "nodes": missing})
    silent = f"nodes {', '.join(missing)} in {region}" if missing else None
    return _Heard(replies=tuple(replies), silent=silent)
