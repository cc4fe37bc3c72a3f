"""The books of one host: never above capacity, never given up over arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetcast.agent.capacity.ledger import Ledger
from fleetcast.capacity import Resources

_TOTAL = Resources(vcpu=8, memory_mib=32_768)
_MEDIUM = Resources(vcpu=2, memory_mib=4_096)
_LARGE = Resources(vcpu=8, memory_mib=32_768)


def test_it_admits_until_nothing_fits() -> None:
    ledger = Ledger(_TOTAL)
    assert [ledger.reserve(f"i-{number}", _MEDIUM) for number in range(5)] == [True] * 4 + [False]
    assert ledger.room(_MEDIUM) == 0


def test_a_release_makes_room_for_other_types_too() -> None:
    ledger = Ledger(_TOTAL)
    ledger.reserve("i-1", _LARGE)
    assert ledger.room(_MEDIUM) == 0
    assert ledger.release("i-1")
    assert ledger.room(_MEDIUM) == 4


def test_reserving_twice_books_once() -> None:
    ledger = Ledger(_TOTAL)
    assert ledger.reserve("i-1", _LARGE)
    assert ledger.reserve("i-1", _LARGE)
    assert ledger.release("i-1")
    assert ledger.free == _TOTAL


def test_releasing_twice_gives_back_once() -> None:
    ledger = Ledger(_TOTAL)
    ledger.reserve("i-1", _MEDIUM)
    assert [ledger.release("i-1"), ledger.release("i-1")] == [True, False]
    assert ledger.free == _TOTAL


def test_a_closed_ledger_has_room_for_nothing_but_keeps_the_books() -> None:
    ledger = Ledger(_TOTAL)
    ledger.reserve("i-1", _MEDIUM)
    ledger.close("stopping")
    assert ledger.room(_MEDIUM) == 0
    assert not ledger.reserve("i-2", _MEDIUM)
    assert ledger.reserve("i-1", _MEDIUM)
    assert ledger.release("i-1")
    assert ledger.free == _TOTAL
    assert ledger.room(_MEDIUM) == 0


def test_it_is_open_when_the_last_cause_has_gone() -> None:
    ledger = Ledger(_TOTAL)
    assert ledger.close("set aside", "three boots failed")
    assert ledger.close("stopping")
    assert not ledger.close("stopping")
    seen = [ledger.closed]
    for cause in ("stopping", "set aside", "set aside"):
        ledger.reopen(cause)
        seen.append(ledger.closed)
    both, one = "set aside: three boots failed; stopping", "set aside: three boots failed"
    assert seen == [both, one, None, None]
    assert ledger.room(_MEDIUM) == 4


def test_an_adopted_guest_is_booked_even_if_it_does_not_fit() -> None:
    ledger = Ledger(_TOTAL)
    ledger.adopt("i-1", _LARGE)
    ledger.adopt("i-2", _LARGE)
    assert ledger.free == Resources(vcpu=-8, memory_mib=-32_768)
    assert ledger.room(_MEDIUM) == 0
    ledger.release("i-1")
    assert ledger.room(_MEDIUM) == 0
    ledger.release("i-2")
    assert ledger.room(_MEDIUM) == 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "release"]),
            st.integers(0, 8),
            st.sampled_from([_MEDIUM, _LARGE]),
        ),
        max_size=40,
    )
)
def test_no_sequence_holds_more_than_the_host_has(
    steps: list[tuple[str, int, Resources]],
) -> None:
    ledger = Ledger(_TOTAL)
    held: dict[str, Resources] = {}
    for what, number, need in steps:
        name = f"i-{number}"
        if what == "release":
            assert ledger.release(name) == (held.pop(name, None) is not None)
        elif ledger.reserve(name, need):
            held.setdefault(name, need)
        assert ledger.free.vcpu >= 0
        assert ledger.free.memory_mib >= 0
        assert set(ledger) == set(held)
        assert len(ledger) == len(held)
        assert ledger.free.vcpu == _TOTAL.vcpu - sum(one.vcpu for one in held.values())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "adopt", "release", "resize", "withhold"]),
            st.integers(0, 5),
        ),
        max_size=40,
    )
)
def test_what_is_free_is_what_is_neither_booked_nor_withheld(steps: list[tuple[str, int]]) -> None:
    ledger = Ledger(_TOTAL)
    withheld_mib = 0
    for what, number in steps:
        name, amount = f"i-{number}", Resources(vcpu=0, memory_mib=number * 5_000)
        match what:
            case "reserve":
                had_room = bool(ledger.room(_MEDIUM)) or name in ledger
                assert ledger.reserve(name, _MEDIUM) == had_room
            case "adopt":
                ledger.adopt(name, _LARGE)
            case "release":
                ledger.release(name)
            case "resize":
                total, before = _TOTAL - Resources(vcpu=number, memory_mib=0), ledger.total
                assert ledger.resize(total) == (total != before)
            case "withhold":
                assert ledger.withhold(amount) == (amount.memory_mib != withheld_mib)
                withheld_mib = amount.memory_mib
        booked_mib = sum(need.memory_mib for need in ledger.booked.values())
        booked_vcpu = sum(need.vcpu for need in ledger.booked.values())
        assert ledger.free.memory_mib == ledger.total.memory_mib - booked_mib - withheld_mib
        assert ledger.free.vcpu == ledger.total.vcpu - booked_vcpu
