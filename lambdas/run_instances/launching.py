"""RunInstances: write the launch down, rank the regions, walk them, record what came of it.

A launch is in the table before its first request leaves; whatever ends this function after that
leaves records from which the launch can be resolved.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import TYPE_CHECKING, Final

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from fleetcast import messages
from fleetcast.errors import (
    EC2Error,
    InternalError,
)
from fleetcast.launch_story import LaunchStory
from lambdas.claims import ORDER_VALID_MS, Claims, placed_records
from lambdas.launch_table import LaunchConflict, LaunchDecided, Reservation, Token, TokenTaken
from lambdas.records import InstanceRecord
from lambdas.run_instances.client_tokens import launched_before, wait_a_little
from lambdas.run_instances.descriptions import Result, reservation_result
from lambdas.run_instances.launch_order import LaunchOrder, order_regions
from lambdas.run_instances.launch_parameters import LaunchParameters, launch_parameters
from lambdas.run_instances.launch_preview import preview_launch
from lambdas.run_instances.launch_request import Wanted
from lambdas.run_instances.placement import UnknownOutcome, Walk
from lambdas.run_instances.region_fill import Asking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lambdas.run_instances.services import Call, Services

_log = logging.getLogger(__name__)

_MAX_LAUNCH_S: Final = 20.0
# What it takes to write the end of a launch down and to answer, after the walk.
_WRITE_DOWN_S: Final = 2.0
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
    asked = launch_parameters(
        parameters,
        instance_types=services.instance_types,
        regions=services.settings.region_names,
        region=call.region,
    )
    if asked.dry_run:
        await preview_launch(services, asked)
    deadline_s = min(call.deadline_s - _WRITE_DOWN_S, services.clock_s() + _MAX_LAUNCH_S)
    while True:
        launch = _new_launch(services, call, asked)
        try:
            services.fleet.launches.begin(
                launch.reservation, launch.records, launch.token, now_s=services.now_s()
            )
        except TokenTaken as taken:
            earlier = await launched_before(services, call, asked, taken.token, deadline_s)
            if earlier is not None:
                return reservation_result(earlier)
        except LaunchConflict:
            pass
        else:
            return reservation_result(await _place(services, call, launch, asked, deadline_s))
        await wait_a_little(
            services,
            deadline_s,
            "The launch could not be written down among all that is being written.",
        )


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
            root_device_name=asked.root_disk.device_name,
        )
        for index in range(asked.max_count)
    )
    reservation = Reservation(
        account_id=call.account_id,
        reservation_id=reservation_id,
        instance_type=asked.instance_type,
        launched_at_s=now_s,
        pinned=asked.region is not None or asked.zone is not None,
        min_count=asked.min_count,
        client_token=asked.client_token,
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


# --- placing -------------------------------------------------------------------------------


async def _place(
    services: Services,
    call: Call,
    launch: _Launch,
    asked: LaunchParameters,
    deadline_s: float,
) -> list[InstanceRecord]:
    """Walk the regions and record the end, whatever it is. Raises EC2Error."""
    began_s = services.clock_s()
    launch_id = launch.reservation.reservation_id
    order = order_regions(services, asked, launch_id=launch_id)
    walk = Walk(_wanted(launch, asked, deadline_s), _asking(services, launch.reservation))
    outcome = "unfinished"
    try:
        await _walk(walk, order, within_s=call.deadline_s - _WRITE_DOWN_S - services.clock_s())
        records = _write_placed(services, launch, walk, _story(order, walk, services, began_s))
        outcome = "launched"
    except EC2Error as refusal:
        outcome = refusal.code
        _write_refused(services, launch, _story(order, walk, services, began_s, refusal))
        raise
    except UnknownOutcome as unknown:
        outcome = "unknown"
        error = InternalError(
            f"It is not known whether the launch happened: {unknown}. Retry with the same "
            f"ClientToken. (Launch {launch_id})"
        )
        _write_unknown(services, launch, _story(order, walk, services, began_s, error))
        raise error from unknown
    finally:
        _remember(services, asked, walk)
        _log.info(
            "launch decided",
            extra={
                "launch": launch_id,
                "instance_type": asked.instance_type,
                "count": [asked.min_count, asked.max_count],
                "outcome": outcome,
                "milliseconds": round((services.clock_s() - began_s) * 1000, 1),
                "regions": msgspec.to_builtins(order.ranked),
                "asks": msgspec.to_builtins(walk.log.asks),
            },
        )
    return records


async def _walk(walk: Walk, order: LaunchOrder, *, within_s: float) -> None:
    """Place the launch. Raises as Walk.place, and UnknownOutcome if it takes too long.

    The walk itself ends earlier, but for a region that hangs at each single step.
    """
    try:
        async with asyncio.timeout(within_s):
            await walk.place([one.region for one in order.ranked])
    except TimeoutError as error:
        raise walk.refusal() from error


def _remember(services: Services, asked: LaunchParameters, walk: Walk) -> None:
    """Note which regions were asked in vain. Those that there was no time for were not asked."""
    answered = {ask.region for ask in walk.log.asks}
    for verdict in walk.verdicts:
        if verdict.region in answered or verdict.end == "in_doubt":
            services.refusals.note(
                verdict.region, asked.instance_type, asked.zone, vain=verdict.end != "placed"
            )


def _asking(services: Services, reservation: Reservation) -> Asking:
    def now_ms() -> int:
        return int(services.now_s() * 1000)

    return Asking(
        bus=services.bus,
        claims=Claims(
            services.bus,
            reservation.reservation_id,
            known_nodes=services.known_nodes,
            sleep=services.sleep,
            expires_at_ms=lambda: min(
                now_ms() + ORDER_VALID_MS, int(reservation.undecided_until_s * 1000)
            ),
        ),
        clock_s=services.clock_s,
        now_ms=now_ms,
        sleep=services.sleep,
        accept_timeout_s=services.settings.accept_timeout_s,
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
            root_disk_gib=asked.root_disk.size_gib or msgspec.UNSET,
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


def _story(
    order: LaunchOrder,
    walk: Walk,
    services: Services,
    began_s: float,
    error: EC2Error | None = None,
) -> LaunchStory:
    return LaunchStory(
        ranked=order.ranked,
        asked_last=order.asked_last,
        verdicts=tuple(walk.verdicts),
        asks=tuple(walk.log.asks),
        asks_left_out=walk.log.left_out_n,
        error_code=error.code if error else None,
        error_message=error.message if error else None,
        took_ms=round((services.clock_s() - began_s) * 1000, 1),
    )


# --- writing down what came of it ----------------------------------------------------------


def _write_placed(
    services: Services, launch: _Launch, walk: Walk, story: LaunchStory
) -> list[InstanceRecord]:
    """Record where the instances are, and drop those that found no place.

    Raises UnknownOutcome if this function was stopped for so long that others resolve its launch.
    """
    records = placed_records(launch.records, walk.placed)
    reservation = msgspec.structs.replace(
        launch.reservation,
        state="placed",
        region=records[0].region,  # one launch goes to one region
        story=story,
    )
    try:
        services.fleet.launches.place(reservation, records)
    except LaunchDecided as decided:
        raise UnknownOutcome(f"it was resolved meanwhile, as {decided.state}") from decided
    except LaunchConflict as conflict:
        raise UnknownOutcome("it is being resolved meanwhile") from conflict
    return records


def _write_refused(services: Services, launch: _Launch, story: LaunchStory) -> None:
    """Free what a refused launch has written down, if that can be done now."""
    refused = msgspec.structs.replace(launch.reservation, state="refused", story=story)
    try:
        services.fleet.launches.refuse(refused)
    except (BotoCoreError, ClientError, LaunchConflict, LaunchDecided) as problem:
        # The refusal stays true. Until the launch is resolved, its token stands for it.
        _log.error(
            "refused launch not written down",
            extra={"launch": refused.reservation_id, "why": repr(problem)},
        )


def _write_unknown(services: Services, launch: _Launch, story: LaunchStory) -> None:
    """Leave the launch to whoever resolves it, from now on: nothing more is asked for it."""
    unknown = msgspec.structs.replace(
        launch.reservation,
        state="unknown",
        story=story,
        undecided_until_s=services.now_s()
        + max(services.settings.accept_timeout_s, ORDER_VALID_MS / 1000),
    )
    try:
        services.fleet.launches.leave_unknown(unknown)
    except (BotoCoreError, ClientError, LaunchConflict, LaunchDecided) as problem:
        # It stays as it was begun, and is resolved a little later.
        _log.error(
            "unknown launch not written down",
            extra={"launch": unknown.reservation_id, "why": repr(problem)},
        )
