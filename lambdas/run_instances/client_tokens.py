"""What the same ClientToken has launched before: replayed, waited for, or resolved.

Two calls with one token at the same moment come to one launch: its token is written with it, and
the other call waits here until that launch is decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleetcast.errors import (
    IdempotentInstanceTerminated,
    IdempotentParameterMismatch,
    InternalError,
    ServiceUnavailable,
)
from lambdas.resolution import is_undecided, resolve_launch
from lambdas.run_instances.descriptions import is_visible

if TYPE_CHECKING:
    from lambdas.launch_table import Reservation, Token
    from lambdas.records import InstanceRecord
    from lambdas.run_instances.launch_parameters import LaunchParameters
    from lambdas.run_instances.services import Call, Services

_POLL_S: Final = 0.1


async def launched_before(
    services: Services,
    call: Call,
    asked: LaunchParameters,
    token: Token,
    deadline_s: float,
) -> list[InstanceRecord] | None:
    """Return what an earlier launch with this token has launched; None if it was refused.

    Raises IdempotentParameterMismatch, IdempotentInstanceTerminated, ServiceUnavailable for a
    launch that is not decided in time, and InternalError for one whose outcome can't be known now.
    """
    if token.fingerprint != asked.fingerprint():
        raise IdempotentParameterMismatch(
            "The client token was used before, with other parameters."
        )
    while True:
        reservation = services.fleet.launches.read(call.account_id, token.reservation_id)
        if reservation is None or reservation.state == "refused":
            return None
        if reservation.state == "placed":
            return _launched(services, reservation)
        if is_undecided(reservation, now_s=services.now_s()):
            await wait_a_little(
                services, deadline_s, "An earlier request with this ClientToken is not decided yet."
            )
        else:
            await _resolve(services, reservation)


async def _resolve(services: Services, reservation: Reservation) -> None:
    """Have a launch decided that its function has left. Raises InternalError."""
    resolution = await resolve_launch(
        reservation,
        services.settings.region_names,
        bus=services.bus,
        fleet=services.fleet,
        known_nodes=services.known_nodes,
        sleep=services.sleep,
    )
    if resolution == "unknown":
        raise InternalError(
            f"The outcome of launch {reservation.reservation_id} is not known yet: a region "
            "in which it may be can't be heard. Retry later with the same ClientToken."
        )


def _launched(services: Services, reservation: Reservation) -> list[InstanceRecord]:
    """Return a launch's instances as they are now. Raises IdempotentInstanceTerminated."""
    records = services.fleet.instances_by_id(reservation.account_id, reservation.instance_ids)
    if all(record.state in {"shutting-down", "terminated"} for record in records):
        raise IdempotentInstanceTerminated(
            "The instances of this client token have been terminated."
        )
    now_s = services.now_s()
    return [record for record in records if is_visible(record, now_s=now_s)]


async def wait_a_little(services: Services, deadline_s: float, why: str) -> None:
    """Wait a little for what others do. why: the reason if there is no time for that left.

    Raises ServiceUnavailable.
    """
    if services.clock_s() + _POLL_S > deadline_s:
        raise ServiceUnavailable(f"{why} Retry with the same ClientToken.")
    await services.sleep(_POLL_S)
