"""Answers launch requests: reserve, journal, reply, and only then boot.

Requests that wait are decided in one batch, and while the journal writes what a batch has promised,
the next one is decided: a burst takes few writes, and neither waits for the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from fleetcast import messages
from fleetcast.agent.drivers import ClientFault, Guest, NodeFault
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.agent.request import Request
from fleetcast.errors import InvalidMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fleetcast.agent.capacity.served_types import ServedTypes
    from fleetcast.agent.guests import Guests
    from fleetcast.agent.instances import Instances
    from fleetcast.agent.set_aside import SetAside
    from fleetcast.instance_types import InstanceType

_log = logging.getLogger(__name__)

MAX_BATCH: Final = 64


class _Decision(msgspec.Struct):
    """What becomes of one request.

    reply: None when nobody waits for one. placed: what is here for it, once that is promised.
    inputs: what was decided on, for the log.
    """

    message: Request
    reply: messages.LaunchReply | None
    placed: tuple[str, ...] = ()
    inputs: dict[str, object] | None = None

    @property
    def outcome(self) -> str:
        """Why it was rejected, or that it was not."""
        return self.reply.reason if isinstance(self.reply, messages.Rejected) else "accepted"

    def told(self) -> dict[str, object]:
        """Return what the log says of it."""
        return {**(self.inputs or {}), "placed": len(self.placed), "outcome": self.outcome}


class LaunchDesk:
    """Decides on launch requests, in the order in which they came.

    now_ms: epoch milliseconds. capacity_changed: called after every batch, since each request has
    used up a token.
    """

    def __init__(
        self,
        *,
        node: str,
        zone: str | None,
        served_types: ServedTypes,
        instances: Instances,
        guests: Guests,
        set_aside: SetAside,
        now_ms: Callable[[], int],
        capacity_changed: Callable[[], None],
    ) -> None:
        self._node = node
        self._zone = zone
        self._served_types = served_types
        self._instances = instances
        self._guests = guests
        self._driver = guests.driver
        self._set_aside = set_aside
        self._now_ms = now_ms
        self._capacity_changed = capacity_changed
        self._inbox: list[Request] = []
        self._waiting: list[Request] = []  # for what they name to be promised, or not
        self._batches_n = 0
        self.outcomes: Counter[str] = Counter()  # of all requests so far
        self._delivered = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def deliver(self, message: Request) -> None:
        """Take a request in. Never blocks: NATS callbacks call it."""
        self._inbox.append(message)
        if len(self._inbox) == 1:
            self._delivered.set()
            self._settled.clear()

    def in_hand(self) -> Counter[str]:
        """Return how many requests wait for their decision, by subject."""
        return Counter(message.subject for message in [*self._inbox, *self._waiting])

    async def run(self) -> None:
        """Answer requests until cancelled."""
        async with asyncio.TaskGroup() as answering:
            while True:
                await self._delivered.wait()
                self._delivered.clear()
                while self._inbox:
                    answering.create_task(self._answer_next())
                    await asyncio.sleep(0)  # it decides now, and then waits for the journal

    async def _answer_next(self) -> None:
        batch = self._inbox[:MAX_BATCH]
        del self._inbox[:MAX_BATCH]
        self._batches_n += 1
        try:
            await self._answer(batch)
        except Exception:  # noqa: BLE001 - one bad batch must not end the desk
            _log.exception("launch batch failed", extra={"requests": len(batch)})
        finally:
            self._batches_n -= 1
            self._capacity_changed()
            if not self._inbox and not self._batches_n:
                self._settled.set()

    async def settled(self) -> None:
        """Wait until everything that was delivered has been answered."""
        await self._settled.wait()

    async def _answer(self, batch: Sequence[Request]) -> None:
        decisions = [decision for message in batch if (decision := self._decide(message))]
        if not decisions:
            return
        placed = [one for decision in decisions for one in decision.placed]
        try:
            # Journal before replying: after ACCEPT the caller may never ask again.
            await self._instances.promise()
        except JournalUnwritable as problem:
            refusal = self._reject("node_fault", str(problem))
            # Also repeats of what was here before: they may be asked again.
            for one in decisions:
                if isinstance(one.reply, messages.Accepted):
                    one.reply, one.placed = refusal, ()
        finally:
            self._take_up_those_that_wait()
        self.outcomes.update(one.outcome for one in decisions)
        for decision in decisions:
            await self._respond(decision)
        await asyncio.sleep(0)  # nats-py writes the replies in the loop's next turn
        self._guests.attend(placed)
        if told := [one.told() for one in decisions if one.inputs]:
            _log.info("launch requests decided", extra={"decisions": told})

    def _take_up_those_that_wait(self) -> None:
        if self._waiting:
            self._inbox[:0] = self._waiting
            self._waiting.clear()
            self._delivered.set()

    async def _respond(self, decision: _Decision) -> None:
        if decision.reply is None:
            return
        try:
            await decision.message.respond(messages.encode(decision.reply))
        except Exception:  # noqa: BLE001 - whatever its headers or the connection did: one answer lost
            # What was promised is launched all the same: the requester will look for it.
            _log.exception("launch request not answered")

    def _decide(self, message: Request) -> _Decision | None:
        """Return what becomes of a request; None if another one has to be decided before it."""
        if not message.reply:
            _log.warning("launch request that nobody waits for dropped")
            return _Decision(message, None)
        try:
            headers = messages.LaunchHeaders.decode(message.headers)
            request = messages.decode(message.data, messages.LaunchRequest)
        except InvalidMessage as problem:
            _log.warning("launch request not understood", extra={"why": str(problem)})
            return _Decision(message, self._reject("node_fault", str(problem)))
        if self._instances.are_undecided([one.instance_id for one in request.instances]):
            # It asks for the same, and must not be told what may not become true.
            self._waiting.append(message)
            return None
        untimely = self._untimely(headers)
        decision = (
            _Decision(message, self._reject("node_fault", untimely))
            if untimely
            else self._place(message, headers, request)
        )
        decision.inputs = {
            "launch": headers.launch_id,
            "attempt": headers.attempt,
            "instance_type": request.instance_type,
            "asked": len(request.instances),
        }
        return decision

    def _untimely(self, headers: messages.LaunchHeaders) -> str:
        """Say why, by this node's clock, a request is not to be acted on now; or ""."""
        now_ms = self._now_ms()
        if headers.sent_at_ms is not None:
            ahead_ms = headers.sent_at_ms - now_ms
            if ahead_ms > messages.CLOCK_SKEW_ALLOWANCE_MS:
                why = f"the clock of node {self._node} is {ahead_ms} ms behind the requester's"
                self._set_aside.clock_was_off(why)
                return why
        if headers.expires_at_ms <= now_ms:
            # The caller has given up and may be launching elsewhere by now.
            late_ms = now_ms - headers.expires_at_ms
            why = f"expired {late_ms} ms ago by the clock of node {self._node}"
            self._set_aside.came_late(why, now_ms=now_ms)
            return why
        if headers.sent_at_ms is not None:
            self._set_aside.clock_was_right()
        return ""

    def _place(
        self,
        message: Request,
        headers: messages.LaunchHeaders,
        request: messages.LaunchRequest,
    ) -> _Decision:
        """Reserve what fits, in the order asked; what is already held stays as it is."""
        instance_type = self._served_types.get(request.instance_type)
        if instance_type is None:
            why = f"node {self._node} doesn't serve {request.instance_type}"
            return _Decision(message, self._reject("node_fault", why))
        fault = self._fault(request, instance_type)
        placed: list[str] = []
        full = False
        held_until_ms = self._now_ms() + request.hold_ms if request.hold_ms else None
        wanted_by_id = {wanted.instance_id: wanted for wanted in request.instances}
        for instance_id, wanted in wanted_by_id.items():
            claim = self._instances.claim(
                self._guest(wanted, headers, request, instance_type),
                held_until_ms=held_until_ms,
                may_book=not full and fault is None,
            )
            if claim == "full":
                full = True
            elif claim == "placed":
                placed.append(instance_id)
        if placed:
            reply = messages.Accepted(node=self._node, zone=self._zone, instance_ids=tuple(placed))
            return _Decision(message, reply, reply.instance_ids)
        if fault is not None:
            return _Decision(message, fault)
        if full:
            return _Decision(message, self._full(request))
        why = "these instances have ended on this node, or it holds them for another request"
        return _Decision(message, self._reject("node_fault", why))

    def _guest(
        self,
        wanted: messages.InstanceToLaunch,
        headers: messages.LaunchHeaders,
        request: messages.LaunchRequest,
        instance_type: InstanceType,
    ) -> Guest:
        addresses = self._driver.addresses(wanted.instance_id)
        root_disk_gib = _root_disk_gib(request)
        return Guest(
            instance_id=wanted.instance_id,
            launch_id=headers.launch_id,
            attempt=headers.attempt,
            launch_index=wanted.launch_index,
            account_id=request.account_id,
            instance_type=request.instance_type,
            vcpu=instance_type.vcpu,
            memory_mib=instance_type.memory_mib,
            gpus=instance_type.gpus,
            image_id=request.image_id,
            user_data_base64=request.user_data_base64,
            key_name=request.key_name,
            shutdown_behavior=request.shutdown_behavior,
            tags=request.tags,
            root_disk_gib=root_disk_gib,
            overhead_mib=self._served_types.overhead_mib(request.instance_type),
            private_ip_address=addresses.private_ip if addresses else None,
            mac_address=addresses.mac if addresses else None,
            disk_gib=self._served_types.disk_gib(root_disk_gib),
        )

    def _full(self, request: messages.LaunchRequest) -> messages.Rejected:
        asked_gib = self._served_types.disk_gib(_root_disk_gib(request))
        if asked_gib > self._served_types.disk_gib(None):
            # There may be room for others of its type, so it would come back at once, and again.
            why = f"node {self._node} has no room for one with a root disk of {asked_gib} GiB"
            return self._reject("node_fault", why)
        return self._reject("full", "")

    def _fault(
        self, request: messages.LaunchRequest, instance_type: InstanceType
    ) -> messages.Rejected | None:
        """Return why nothing new of it may be taken on; what is here already stays promised."""
        try:
            self._driver.check(request, instance_type)
        except ClientFault as fault:
            return messages.Rejected(
                node=self._node, reason="client_fault", code=fault.code, message=str(fault)
            )
        except NodeFault as fault:
            return self._reject("node_fault", str(fault))
        return None

    def _reject(
        self,
        reason: Literal["full", "node_fault"],
        message: str,
    ) -> messages.Rejected:
        return messages.Rejected(node=self._node, reason=reason, message=message)


def _root_disk_gib(request: messages.LaunchRequest) -> int | None:
    return None if request.root_disk_gib is msgspec.UNSET else request.root_disk_gib
