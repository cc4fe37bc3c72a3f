"""Which GPUs guests can be given, read from trees as sysfs lays them out, and who has which.

No GPU was there to try it with: what is simulated here is the kernel's side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.agent.capacity.gpu_assignments import GpuAssignments
from fleetcast.agent.capacity.gpus import NO_GPUS, GpuPool, find_gpus, gpus_for_guests, pool_of
from fleetcast.agent.capacity.settings import GpuSettings
from fleetcast.agent.drivers import BootFailed
from fleetcast.instance_types import InstanceType, ec2_catalogue
from tests.agent_parts import a_guest, instance_id
from tests.pci_tree import AUDIO, BRIDGE, T4, VGA, PciTree

if TYPE_CHECKING:
    from pathlib import Path

A, B, C = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> PciTree:
    return PciTree(tmp_path)


def _problems(tree: PciTree) -> list[str]:
    return [gpu.problem for gpu in find_gpus(tree.root)]


def test_a_host_without_gpus_has_none(tmp_path: Path, tree: PciTree) -> None:
    tree.add(A, VGA, vendor="0x1af4", driver="virtio-pci")
    tree.add(B, AUDIO)
    assert find_gpus(tree.root) == find_gpus(tmp_path / "nothing") == ()
    assert pool_of(()) == NO_GPUS


def test_gpus_are_named_by_the_pci_id_database(tree: PciTree) -> None:
    tree.add(B, device=T4, group=2)
    tree.add(A, group=1)
    tree.add(C, vendor="0x1002", device="0x74a1", group=3)
    assert [gpu[:3] for gpu in find_gpus(tree.root)] == [
        (A, "NVIDIA", "AD104GL [L4]"),
        (B, "NVIDIA", "TU104GL [Tesla T4]"),
        (C, "AMD", "Aqua Vanjaram [Instinct MI300X]"),
    ]
    assert _problems(tree) == ["", "", ""]


def test_a_gpu_of_the_hosts_own_is_not_given_away(tree: PciTree) -> None:
    tree.add(A, driver="nvidia", group=1)
    tree.add(B, driver=None, group=2)
    own, unbound = _problems(tree)
    assert f"driverctl set-override {A} vfio-pci" in own
    assert "nvidia" in own
    assert "no driver" in unbound


def test_without_an_iommu_nothing_is_given(tree: PciTree) -> None:
    tree.add(A)
    (problem,) = _problems(tree)
    assert "IOMMU is off" in problem


def test_what_shares_its_iommu_group_must_be_free_too(tree: PciTree) -> None:
    tree.add(A, group=1)
    tree.add("0000:00:01.0", BRIDGE, driver="pcieport", group=1)
    tree.add("0000:01:00.1", AUDIO, driver=None, group=1)
    tree.add(B, group=2)
    tree.add("0000:02:00.1", AUDIO, driver="snd_hda_intel", group=2)
    first, second = _problems(tree)
    assert not first
    assert "0000:02:00.1 is in its IOMMU group" in second
    assert "snd_hda_intel" in second


def test_of_several_models_the_one_of_which_there_are_most_is_given(
    tree: PciTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.add(A, device=T4, group=1)
    tree.add(B, group=2)
    tree.add(C, group=3)
    assert gpus_for_guests(GpuSettings(passthrough=True), tree.root).addresses == (B, C)
    assert A in str(vars(caplog.records[0]))


def test_no_gpu_is_given_unless_it_is_said(tree: PciTree) -> None:
    tree.add(A, group=1)
    assert gpus_for_guests(GpuSettings(), tree.root) == NO_GPUS


def test_a_model_that_the_database_does_not_know_can_be_said(tree: PciTree) -> None:
    tree.add(A, device="0x9999", group=1)
    g6 = ec2_catalogue().lookup("g6.xlarge")
    assert not gpus_for_guests(GpuSettings(passthrough=True), tree.root).serves(g6)
    assert gpus_for_guests(GpuSettings(passthrough=True, model="L4"), tree.root).serves(g6)


@pytest.mark.parametrize(
    ("model", "served", "not_served"),
    [
        ("AD104GL [L4]", {"g6", "g6f", "gr6", "gr6f"}, {"g6e", "g5", "g4dn", "p5"}),
        ("TU104GL [Tesla T4]", {"g4dn"}, {"g6", "g5g"}),
        ("GA102GL [A10G]", {"g5"}, {"p4d"}),
        ("GH100 [H100 SXM5 80GB]", {"p5"}, {"p5e", "p5en"}),
        ("GB202GL [RTX PRO 6000 Blackwell Server Edition]", {"g7e"}, {"g7"}),
    ],
)
def test_a_model_serves_the_types_of_that_model_only(
    model: str, served: set[str], not_served: set[str]
) -> None:
    pool = GpuPool("NVIDIA", model, (A,))
    families = {one.family for one in ec2_catalogue() if one.gpus and pool.serves(one)}
    assert served <= families
    assert not not_served & families
    own = InstanceType(name="lab.gpu", vcpu=4, memory_mib=4_096, gpus=1)
    assert pool.serves(own)


# --- who has which -------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(["assign", "give back"]), st.integers(0, 3), st.integers(0, 3)),
        max_size=30,
    )
)
def test_no_gpu_is_ever_two_guests(steps: list[tuple[str, int, int]]) -> None:
    assignments = GpuAssignments((A, B, C))
    held: dict[int, tuple[str, ...]] = {}
    for what, number, count in steps:
        if what == "give back":
            assignments.give_back(instance_id(number))
            held.pop(number, None)
            continue
        free_n = 3 - sum(len(each) for other, each in held.items() if other != number)
        try:
            held[number] = assignments.assign(instance_id(number), count)
        except BootFailed:
            assert count > free_n
        else:
            assert len(held[number]) == count <= free_n
        taken = [address for each in held.values() for address in each]
        assert len(taken) == len(set(taken))


def test_asking_again_gives_the_same() -> None:
    assignments = GpuAssignments((A, B, C))
    first = assignments.assign(instance_id(1), 2)
    assert assignments.assign(instance_id(1), 2) == first


def test_what_an_adopted_guest_has_is_not_given_again() -> None:
    assignments = GpuAssignments((A, B))
    assignments.adopt(a_guest(1, gpus=1, gpu_addresses=(A,)))
    assert assignments.assign(instance_id(2), 1) == (B,)
    with pytest.raises(BootFailed, match="1 GPUs are needed, and 0 are free"):
        assignments.assign(instance_id(3), 1)
