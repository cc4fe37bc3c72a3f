"""One ask of a walk: the launch request to a region, and what its answer is.

Owns the request's form and the reading of its answer; what an answer leads to is placement's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from fleetcast import messages
from fleetcast.errors import InvalidMessage, InvalidSubjectToken
from fleetcast.subjects import check_node, launch_subject
from lambdas.bus import NoAnswer, NoResponders, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lambdas.claims import RegionBus

# How long a node keeps what it holds for a launch; a launch takes 20 s at most.
HOLD_MS: Final = 15_000
_CLIENT_SIDE_SLACK_S: Final = 0.05


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A launch to place. template: the request without instances, the same for every ask.

    instances: max_count of them. zone: only there. deadline_s: when the outcome must be known, on
    the clock.
    """

    launch_id: str
    template: messages.LaunchRequest
    instances: tuple[messages.InstanceToLaunch, ...]
    min_count: int
    zone: str | None
    deadline_s: float

    @property
    def holds(self) -> bool:
        """Whether nodes only hold at first: a launch that fails must not have booted anything."""
        return self.min_count > 1


class Unanswered(msgspec.Struct, frozen=True, kw_only=True):
    """It is not known what became of a request. expires_at_ms: when nobody acts on it any more."""

    why: str
    expires_at_ms: int


LaunchAnswer: TypeAlias = messages.LaunchReply | NoResponders | Unreachable | Unanswered


def subject_for(region: str, wanted: Wanted) -> str:
    """Return the subject on which a region is asked for a launch."""
    return launch_subject(region, wanted.template.instance_type, wanted.zone)


async def request_launch(
    bus: RegionBus,
    region: str,
    wanted: Wanted,
    instances: Sequence[messages.InstanceToLaunch],
    *,
    attempt: int,
    accept_timeout_s: float,
    now_ms: Callable[[], int],
) -> LaunchAnswer:
    """Ask one agent of a region to launch these. now_ms: epoch milliseconds."""
    template = wanted.template
    request = msgspec.structs.replace(
        template,
        instances=tuple(instances),
        hold_ms=HOLD_MS if wanted.holds else msgspec.UNSET,
    )
    sent_at_ms = now_ms()

    def headers() -> Mapping[str, str]:
        nonlocal sent_at_ms
        sent_at_ms = now_ms()  # connecting may have taken seconds
        return messages.LaunchHeaders(
            launch_id=wanted.launch_id,
            attempt=attempt,
            sent_at_ms=sent_at_ms,
            expires_at_ms=sent_at_ms + int(accept_timeout_s * 1000),
        ).encode()

    try:
        payload = await bus.ask(
            region,
            subject_for(region, wanted),
            messages.encode(request),
            timeout_s=accept_timeout_s + _CLIENT_SIDE_SLACK_S,
            headers=headers,
        )
        reply = messages.decode_launch_reply(payload)
        _check_accepted(reply, instances)
    except (NoResponders, Unreachable) as error:
        return error
    except (NoAnswer, InvalidMessage, InvalidSubjectToken) as error:
        # An answer that makes no sense may be an acceptance.
        return Unanswered(
            why=error.why if isinstance(error, NoAnswer) else str(error),
            expires_at_ms=sent_at_ms + int(accept_timeout_s * 1000),
        )
    return reply


def _check_accepted(
    reply: messages.LaunchReply,
    instances: Sequence[messages.InstanceToLaunch],
) -> None:
    """Refuse an acceptance of nothing, of an instance twice, or of one that wasn't asked for.

    Raises InvalidMessage, and InvalidSubjectToken if the node could not be asked to give them up.
    """
    if isinstance(reply, messages.Accepted):
        check_node(reply.node)
        accepted = set(reply.instance_ids)
        asked = {instance.instance_id for instance in instances}
        if not accepted or len(accepted) < len(reply.instance_ids) or not accepted <= asked:
            raise InvalidMessage(f"node {reply.node} accepted other instances than it was asked")
