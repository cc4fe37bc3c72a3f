"""Answers launch requests: reserve, journal, reply, and only then boot.

Requests that wait are answered in one batch, so that a burst shares one journal write.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from fleetcast import messages
from fleetcast.agent.drivers import Guest
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.agent.request import Request
from fleetcast.errors import InvalidMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fleetcast.agent.instances import Instances
    from fleetcast.agent.ledger import Ledger
    from fleetcast.instance_types import InstanceType

_log = logging.getLogger(__name__)

MAX_BATCH: Final = 256


class _Decision(msgspec.Struct):
    """What becomes of one request.

    reply: None when nobody waits for one. new_ids: what is to boot once it is promised.
    """

    message: Request
    reply: messages.LaunchReply | None
    new_ids: tuple[str, ...] = ()


class LaunchDesk:
    """Decides on launch requests, in the order in which they came.

    instance_types: those that this node serves, by name. now_ms: epoch milliseconds.
    capacity_changed: called after every batch, since each request has used up a token.
    """

    def __init__(
        self,
        *,
        node: str,
        zone: str | None,
        instance_types: Mapping[str, InstanceType],
        instances: Instances,
        ledger: Ledger,
        now_ms: Callable[[], int],
        capacity_changed: Callable[[], None],
    ) -> None:
        self._node = node
        self._zone = zone
        self._instance_types = instance_types
        self._instances = instances
        self._ledger = ledger
        self._now_ms = now_ms
        self._capacity_changed = capacity_changed
        self._inbox: asyncio.Queue[Request] = asyncio.Queue()

    def deliver(self, message: Request) -> None:
        """Take a request in. Never blocks: NATS callbacks call it."""
        self._inbox.put_nowait(message)

    async def run(self) -> None:
        """Answer requests until cancelled."""
        while True:
            batch = [await self._inbox.get()]
            while len(batch) < MAX_BATCH and not self._inbox.empty():
                batch.append(self._inbox.get_nowait())
            try:
                await self._answer(batch)
            except Exception:  # noqa: BLE001 - one bad batch must not end the desk
                _log.exception("launch batch failed", extra={"requests": len(batch)})
            finally:
                for _ in batch:
                    self._inbox.task_done()
                self._capacity_changed()

    async def settled(self) -> None:
        """Wait until everything that was delivered has been answered."""
        await self._inbox.join()

    async def _answer(self, batch: Sequence[Request]) -> None:
        decisions = [self._decide(message) for message in batch]
        try:
            # Journal before replying: after ACCEPT the caller may never ask again.
            await self._instances.promise()
        except JournalUnwritable as problem:
            decisions = self._leave(problem, decisions)
        for decision in decisions:
            await self._respond(decision)
        self._instances.boot(one for decision in decisions for one in decision.new_ids)

    def _leave(self, problem: JournalUnwritable, decisions: Sequence[_Decision]) -> list[_Decision]:
        _log.critical("journal unwritable: taking no more launches", extra={"why": str(problem)})
        self._ledger.close(f"journal unwritable: {problem}")
        refusal = self._reject("node_fault", str(problem))
        # Also the repeats of what this batch failed to promise: an ACCEPT is never taken back.
        return [
            _Decision(one.message, refusal) if isinstance(one.reply, messages.Accepted) else one
            for one in decisions
        ]

    async def _respond(self, decision: _Decision) -> None:
        if decision.reply is None:
            return
        try:
            await decision.message.respond(messages.encode(decision.reply))
        except Exception:  # noqa: BLE001 - whatever its headers or the connection did: one answer lost
            # What was promised is launched all the same: the requester will look for it.
            _log.exception("launch request not answered")

    def _decide(self, message: Request) -> _Decision:
        if not message.reply:
            _log.warning("launch request that nobody waits for dropped")
            return _Decision(message, None)
        try:
            headers = messages.LaunchHeaders.decode(message.headers)
            request = messages.decode(message.data, messages.LaunchRequest)
        except InvalidMessage as problem:
            _log.warning("launch request not understood", extra={"why": str(problem)})
            return _Decision(message, self._reject("node_fault", str(problem)))
        if headers.expires_at_ms <= self._now_ms():
            # The caller has given up and may be launching elsewhere by now.
            _log.info("expired launch request dropped", extra={"launch": headers.launch_id})
            return _Decision(message, None)
        decision = self._place(message, headers, request)
        _log.info(
            "launch request decided",
            extra={
                "launch": headers.launch_id,
                "attempt": headers.attempt,
                "instance_type": request.instance_type,
                "asked": len(request.instances),
                "launched": len(decision.new_ids),
                "reply": type(decision.reply).__name__,
            },
        )
        return decision

    def _place(
        self,
        message: Request,
        headers: messages.LaunchHeaders,
        request: messages.LaunchRequest,
    ) -> _Decision:
        """Reserve what fits, in the order asked; what is already held stays as it is."""
        instance_type = self._instance_types.get(request.instance_type)
        if instance_type is None:
            why = f"node {self._node} doesn't serve {request.instance_type}"
            return _Decision(message, self._reject("node_fault", why))
        placed: list[str] = []
        new_ids: list[str] = []
        full = False
        wanted_by_id = {wanted.instance_id: wanted for wanted in request.instances}
        for instance_id, wanted in wanted_by_id.items():
            if self._already_holds(instance_id, headers):
                placed.append(instance_id)
            elif self._instances.get(instance_id) is not None:
                continue  # ended here, or held otherwise: never launched again
            elif full or not self._instances.reserve(
                _guest(wanted, headers, request, instance_type)
            ):
                full = True
            else:
                placed.append(instance_id)
                new_ids.append(instance_id)
        if placed:
            reply = messages.Accepted(node=self._node, zone=self._zone, instance_ids=tuple(placed))
            return _Decision(message, reply, tuple(new_ids))
        if full:
            return _Decision(message, self._reject("full", ""))
        why = "these instances have ended on this node, or it holds them for another request"
        return _Decision(message, self._reject("node_fault", why))

    def _already_holds(self, instance_id: str, headers: messages.LaunchHeaders) -> bool:
        """Say whether a repeated request finds its instance here, and take its attempt over."""
        entry = self._instances.get(instance_id)
        if (
            entry is None
            or entry.state in {"shutting-down", "terminated"}
            or entry.guest.launch_id != headers.launch_id
            or entry.guest.attempt > headers.attempt
        ):
            return False
        if entry.guest.attempt < headers.attempt:
            self._instances.raise_attempt(instance_id, headers.attempt)
        return True

    def _reject(
        self,
        reason: Literal["full", "node_fault", "client_fault"],
        message: str,
    ) -> messages.Rejected:
        return messages.Rejected(node=self._node, reason=reason, message=message)


def _guest(
    wanted: messages.InstanceToLaunch,
    headers: messages.LaunchHeaders,
    request: messages.LaunchRequest,
    instance_type: InstanceType,
) -> Guest:
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
    )
