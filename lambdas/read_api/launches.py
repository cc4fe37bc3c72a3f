"""One launch of the Fleet table, as the API tells it: never its tokens, tags or user data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetcast.errors import InvalidReservationIDNotFound
from fleetcast.read_answers import LaunchAnswer, LaunchedInstance, check_reservation_id

if TYPE_CHECKING:
    from lambdas.fleet_table import FleetTable
    from lambdas.launch_table import Reservation


def read_launch(
    fleet: FleetTable, account_id: str, reservation_id: str, *, now_s: float
) -> LaunchAnswer:
    """Read what happened in one of an account's launches.

    Raises InvalidReservationID.Malformed and .NotFound, and botocore's errors.
    """
    check_reservation_id(reservation_id)
    reservation = fleet.launches.read(account_id, reservation_id)
    if reservation is None:
        raise InvalidReservationIDNotFound(
            f"The reservation ID '{reservation_id}' does not exist, or is over two weeks old."
        )
    is_open = reservation.state in {"placing", "unknown"}
    return LaunchAnswer(
        reservation_id=reservation_id,
        state=reservation.state,
        instance_type=reservation.instance_type,
        min_count=reservation.min_count,
        pinned=reservation.pinned,
        launched_at_s=reservation.launched_at_s,
        answered_at_s=now_s,
        region=reservation.region,
        undecided_until_s=reservation.undecided_until_s if is_open else None,
        instances=_instances(fleet, reservation) if reservation.state != "refused" else (),
        story=reservation.story,
    )


def _instances(fleet: FleetTable, reservation: Reservation) -> tuple[LaunchedInstance, ...]:
    ids = reservation.instance_ids
    records = {one.instance_id: one for one in fleet.instances_by_id(reservation.account_id, ids)}
    return tuple(
        LaunchedInstance(
            instance_id=one,
            state=record.state,
            region=record.region,
            zone=record.zone,
            node=record.node,
        )
        if (record := records.get(one))
        else LaunchedInstance(instance_id=one)
        for one in ids
    )
