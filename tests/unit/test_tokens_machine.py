"""Ledger, holds and tokens under every interleaving of requests, wires, journal, boots and losses.

The real desk, ledger, journal, instances, holds and tokens on a simulated NATS: the machine decides
when each command and each message arrives, when the disk answers, when a lease ends, and when a
connection or a whole agent dies.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleetcast import messages
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.agent.tokens import SPARE_TOKENS, SURPLUS_FACTOR
from fleetcast.subjects import HEADER_ATTEMPT, HEADER_EXPIRES_AT, launch_subject
from tests.agent_parts import NOW_MS, Delivered, launch_headers, launch_request
from tests.simulated_nats import SimulatedServer
from tests.stepped_agent import TYPES, Host

if TYPE_CHECKING:
    from random import Random


LEASE_MS: Final = 15_000


def _once_in(times: int) -> st.SearchStrategy[bool]:
    return st.sampled_from([False] * (times - 1) + [True])


def _order(report: messages.InstanceReport, attempt: int) -> messages.AttemptRequest:
    return messages.AttemptRequest(
        launch_id=report.launch_id, attempt=attempt, instance_ids=(report.instance_id,)
    )


async def _lapse(host: Host) -> None:
    with contextlib.suppress(JournalUnwritable):
        await host.holds.lapse()


class Machine(RuleBasedStateMachine):
    """See the module."""

    @initialize(
        vcpus=st.lists(st.sampled_from([2, 5, 8]), min_size=1, max_size=2),
        random=st.randoms(use_true_random=False),
    )
    def start(self, vcpus: list[int], random: Random) -> None:
        self.server = SimulatedServer(random.randrange)
        self.hosts = [Host(self.server, vcpu) for vcpu in vcpus]
        self.requests: list[Delivered] = []
        self.expired: list[Delivered] = []
        # They use up a token and take no room.
        self.roomless: list[Delivered] = []
        self.last_id = 0
        self.now_ms = NOW_MS
        # The highest attempt under which each host has confirmed to have given an instance up.
        self.given_up: dict[tuple[int, str], int] = {}
        self.settle()

    def teardown(self) -> None:
        hosts = getattr(self, "hosts", [])
        try:
            if hosts:
                self.settle()
        finally:
            for host in hosts:
                host.close()

    def host(self, at: int) -> Host:
        return self.hosts[at % len(self.hosts)]

    # --- requests --------------------------------------------------------------------------

    def _send(self, data: bytes, headers: dict[str, str], subject: str) -> Delivered:
        request = Delivered(data, headers, subject)
        quiet = [host for host in self.hosts if self._is_quiet(host)]
        if self.server.publish(request):
            self.requests.append(request)
        else:
            # Nobody is refused while a node that has settled has room.
            assert not any(host.room()[subject] for host in quiet)
        return request

    @rule(
        name=st.sampled_from(sorted(TYPES)),
        count=st.integers(1, 3),
        expired=_once_in(4),
        held=st.booleans(),
    )
    def request(self, name: str, count: int, *, expired: bool, held: bool = False) -> None:
        numbers = range(self.last_id + 1, self.last_id + 1 + count)
        self.last_id += count
        expires_at_ms = self.now_ms + (0 if expired else 1000)
        request = self._send(
            launch_request(*numbers, instance_type=name, hold_ms=LEASE_MS if held else None),
            launch_headers(numbers[0], expires_at_ms=expires_at_ms),
            launch_subject("r", name),
        )
        if expired:
            self.expired.append(request)
            self.roomless.append(request)

    @rule(name=st.sampled_from(sorted(TYPES)), count=st.integers(2, 6))
    def crowd(self, name: str, count: int) -> None:
        for _ in range(count):
            self.request(name=name, count=1, expired=False)

    @precondition(lambda self: self.requests)
    @rule(at=st.integers(0, 1000), attempt=st.integers(1, 3))
    def repeat(self, at: int, attempt: int) -> None:
        before = self.requests[at % len(self.requests)]
        if before not in self.expired and before.headers:
            headers = before.headers | {
                HEADER_ATTEMPT: str(attempt),
                HEADER_EXPIRES_AT: str(self.now_ms + 1000),
            }
            self.roomless.append(self._send(before.data, headers, before.subject))

    @rule(name=st.sampled_from(sorted(TYPES)))
    def send_nonsense(self, name: str) -> None:
        self.roomless.append(self._send(b"nonsense", {}, launch_subject("r", name)))

    # --- orders ----------------------------------------------------------------------------

    @rule(
        at=st.integers(0, 1),
        which=st.integers(0, 9),
        what=st.sampled_from(["terminate", "stop", "start"]),
    )
    def its_owner_asks(self, at: int, which: int, what: str) -> None:
        host = self.host(at)

        async def ask(instance_id: str) -> None:
            with contextlib.suppress(JournalUnwritable):
                await getattr(host.owner_actions, what)([instance_id])

        if known := self._known_to(host):
            host.begin(ask(known[-1 - which % len(known)].instance_id))

    @rule(at=st.integers(0, 1), which=st.integers(0, 9), attempt=st.integers(1, 3))
    def commit(self, at: int, which: int, attempt: int) -> None:
        host = self.host(at)

        async def commit(order: messages.AttemptRequest) -> None:
            with contextlib.suppress(JournalUnwritable):
                for report in await host.holds.commit(order):
                    entry = host.instances.get(report.instance_id)
                    assert entry is not None
                    assert entry.guest.attempt >= attempt
                    assert not entry.is_held

        if known := self._known_to(host):
            host.begin(commit(_order(known[-1 - which % len(known)], attempt)))

    @rule(at=st.integers(0, 1), which=st.integers(0, 9), attempt=st.integers(1, 3))
    def give_up(self, at: int, which: int, attempt: int) -> None:
        """Order the host to give up what any of the hosts knows, or will only hear of later."""
        known = [one for host in self.hosts for one in self._known_to(host)]
        host, key = self.host(at), at % len(self.hosts)

        async def give_up(order: messages.AttemptRequest) -> None:
            with contextlib.suppress(JournalUnwritable):
                await host.holds.give_up(order, "test")
                for instance_id in order.instance_ids:
                    before = self.given_up.get((key, instance_id), 0)
                    self.given_up[key, instance_id] = max(before, attempt)

        if known:
            host.begin(give_up(_order(known[-1 - which % len(known)], attempt)))

    @rule(really=_once_in(4))
    def leases_end(self, *, really: bool) -> None:
        if not really:
            return
        self.now_ms += LEASE_MS
        for host in self.hosts:
            host.now_ms = self.now_ms
            host.begin(_lapse(host))

    def _known_to(self, host: Host) -> list[messages.InstanceReport]:
        return list(host.instances.reports())

    # --- what happens ----------------------------------------------------------------------

    @rule(
        choices=st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, 100), _once_in(12)),
            min_size=1,
            max_size=30,
        )
    )
    def things_happen(self, choices: list[tuple[int, int, bool]]) -> None:
        """Let what is under way go on, in any order across wires, disk and driver."""
        for at, which, fails in choices:
            self.host(at).step(which, fails=fails)

    @rule(
        at=st.integers(0, 1),
        which=st.integers(0, 9),
        how=st.sampled_from(["powered off", "crashed"]),
    )
    def a_guest_ends(self, at: int, which: int, how: Literal["powered off", "crashed"]) -> None:
        host = self.host(at)
        if running := sorted(host.driver.running):
            host.driver.end(running[which % len(running)], how)
            host.turn()

    @rule(at=st.integers(0, 1), closes=_once_in(4))
    def cordon(self, at: int, *, closes: bool) -> None:
        host = self.host(at)
        if closes:
            host.ledger.close("cordoned")
        else:
            host.ledger.reopen("cordoned")
        host.changed.set()
        host.turn()

    @rule(at=st.integers(0, 1), really=_once_in(5))
    def lose_connection(self, at: int, *, really: bool) -> None:
        host = self.host(at)
        if really and host.connection.connected:
            host.connection.lose()
            host.turn()

    @rule(at=st.integers(0, 1))
    def reconnect(self, at: int) -> None:
        if not self.host(at).connection.connected:
            self.host(at).reconnect()

    @rule(at=st.integers(0, 1), really=_once_in(8))
    def crash_and_restart(self, at: int, *, really: bool) -> None:
        if not really:
            return
        host = self.host(at)
        promised = self._promised_by(host)
        host.kill()
        host.start()
        host.begin(_lapse(host))
        for one in promised:
            assert host.instances.get(one) is not None

    @rule(at=st.integers(0, 1), really=_once_in(16))
    def leave(self, at: int, *, really: bool) -> None:
        host = self.host(at)
        if really and host.connection.connected:
            host.begin(host.leave())

    # --- what holds ------------------------------------------------------------------------

    def _is_quiet(self, host: Host) -> bool:
        return (
            host.connection.connected
            and not host.connection.has_commands()
            and not host.connection.has_messages()
            and not host.changed.is_set()
            and not host.disk.waiting
            and not host.waiting
        )

    def _promised_by(self, host: Host) -> set[str]:
        """Return what requesters were told that this host runs."""
        here = {report.instance_id for report in self._known_to(host)}
        return {
            one
            for request in self.requests
            for answer in request.answers
            if isinstance(reply := messages.decode_launch_reply(answer), messages.Accepted)
            for one in reply.instance_ids
            if one in here
        }

    @rule()
    def settle(self) -> None:
        for host in self.hosts:
            if not host.connection.connected:
                host.reconnect()
            while host.step():
                pass
        for host in self.hosts:
            assert self._is_quiet(host)
            self._limits_are_right(host)
            self._the_books_are_right(host)
        lost = [request for host in self.hosts for request in host.lost_requests()]
        for request in self.requests:
            if not any(request is one for one in lost):
                assert len(request.answers) == 1

    def _limits_are_right(self, host: Host) -> None:
        """Hold the server to what the room asks for: right away when there is none."""
        tokens: dict[str, list[int]] = {}
        for interest in host.connection.interests.values():
            assert interest.limit is not None
            tokens.setdefault(interest.subject, []).append(interest.limit - interest.delivered)
        for subject, room in host.room().items():
            if not room:
                assert subject not in tokens
                continue
            (at_server,) = tokens[subject]
            needed = room + SPARE_TOKENS
            assert needed <= at_server <= needed * SURPLUS_FACTOR
            assert host.tokens.remaining()[subject] == at_server

    def _the_books_are_right(self, host: Host) -> None:
        using: set[str] = set()
        ending: set[str] = set()
        waiting: set[str] = set()
        for entry in host.instances:
            if entry.state not in {"stopped", "terminated"}:
                using.add(entry.guest.instance_id)
            if entry.state in {"stopping", "shutting-down"}:
                ending.add(entry.guest.instance_id)
            if entry.is_held:
                waiting.add(entry.guest.instance_id)
        # One whose end could not be written uses nothing any more after a restart.
        assert using - ending <= set(host.ledger) <= using
        if not host.disk.has_failed:  # what was not written is done again by a repeat or a restart
            assert not ending
            assert set(host.driver.running) == using - waiting
        for (at, instance_id), attempt in self.given_up.items():
            known = host.instances.get(instance_id)
            if self.hosts[at] is host and known and known.guest.attempt <= attempt:
                assert known.has_ended
                assert instance_id not in host.driver.running or host.disk.has_failed

    @invariant()
    def no_host_holds_more_than_it_has(self) -> None:
        for host in self.hosts:
            assert host.ledger.free.vcpu >= 0
            assert host.ledger.free.memory_mib >= 0
            assert sum(guest.vcpu for guest in host.driver.running.values()) <= host.total.vcpu

    @invariant()
    def nothing_runs_that_waits_for_its_commit(self) -> None:
        for host in self.hosts:
            for entry in host.instances:
                assert not entry.is_held or entry.guest.instance_id not in host.driver.running

    @invariant()
    def nobody_is_answered_twice_or_late(self) -> None:
        assert all(len(request.answers) <= 1 for request in self.requests)
        for request in self.expired:
            for answer in request.answers:
                assert isinstance(messages.decode_launch_reply(answer), messages.Rejected)

    @invariant()
    def nothing_is_delivered_to_a_subscription_that_was_forgotten(self) -> None:
        for host in self.hosts:
            assert not host.connection.swallowed
            assert not host.swallowed

    @invariant()
    def what_is_promised_covers_the_room_at_every_moment(self) -> None:
        for host in self.hosts:
            if host.changed.is_set() or not host.connection.connected:
                continue  # the next pass is due
            remaining = host.tokens.remaining()
            for subject, room in host.room().items():
                waiting = [one for one in host.waiting if one.subject == subject]
                roomless = sum(any(one is each for each in self.roomless) for one in waiting)
                # Those that take no room are covered by the spare tokens, within reason.
                in_hand = len(waiting) - min(roomless, SPARE_TOKENS)
                assert remaining.get(subject, 0) + in_hand >= room

    @invariant()
    def what_remains_is_at_the_server_or_on_its_way(self) -> None:
        for host in self.hosts:
            connection = host.connection
            for armed in host.subscriptions.standing:
                interest = connection.interests.get(armed.sid)
                if interest and interest.limit and not armed.retiring:
                    at_server = interest.limit - interest.delivered
                    assert at_server + connection.on_its_way(armed.sid) == armed.remaining


Machine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTokens = Machine.TestCase
