"""The memory of refusals: what was asked in vain is asked last for some seconds."""

from __future__ import annotations

from dataclasses import dataclass

from lambdas.run_instances.refusals import REMEMBERED_S, RefusalMemory

REGIONS = ("a", "b", "c")
TYPE = "t3.medium"


@dataclass
class Clock:
    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_region_is_remembered_for_the_type_and_zone_that_it_was_asked_for() -> None:
    memory = RefusalMemory(Clock())
    memory.note("a", TYPE, None, vain=True)
    assert memory.asked_in_vain(REGIONS, TYPE, None) == {"a"}
    assert memory.asked_in_vain(REGIONS, TYPE, "a-1") == frozenset()
    assert memory.asked_in_vain(REGIONS, "t3.large", None) == frozenset()


def test_a_refusal_is_forgotten_after_some_seconds() -> None:
    clock = Clock()
    memory = RefusalMemory(clock)
    memory.note("a", TYPE, None, vain=True)
    clock.now_s += REMEMBERED_S
    assert memory.asked_in_vain(REGIONS, TYPE, None) == frozenset()


def test_an_acceptance_ends_the_memory_of_a_refusal() -> None:
    memory = RefusalMemory(Clock())
    memory.note("a", TYPE, None, vain=True)
    memory.note("a", TYPE, None, vain=False)
    assert memory.asked_in_vain(REGIONS, TYPE, None) == frozenset()


def test_ever_new_types_do_not_fill_the_memory() -> None:
    clock = Clock()
    memory = RefusalMemory(clock)
    for number in range(20_000):
        clock.now_s += 0.01
        memory.note("a", f"t3.{number}", None, vain=True)
    assert memory.asked_in_vain(["a"], "t3.19999", None) == {"a"}
    assert len(memory) < 10_000
