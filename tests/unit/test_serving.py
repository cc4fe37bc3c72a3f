"""Which types a node serves: none that its host could never hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetcast.agent.capacity.gpus import NO_GPUS, GpuPool
from fleetcast.agent.capacity.serving import host_architecture, types_to_serve
from fleetcast.agent.drivers.simulated import SimulatedDriver
from fleetcast.agent.settings import AgentSettings
from fleetcast.capacity import Resources, how_many_fit, resources_of
from fleetcast.instance_types import InstanceType, ec2_catalogue

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.capacity.served_types import ServedTypes

_LARGE = Resources(vcpu=64, memory_mib=262_144, gpus=4)
_HUGE = Resources(vcpu=10_000, memory_mib=10**9, gpus=64)
_L4 = GpuPool("NVIDIA", "AD104GL [L4]", ("0000:01:00.0",))


def _served(
    folder: Path,
    *,
    total: Resources = _LARGE,
    gpus: GpuPool = NO_GPUS,
    **settings: Any,  # noqa: ANN401 - of any kind
) -> ServedTypes:
    asked = {
        "node": "n1",
        "region": "r",
        "state_dir": str(folder),
        "driver": "qemu",
        "nats": {"url": "nats://127.0.0.1"},
    }
    driver = SimulatedDriver(folder / "guests", now_s=lambda: 0.0)
    return types_to_serve(
        msgspec.convert(asked | settings, AgentSettings),
        ec2_catalogue(),
        total=total,
        gpus=gpus,
        driver=driver,
    )


@pytest.mark.parametrize("architecture", ["x86_64", "arm64"])
def test_all_stands_for_what_the_architecture_runs_and_the_host_can_hold(
    tmp_path: Path, architecture: str
) -> None:
    served = _served(tmp_path, serve="all", architecture=architecture)
    catalogue = ec2_catalogue()
    assert len(served) > 100
    for one in catalogue:
        fits = bool(how_many_fit(_LARGE, resources_of(one)))
        is_plain = not one.gpus and not one.has_accelerators
        expected = architecture in one.architectures and fits and is_plain
        assert (one.name in list(served)) == expected, one.name


def test_by_default_types_are_of_the_hosts_architecture(tmp_path: Path) -> None:
    served = _served(tmp_path, serve="all")
    types = [served.get(name) for name in served]
    assert all(one and host_architecture() in one.architectures for one in types)


def test_a_family_of_another_architecture_is_not_served(tmp_path: Path) -> None:
    served = _served(tmp_path, families=["t3", "t4g"], architecture="x86_64")
    assert {name.partition(".")[0] for name in served} == {"t3"}


def test_types_can_be_those_of_some_manufacturers(tmp_path: Path) -> None:
    served = _served(
        tmp_path, serve="all", architecture="x86_64", cpu_manufacturers=["AMD"], families=["t3"]
    )
    assert {"m7a.large", "t3a.large", "t3.large"} <= set(served)
    assert "m7i.large" not in set(served)


def test_a_gpu_type_is_served_only_by_a_host_with_that_gpu(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"families": ["g6", "g5", "m5"], "architecture": "x86_64"}
    without = _served(tmp_path, **asked)
    assert {name.partition(".")[0] for name in without} == {"m5"}
    with_l4 = _served(tmp_path, gpus=_L4, **asked)
    assert {name.partition(".")[0] for name in with_l4} == {"m5", "g6"}
    assert "g6.48xlarge" not in set(with_l4)  # eight of them
    assert "g6.12xlarge" in set(with_l4)


def test_no_accelerator_is_made_up(tmp_path: Path) -> None:
    served = _served(
        tmp_path, total=_HUGE, families=["inf2", "f2", "vt1", "m5"], architecture="x86_64"
    )
    assert {name.partition(".")[0] for name in served} == {"m5"}


def test_a_type_that_is_larger_than_the_host_is_not_served(tmp_path: Path) -> None:
    small = Resources(vcpu=4, memory_mib=16_384)
    own = InstanceType(name="lab.wide", vcpu=8, memory_mib=512)
    served = _served(
        tmp_path,
        total=small,
        families=["t3"],
        instance_types=["lab.wide"],
        own_instance_types=[msgspec.to_builtins(own)],
        architecture="x86_64",
    )
    assert set(served) == {"t3.nano", "t3.micro", "t3.small", "t3.medium", "t3.large", "t3.xlarge"}


def test_a_full_disk_is_no_reason_to_leave_types_out(tmp_path: Path) -> None:
    total = msgspec.structs.replace(_LARGE, disk_gib=0)
    assert set(_served(tmp_path, total=total, families=["t3"], architecture="x86_64"))


def test_simulated_guests_are_of_any_architecture_and_have_any_gpu(tmp_path: Path) -> None:
    everything = [one.name for one in ec2_catalogue()]
    served = _served(tmp_path, driver="simulated", total=_HUGE, instance_types=everything)
    assert set(served) == set(everything)


def test_what_is_left_out_is_told_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        _served(tmp_path, families=["t4g", "g6", "u7in-16tb"], architecture="x86_64")
    (record,) = caplog.records
    by_reason = vars(record)["by_reason"]
    assert by_reason.keys() == {"another architecture", "another GPU", "more vCPUs"}
    assert record.levelname == "WARNING"  # nothing is left
