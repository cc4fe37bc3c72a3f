"""A NATS server and client in memory whose every step the test decides.

What matters of NATS to capacity tokens, and exactly that: commands and messages of one connection
arrive in order and late; the server counts the deliveries of a sid from its SUB on and removes it
after the last of UNSUB's max; one member of a queue group gets a request; no interest is told at
once; a lost connection takes its interest and everything on its way with it, and the client
renews its SUBs without their limits, as nats-py does. The contract test holds it to the real one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.agent_parts import Delivered


@dataclass
class Interest:
    """One sid as the server holds it. limit: None until UNSUB max has arrived."""

    subject: str
    delivered: int = 0
    limit: int | None = None


@dataclass(frozen=True)
class _Sub:
    sid: int
    subject: str


@dataclass(frozen=True)
class _Unsub:
    sid: int
    limit: int = 0


@dataclass(frozen=True)
class _Ping:
    pong: asyncio.Future[None]


@dataclass(frozen=True)
class _Message:
    sid: int
    request: Delivered


_Command: TypeAlias = _Sub | _Unsub | _Ping


class SimulatedDisconnect(Exception):
    """The connection was lost before the server answered."""


class SimulatedServer:
    """Routes requests. choose: given how many could take a request, the index of who does."""

    def __init__(self, choose: Callable[[int], int] = lambda _: 0) -> None:
        self._choose = choose
        self.connections: list[SimulatedConnection] = []

    def publish(self, request: Delivered) -> bool:
        """Send a request on its way to one subscriber. False: no responders."""
        takers = [
            (connection, sid)
            for connection in self.connections
            for sid, interest in connection.interests.items()
            if interest.subject == request.subject
        ]
        if not takers:
            return False
        connection, sid = takers[self._choose(len(takers))]
        connection.take(sid, request)
        return True


class SimulatedConnection:
    """One client with its connection; both ends of it.

    interests: what the server holds for it. swallowed: requests that arrived for a sid which the
    client had forgotten. lost: requests that were on their way when the connection went.
    """

    def __init__(self, server: SimulatedServer) -> None:
        server.connections.append(self)
        self.connected = True
        self.interests: dict[int, Interest] = {}
        self.swallowed: list[Delivered] = []
        self.lost: list[Delivered] = []
        self._subscriptions: dict[int, tuple[str, Callable[[Delivered], None]]] = {}
        self._last_sid = 0
        self._to_server: deque[_Command] = deque()
        self._to_client: deque[_Message | _Ping] = deque()
        # What the client was asked to send while it was disconnected.
        self._buffered: list[_Command] = []

    # --- the client's end ------------------------------------------------------------------

    def subscribe(self, subject: str, deliver: Callable[[Delivered], None]) -> int:
        self._last_sid += 1
        self._subscriptions[self._last_sid] = (subject, deliver)
        self._send(_Sub(self._last_sid, subject))
        return self._last_sid

    def unsubscribe(self, sid: int, limit: int = 0) -> None:
        self._send(_Unsub(sid, limit))

    async def flush(self) -> None:
        """Raises SimulatedDisconnect."""
        if not self.connected:
            raise SimulatedDisconnect
        pong = asyncio.get_running_loop().create_future()
        self._send(_Ping(pong))
        await pong

    def forget(self, sid: int) -> None:
        self._subscriptions.pop(sid, None)

    def _send(self, command: _Command) -> None:
        (self._to_server if self.connected else self._buffered).append(command)

    def client_step(self) -> None:
        """Let one thing arrive at the client."""
        match self._to_client.popleft():
            case _Ping(pong):
                if not pong.done():
                    pong.set_result(None)
            case _Message(sid, request) if sid in self._subscriptions:
                self._subscriptions[sid][1](request)
            case _Message(_, request):
                self.swallowed.append(request)

    # --- the server's end ------------------------------------------------------------------

    def server_step(self) -> None:
        """Let the server carry out one command."""
        match self._to_server.popleft():
            case _Sub(sid, subject):
                self.interests.setdefault(sid, Interest(subject))
            case _Unsub(sid, limit):
                interest = self.interests.get(sid)
                if interest and limit > interest.delivered:
                    interest.limit = limit
                else:
                    self.interests.pop(sid, None)
            case _Ping() as ping:
                self._to_client.append(ping)

    def take(self, sid: int, request: Delivered) -> None:
        interest = self.interests[sid]
        interest.delivered += 1
        if interest.delivered == interest.limit:
            del self.interests[sid]
        self._to_client.append(_Message(sid, request))

    def on_its_way(self, sid: int) -> int:
        """Count the requests for a sid that have not arrived yet."""
        return sum(isinstance(one, _Message) and one.sid == sid for one in self._to_client)

    def has_commands(self) -> bool:
        return bool(self._to_server)

    def has_messages(self) -> bool:
        return bool(self._to_client)

    # --- losing it -------------------------------------------------------------------------

    def lose(self) -> None:
        """Cut the connection."""
        self.connected = False
        self.interests.clear()
        pings = [one for one in (*self._to_server, *self._to_client) if isinstance(one, _Ping)]
        self.lost += [one.request for one in self._to_client if isinstance(one, _Message)]
        self._to_server.clear()
        self._to_client.clear()
        for ping in pings:
            if not ping.pong.done():
                ping.pong.set_exception(SimulatedDisconnect())

    def reconnect(self) -> None:
        """Connect again; the client renews what it knows and sends what it has kept."""
        self.connected = True
        self._to_server.extend(_Sub(sid, kept[0]) for sid, kept in self._subscriptions.items())
        self._to_server.extend(self._buffered)
        self._buffered.clear()


@dataclass
class SimulatedArmed:
    """As LimitedSubscription."""

    subject: str
    limit: int
    sid: int = 0
    received: int = 0
    retiring: bool = False

    @property
    def remaining(self) -> int:
        return max(self.limit - self.received, 0)


@dataclass
class SimulatedSubscriptions:
    """As NatsSubscriptions. standing: what was armed and is not forgotten."""

    connection: SimulatedConnection
    deliver: Callable[[Delivered], None]
    standing: list[SimulatedArmed] = field(default_factory=list)

    async def arm(self, subject: str, limit: int) -> SimulatedArmed:
        armed = SimulatedArmed(subject, limit)

        def count_and_hand_over(request: Delivered) -> None:
            armed.received += 1
            self.deliver(request)

        armed.sid = self.connection.subscribe(subject, count_and_hand_over)
        self.connection.unsubscribe(armed.sid, limit)
        self.standing.append(armed)
        return armed

    async def retire(self, armed: Sequence[SimulatedArmed]) -> None:
        for one in armed:
            one.retiring = True
            self.connection.unsubscribe(one.sid)
        await self.settle()
        for one in armed:
            self.connection.forget(one.sid)
            if one in self.standing:
                self.standing.remove(one)

    async def settle(self) -> None:
        await self.connection.flush()
