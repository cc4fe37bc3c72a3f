"""RunInstances: write the launch down, rank the regions, walk them, record what came of it.

A launch is in the table before its first request leaves; whatever ends this function after that
leaves records from which the launch can be resolved.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from fleetcast import messages
from fleetcast.errors import (
    DryRunOperation,
    EC2Error,
    IdempotentInstanceTerminated,
    IdempotentParameterMismatch,
    InternalError,
    ServiceUnavailable,
)
from fleetcast.selection import RankedRegion, rank_regions
from lambdas.fleet_table import LaunchConflict, Reservation, Token, TokenTaken
from lambdas.records import InstanceRecord
from lambdas.run_instances.descriptions import Result, is_visible, reservation_result
from lambdas.run_instances.launch_parameters import LaunchParameters, launch_parameters
from lambdas.run_instances.placement import UnknownOutcome, Walk, Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lambdas.run_instances.services import Call, Services

_log = logging.getLogger(__name__)

_MAX_LAUNCH_S: Final = 20.0
# What it takes to write the end of a launch down and to answer, after the walk.
_WRITE_DOWN_S: Final = 2.0
_POLL_S: Final = 0.1
_ID_DIGITS: Final = 17


class _Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A launch as it is written down before anything is asked for."""

    reservation: Reservation
    records: tuple[InstanceRecord, ...]
    token: Token | None


async def run_instances(
    services: Services,
    call: Call,
    parameters: Mapping[str, object],
) -> Result:
    """Launch instances, or return what the same ClientToken has launched. Raises EC2Error."""
    asked = launch_parameters(parameters, instance_types=services.instance_types)
    if asked.dry_run:
        raise DryRunOperation("Request would have succeeded, but DryRun flag is set.")
    deadline_s = min(call.deadline_s - _WRITE_DOWN_S, services.clock_s() + _MAX_LAUNCH_S)
    while True:
        launch = _new_launch(services, call, asked)
        try:
            services.fleet.begin_launch(
                launch.reservation, launch.records, launch.token, now_s=services.now_s()
            )
        except TokenTaken as taken:
            earlier = _replay(services, call, asked, taken.token)
            if earlier is not None:
                return reservation_result(earlier)
        except LaunchConflict:
            pass
        else:
            return reservation_result(await _place(services, launch, asked, deadline_s))
        # The other launch with this token is not decided yet.
        if services.clock_s() + _POLL_S > deadline_s:
            raise ServiceUnavailable(
                "An earlier request with this ClientToken is not decided yet. Retry with the "
                "same ClientToken."
            )
        await asyncio.sleep(_POLL_S)


# --- writing it down -----------------------------------------------------------------------


def _new_launch(services: Services, call: Call, asked: LaunchParameters) -> _Launch:
    now_s = services.now_s()
    reservation_id = f"r-{services.random_hex(_ID_DIGITS)}"
    records = tuple(
        InstanceRecord(
            account_id=call.account_id,
            reservation_id=reservation_id,
            instance_id=f"i-{services.random_hex(_ID_DIGITS)}",
            instance_type=asked.instance_type,
            image_id=asked.image_id,
            architecture=services.instance_types.lookup(asked.instance_type).architectures[0],
            launch_index=index,
            launched_at_s=now_s,
            key_name=asked.key_name,
            tags=asked.tags,
            client_token=asked.client_token,
            shutdown_behavior=asked.shutdown_behavior,
        )
        for index in range(asked.max_count)
    )
    reservation = Reservation(
        account_id=call.account_id,
        reservation_id=reservation_id,
        instance_type=asked.instance_type,
        launched_at_s=now_s,
        pinned=asked.zone is not None,
        instance_ids=tuple(record.instance_id for record in records),
        state="placing",
        undecided_until_s=now_s + call.deadline_s - services.clock_s(),
    )
    token = None
    if asked.client_token is not None:
        token = Token(
            client_token=asked.client_token,
            fingerprint=asked.fingerprint(),
            reservation_id=reservation_id,
        )
    return _Launch(reservation=reservation, records=records, token=token)


def _replay(
    services: Services,
    call: Call,
    asked: LaunchParameters,
    token: Token,
) -> list[InstanceRecord] | None:
    """Return what an earlier launch with this token launched; None if it is not decided yet.

    Raises IdempotentParameterMismatch, IdempotentInstanceTerminated, and InternalError for a
    launch whose outcome is still unknown.
    """
    if token.fingerprint != asked.fingerprint():
        raise IdempotentParameterMismatch(
            "The client token was used before, with other parameters."
        )
    reservation = services.fleet.reservation(call.account_id, token.reservation_id)
    if reservation is None:
        return None  # it has just ended without an instance, and its token is being freed
    if reservation.state == "placing" and services.now_s() < reservation.undecided_until_s:
        return None
    if reservation.state != "placed":
        raise InternalError(
            f"The outcome of launch {reservation.reservation_id} is not known yet. Retry later "
            "with the same ClientToken."
        )
    records = services.fleet.instances_by_id(call.account_id, reservation.instance_ids)
    if all(record.state in {"shutting-down", "terminated"} for record in records):
        raise IdempotentInstanceTerminated(
            "The instances of this client token have been terminated."
        )
    now_s = services.now_s()
    return [record for record in records if is_visible(record, now_s=now_s)]


