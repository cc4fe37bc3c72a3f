"""What a region's nodes report, as readings; silence and ignorance never look like idleness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.capacity import Resources
from fleetcast.messages import CapacityReply, NodeLoad
from fleetcast.scoring import Reading
from lambdas.score_regions.collection import SignalKey
from lambdas.score_regions.signals.fleet_telemetry import (
    FLEET_SIGNALS,
    FORGET_AFTER_S,
    TOTAL_GPUS,
    TOTAL_VCPUS,
    fleet_readings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REGION: Final = "us-east-1"
TYPE: Final = "t3.medium"
NOW_S: Final = 1_780_000_000.0
ROUNDING: Final = 1e-9


def a_node(
    name: str = "n1",
    *,
    vcpu: int = 8,
    used_vcpu: int = 0,
    gpus: int = 0,
    free_gpus: int | None = None,
    room: int = 0,
    closed: str | None = None,
    load: NodeLoad | msgspec.UnsetType = msgspec.UNSET,
) -> CapacityReply:
    return CapacityReply(
        node=name,
        zone=None,
        closed=closed,
        total=Resources(vcpu=vcpu, memory_mib=32_768, gpus=gpus),
        free=Resources(
            vcpu=vcpu - used_vcpu,
            memory_mib=32_768,
            gpus=gpus if free_gpus is None else free_gpus,
        ),
        room={TYPE: room} if room else {},
        armed={},
        load=load,
    )


def read(
    nodes: Sequence[CapacityReply],
    known: Mapping[SignalKey, Reading] | None = None,
    *,
    now_s: float = NOW_S,
) -> dict[str, Reading]:
    """The readings by signal."""
    readings = fleet_readings(nodes, REGION, [TYPE], known=known or {}, now_s=now_s)
    return {key.signal: reading for key, reading in readings.items()}


def remembered(readings: Mapping[str, Reading]) -> dict[SignalKey, Reading]:
    return {SignalKey(name, REGION): readings[name] for name in (TOTAL_VCPUS, TOTAL_GPUS)}


def seen(value: float) -> Reading:
    return Reading.of(value, observed_at_s=NOW_S)


BUSY = NodeLoad(cpu_utilization=90, gpu_utilization=80, running_instances=3)
IDLE = NodeLoad(cpu_utilization=10, gpu_utilization=0, running_instances=1)


def test_percentages_are_averaged_by_size_and_counts_are_summed() -> None:
    nodes = [
        a_node("n1", vcpu=24, used_vcpu=3, gpus=6, free_gpus=2, room=10, load=BUSY),
        a_node("n2", vcpu=8, used_vcpu=1, gpus=2, room=3, load=IDLE),
    ]
    queue = Reading(
        value=0,
        status="not_offered",
        observed_at_s=NOW_S,
        error="launches to the region's own nodes are not queued",
    )
    assert read(nodes) == {
        "queue_depth": queue,
        "running_jobs": seen(4),
        "gpu_utilization": seen(60),
        "cpu_utilization": seen(70),
        "total_vcpus": seen(32),
        "total_gpus": seen(8),
        "free_gpus": seen(4),
        "fleet_capacity": seen(13),
    }


def test_a_region_without_gpus_has_no_utilisation_of_them_which_is_no_failure() -> None:
    assert read([a_node(load=IDLE)])["gpu_utilization"].status == "not_offered"


def test_gpus_that_nobody_measures_are_missing() -> None:
    nodes = [a_node(gpus=8, load=NodeLoad(cpu_utilization=1, running_instances=0))]
    assert read(nodes)["gpu_utilization"].status == "missing"


def test_what_one_node_does_not_measure_is_fully_used() -> None:
    nodes = [a_node("n1", gpus=1, load=IDLE), a_node("n2", gpus=1, used_vcpu=5)]
    readings = read(nodes)
    assert readings["gpu_utilization"] == seen(50)
    assert readings["cpu_utilization"] == seen(55)
    assert readings["running_jobs"] == seen(6)


def test_a_closed_node_still_works_but_has_nothing_to_give() -> None:
    readings = read([a_node(gpus=2, closed="stopping", load=BUSY)])
    assert readings["running_jobs"] == seen(3)
    assert readings["free_gpus"] == readings["fleet_capacity"] == seen(0)
    assert readings["total_gpus"] == seen(2)


def test_a_silent_node_counts_as_full_until_it_is_forgotten() -> None:
    both = [a_node("n1", gpus=1, load=IDLE), a_node("n2", gpus=1, load=IDLE)]
    known = remembered(read(both))

    soon = read(both[:1], known, now_s=NOW_S + FORGET_AFTER_S - 1)
    assert soon["running_jobs"].value == 1 + 8
    assert soon["gpu_utilization"].value == 50
    assert soon["cpu_utilization"].value == 55
    assert soon["total_gpus"] == Reading(
        value=2, status="stale", observed_at_s=NOW_S, error="1 of 2 are on nodes that don't answer"
    )

    later = read(both[:1], known, now_s=NOW_S + FORGET_AFTER_S)
    assert later["running_jobs"].value == 1
    assert later["total_gpus"].value == 1
    assert later["total_gpus"].status == "ok"


def test_a_region_that_grows_is_known_at_once() -> None:
    known = remembered(read([a_node("n1", load=IDLE)]))
    readings = read([a_node("n1", load=IDLE), a_node("n2", load=IDLE)], known)
    assert readings["total_vcpus"] == seen(16)


def test_without_an_answer_there_is_no_reading() -> None:
    assert read([]) == {}


# --- I9, within the signal -----------------------------------------------------------------


@st.composite
def loaded_nodes(draw: st.DrawFn) -> list[CapacityReply]:
    percent = st.none() | st.floats(0, 100)
    nodes = []
    for number in range(draw(st.integers(1, 6))):
        vcpu = draw(st.integers(1, 192))
        used = draw(st.integers(0, vcpu))
        gpus = draw(st.sampled_from([0, 0, 1, 8]))
        load = NodeLoad(
            cpu_utilization=draw(percent),
            gpu_utilization=draw(percent),
            running_instances=draw(st.none() | st.integers(0, used)),
        )
        nodes.append(
            a_node(
                f"n{number}",
                vcpu=vcpu,
                used_vcpu=used,
                gpus=gpus,
                free_gpus=draw(st.integers(0, gpus)),
                room=draw(st.integers(0, vcpu)),
                load=load if draw(st.booleans()) else msgspec.UNSET,
            )
        )
    return nodes


def assert_no_better(worse: Mapping[str, Reading], than: Mapping[str, Reading]) -> None:
    """Each signal is missing, or no better."""
    for signal in ("queue_depth", "running_jobs", "gpu_utilization", "cpu_utilization"):
        before, after = than[signal], worse[signal]
        if after.status == "missing":
            continue
        assert after.status == before.status
        if before.value is not None:
            assert after.value is not None
            assert after.value >= before.value - ROUNDING
    for signal in ("fleet_capacity", "free_gpus"):
        before, after = than[signal], worse[signal]
        assert before.value is not None
        assert after.value is not None
        assert after.value <= before.value


@given(loaded_nodes(), st.data())
def test_no_region_looks_better_for_nodes_that_fall_silent(
    nodes: list[CapacityReply], data: st.DataObject
) -> None:
    whole = read(nodes)
    heard = data.draw(st.lists(st.sampled_from(nodes), min_size=1, unique_by=lambda one: one.node))
    assert_no_better(read(heard, remembered(whole)), whole)


@given(loaded_nodes(), st.data())
def test_no_region_looks_better_for_nodes_that_cannot_measure(
    nodes: list[CapacityReply], data: st.DataObject
) -> None:
    blind = data.draw(st.sets(st.sampled_from([node.node for node in nodes])))
    less = [
        msgspec.structs.replace(node, load=msgspec.UNSET) if node.node in blind else node
        for node in nodes
    ]
    assert_no_better(read(less), read(nodes))


@pytest.mark.parametrize("now_s", [NOW_S, NOW_S + FORGET_AFTER_S])
@given(loaded_nodes())
def test_a_region_whose_nodes_all_answer_has_every_reading(
    now_s: float, nodes: list[CapacityReply]
) -> None:
    readings = read(nodes, remembered(read(nodes)), now_s=now_s)
    assert readings.keys() == {*FLEET_SIGNALS, "fleet_capacity"}
    for signal in ("gpu_utilization", "cpu_utilization"):
        value = readings[signal].value
        assert value is None or -ROUNDING <= value <= 100 + ROUNDING