# --- placing -------------------------------------------------------------------------------


async def _place(
    services: Services,
    launch: _Launch,
    asked: LaunchParameters,
    deadline_s: float,
) -> list[InstanceRecord]:
    """Walk the regions and record the end, whatever it is. Raises EC2Error."""
    ranked = _rank(services, launch, asked)
    walk = Walk(
        _wanted(launch, asked, deadline_s),
        ask=services.ask,
        clock_s=services.clock_s,
        now_ms=lambda: int(services.now_s() * 1000),
        accept_timeout_s=services.settings.accept_timeout_s,
    )
    began_s = services.clock_s()
    outcome = "unfinished"
    try:
        await walk.place([one.region for one in ranked])
        records = _finish(services, launch, walk, "placed")
    except EC2Error as refusal:
        outcome = refusal.code
        _drop(services, launch)
        raise
    except UnknownOutcome as unknown:
        outcome = "unknown"
        _finish(services, launch, walk, "unknown")
        raise InternalError(
            f"It is not known whether the launch happened: {unknown}. Retry with the same "
            "ClientToken."
        ) from unknown
    else:
        outcome = "launched"
        return records
    finally:
        _log.info(
            "launch decided",
            extra={
                "launch": launch.reservation.reservation_id,
                "instance_type": asked.instance_type,
                "count": [asked.min_count, asked.max_count],
                "outcome": outcome,
                "milliseconds": round((services.clock_s() - began_s) * 1000, 1),
                "regions": msgspec.to_builtins(ranked),
                "asks": msgspec.to_builtins(walk.asks),
            },
        )


def _rank(services: Services, launch: _Launch, asked: LaunchParameters) -> list[RankedRegion]:
    settings = services.settings
    try:
        scores = services.scores.read_scores(asked.instance_type)
    except (BotoCoreError, ClientError, KeyError, ValueError) as problem:
        # A score only says where it is good to launch; nodes say whether it can be done.
        _log.warning("scores can't be read", extra={"why": repr(problem)})
        scores = {}
    return rank_regions(
        [region.name for region in settings.regions],
        scores,
        default_region=settings.default_region,
        launch_id=launch.reservation.reservation_id,
        now_s=services.now_s(),
        max_score_age_s=settings.max_score_age_s,
        tie_band=settings.tie_band,
    )


def _wanted(launch: _Launch, asked: LaunchParameters, deadline_s: float) -> Wanted:
    user_data = base64.b64encode(asked.user_data).decode() if asked.user_data else None
    return Wanted(
        launch_id=launch.reservation.reservation_id,
        template=messages.LaunchRequest(
            account_id=launch.reservation.account_id,
            instances=(),
            instance_type=asked.instance_type,
            image_id=asked.image_id,
            user_data_base64=user_data,
            key_name=asked.key_name,
            shutdown_behavior=asked.shutdown_behavior,
            tags=asked.tags,
        ),
        instances=tuple(
            messages.InstanceToLaunch(
                instance_id=record.instance_id, launch_index=record.launch_index
            )
            for record in launch.records
        ),
        min_count=asked.min_count,
        zone=asked.zone,
        deadline_s=deadline_s,
    )


def _finish(
    services: Services,
    launch: _Launch,
    walk: Walk,
    state: Literal["placed", "unknown"],
) -> list[InstanceRecord]:
    """Record where the instances are. What found no place is dropped once all is known."""
    placed = {one.instance_id: one for one in walk.placed}
    records = [
        msgspec.structs.replace(
            record, region=at.region, zone=at.zone, node=at.node, attempt=at.attempt
        )
        for record in launch.records
        if (at := placed.get(record.instance_id))
    ]
    remaining = launch.reservation.instance_ids if state == "unknown" else tuple(placed)
    services.fleet.finish_launch(
        msgspec.structs.replace(
            launch.reservation,
            state=state,
            instance_ids=remaining,
            region=records[0].region if records else None,  # one launch goes to one region
        ),
        records,
        unplaced=[one for one in launch.reservation.instance_ids if one not in remaining],
    )
    return records


def _drop(services: Services, launch: _Launch) -> None:
    """Free what a refused launch has written down, if that can be done now."""
    try:
        services.fleet.drop_launch(launch.reservation, launch.token)
    except (BotoCoreError, ClientError) as problem:
        # The refusal stays true. Until this is cleared up, the token stands for a launch that
        # isn't decided.
        _log.error(
            "refused launch not dropped",
            extra={"launch": launch.reservation.reservation_id, "why": repr(problem)},
        )
