"""The bytes of each message version: what an older side wrote, a newer one must read.

The goldens of a version are never rewritten. A change that breaks them is a new version, with a
folder of its own (fleetcast/messages.py says when).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from fleetcast import messages
from fleetcast.capacity import Resources
from fleetcast.errors import UnsupportedMessageVersion
from fleetcast.messages import Message

GOLDENS: Final = Path(__file__).parents[1] / "golden" / "messages"
_REPLIES: Final = (messages.Accepted, messages.Rejected)

V1: Final[dict[str, Message]] = {
    "launch_request": messages.LaunchRequest(
        account_id="123456789012",
        instances=(
            messages.InstanceToLaunch(instance_id="i-0123456789abcdef0", launch_index=0),
            messages.InstanceToLaunch(instance_id="i-0123456789abcdef1", launch_index=1),
        ),
        instance_type="t3.medium",
        image_id="ami-0123456789abcdef0",
        user_data_base64="IyEvYmluL3No",
        key_name="operator",
        shutdown_behavior="terminate",
        tags={"Name": "web-1"},
    ),
    "accepted": messages.Accepted(
        node="n1", zone="us-east-1a", instance_ids=("i-0123456789abcdef0",)
    ),
    "rejected": messages.Rejected(
        node="n1",
        reason="client_fault",
        code="InvalidAMIID.NotFound",
        message="no image ami-0123456789abcdef0",
    ),
    "launch_request_held": messages.LaunchRequest(
        account_id="123456789012",
        instances=(messages.InstanceToLaunch(instance_id="i-0123456789abcdef0", launch_index=0),),
        instance_type="t3.medium",
        image_id="ami-0123456789abcdef0",
        hold_ms=15_000,
    ),
    "launch_request_with_root_disk": messages.LaunchRequest(
        account_id="123456789012",
        instances=(messages.InstanceToLaunch(instance_id="i-0123456789abcdef0", launch_index=0),),
        instance_type="t3.medium",
        image_id="ami-0123456789abcdef0",
        root_disk_gib=20,
    ),
    "attempt_request": messages.AttemptRequest(
        launch_id="r-0123456789abcdef0",
        attempt=2,
        instance_ids=("i-0123456789abcdef0", "i-0123456789abcdef1"),
    ),
    "attempt_request_undecided": messages.AttemptRequest(
        launch_id="r-0123456789abcdef0",
        attempt=2,
        instance_ids=("i-0123456789abcdef0",),
        expires_at_ms=1_700_000_000_000,
    ),
    "locate_request": messages.LocateRequest(launch_id="r-0123456789abcdef0"),
    "instances_request": messages.InstancesRequest(instance_ids=("i-0123456789abcdef0",)),
    "instances_reply": messages.InstancesReply(
        node="n1",
        instances=(
            messages.InstanceReport(
                instance_id="i-0123456789abcdef0",
                launch_id="r-0123456789abcdef0",
                attempt=2,
                instance_type="t3.medium",
                state="shutting-down",
                state_reason_code="Client.UserInitiatedShutdown",
                state_reason_message="User initiated shutdown",
            ),
        ),
    ),
    "instances_reply_in_full": messages.InstancesReply(
        node="n1",
        zone="us-east-1a",
        instances=(
            messages.InstanceReport(
                instance_id="i-0123456789abcdef0",
                launch_id="r-0123456789abcdef0",
                attempt=2,
                instance_type="t3.medium",
                state="pending",
                account_id="123456789012",
                held=True,
            ),
        ),
        refused={"i-0123456789abcdef1": "full", "i-0123456789abcdef2": "state"},
    ),
    "instances_reply_with_addresses": messages.InstancesReply(
        node="n1",
        instances=(
            messages.InstanceReport(
                instance_id="i-0123456789abcdef0",
                launch_id="r-0123456789abcdef0",
                attempt=2,
                instance_type="t3.medium",
                state="running",
                private_ip_address="169.254.12.34",
                mac_address="02:3f:9a:00:17:c4",
            ),
        ),
    ),
    "console_reply": messages.ConsoleReply(
        node="n1", output_base64="Ym9vdGVk", written_at_ms=1_700_000_000_000
    ),
    "cordon_request": messages.CordonRequest(),
    "drain_request": messages.DrainRequest(stop=True),
    "cordon_reply": messages.CordonReply(
        node="n1",
        state="draining",
        closed="draining",
        instances=(
            messages.InstanceReport(
                instance_id="i-0123456789abcdef0",
                launch_id="r-0123456789abcdef0",
                attempt=1,
                instance_type="t3.medium",
                state="running",
                account_id="123456789012",
            ),
        ),
        stopped_n=2,
        problem="/var/lib/fleetcast/cordon.json can't be written: No space left on device",
    ),
    "region_request": messages.RegionRequest(),
    "region_request_with_preview": messages.RegionRequest(
        preview=messages.LaunchPreview(
            instance_type="t3.medium",
            image_id="ami-0123456789abcdef0",
            key_name="operator",
            root_disk_gib=20,
        )
    ),
    "capacity_reply_with_fault": messages.CapacityReply(
        node="n1",
        zone=None,
        closed=None,
        total=Resources(vcpu=8, memory_mib=32_768),
        free=Resources(vcpu=6, memory_mib=28_672),
        room={"t3.medium": 3},
        armed={},
        fault=messages.LaunchFault(code="InvalidAMIID.NotFound", message="no such image"),
    ),
    "capacity_reply_with_a_nodes_own_fault": messages.CapacityReply(
        node="n1",
        zone=None,
        closed=None,
        total=Resources(vcpu=8, memory_mib=32_768),
        free=Resources(vcpu=6, memory_mib=28_672),
        room={"t3.medium": 3},
        armed={},
        fault=messages.LaunchFault(code=None, message="not read yet"),
    ),
    "instance_types_reply": messages.InstanceTypesReply(
        node="n1",
        zone="us-east-1a",
        instance_types=("t3.medium", "t3.large"),
        room={"t3.medium": 3},
    ),
    "capacity_reply": messages.CapacityReply(
        node="n1",
        zone=None,
        closed="stopping",
        total=Resources(vcpu=8, memory_mib=32_768, gpus=1),
        free=Resources(vcpu=-2, memory_mib=1_024),
        room={"t3.medium": 3},
        armed={"ec2.RunInstances.us-east-1.t3.medium": 5},
    ),
    "capacity_reply_with_load": messages.CapacityReply(
        node="n1",
        zone="us-east-1a",
        closed=None,
        total=Resources(vcpu=8, memory_mib=32_768, gpus=1),
        free=Resources(vcpu=6, memory_mib=28_672, gpus=1),
        room={"t3.medium": 3},
        armed={"ec2.RunInstances.us-east-1.t3.medium": 5},
        load=messages.NodeLoad(
            cpu_utilization=12.5,
            memory_utilization=40.0,
            gpu_utilization=None,
            running_instances=1,
        ),
    ),
    "capacity_reply_with_clock": messages.CapacityReply(
        node="n1",
        zone="us-east-1a",
        closed=None,
        total=Resources(vcpu=8, memory_mib=32_768),
        free=Resources(vcpu=6, memory_mib=28_672),
        room={"t3.medium": 3},
        armed={},
        version="0.1.0",
        now_ms=1_700_000_000_000,
    ),
    "capacity_reply_of_a_real_host": messages.CapacityReply(
        node="n1",
        zone="us-east-1a",
        closed=None,
        total=Resources(vcpu=8, memory_mib=32_768, disk_gib=400),
        free=Resources(vcpu=6, memory_mib=28_532, disk_gib=392),
        room={"t3.medium": 3},
        armed={"ec2.RunInstances.us-east-1.t3.medium": 5},
        load=messages.NodeLoad(
            cpu_utilization=12.5,
            memory_utilization=40.0,
            gpu_utilization=None,
            running_instances=1,
            disk_utilization=20.5,
        ),
        version="0.1.0",
        now_ms=1_700_000_000_000,
        accelerator="kvm",
    ),
}

# As agents wrote them that didn't account for disks. They are read, and no longer written so.
_WITHOUT_DISK: Final = {
    "capacity_reply",
    "capacity_reply_with_clock",
    "capacity_reply_with_load",
}

_HEADERS: Final = {
    "launch_headers": messages.LaunchHeaders(
        launch_id="r-0123456789abcdef0",
        attempt=2,
        expires_at_ms=1_700_000_000_000,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
    "launch_headers_with_clock": messages.LaunchHeaders(
        launch_id="r-0123456789abcdef0",
        attempt=2,
        expires_at_ms=1_700_000_000_000,
        sent_at_ms=1_699_999_999_000,
    ),
}


def _golden(version: int, name: str) -> bytes:
    return (GOLDENS / f"v{version}" / f"{name}.json").read_bytes()


def _decode(payload: bytes, kind: type[Message]) -> Message:
    """Decode as the side does that gets this kind."""
    if kind in _REPLIES:
        return messages.decode_launch_reply(payload)
    return messages.decode(payload, kind)


def _changed(name: str, **fields: object) -> bytes:
    values: dict[str, Any] = msgspec.json.decode(_golden(1, name))
    return msgspec.json.encode(values | fields)


def test_every_message_has_a_golden() -> None:
    assert {type(message) for message in V1.values()} == set(Message.__subclasses__())
    assert {path.stem for path in (GOLDENS / "v1").iterdir()} == {*V1, *_HEADERS}


def test_a_reply_of_an_agent_that_measures_nothing_says_so() -> None:
    reply = _decode(_golden(1, "capacity_reply"), messages.CapacityReply)
    assert isinstance(reply, messages.CapacityReply)
    assert reply.load is msgspec.UNSET


def test_every_version_that_is_read_has_goldens() -> None:
    folders = {path.name for path in GOLDENS.iterdir()}
    assert folders >= {f"v{version}" for version in messages.SUPPORTED_VERSIONS}


@pytest.mark.parametrize("name", sorted(V1.keys() - _WITHOUT_DISK))
def test_the_bytes_of_version_1_are_what_they_were(name: str) -> None:
    assert messages.encode(V1[name]) == _golden(1, name)


@pytest.mark.parametrize("name", V1)
def test_version_1_is_read_by_the_other_side(name: str) -> None:
    assert _decode(_golden(1, name), type(V1[name])) == V1[name]


@pytest.mark.parametrize("name", V1)
def test_a_field_that_a_newer_side_has_added_is_ignored(name: str) -> None:
    payload = _changed(name, added_later={"deep": [1, None, "x"]})
    assert _decode(payload, type(V1[name])) == V1[name]


@pytest.mark.parametrize("name", V1)
@pytest.mark.parametrize("version", [0, 2])
def test_a_version_that_is_not_known_is_refused(name: str, version: int) -> None:
    with pytest.raises(UnsupportedMessageVersion) as caught:
        _decode(_changed(name, v=version), type(V1[name]))
    assert caught.value.version == version


@pytest.mark.parametrize("name", _HEADERS)
def test_launch_headers_are_what_they_were(name: str) -> None:
    golden = msgspec.json.decode(_golden(1, name), type=dict[str, str])
    assert _HEADERS[name].encode() == golden
    assert messages.LaunchHeaders.decode(golden) == _HEADERS[name]
    assert messages.LaunchHeaders.decode(golden | {"Added-Later": "x"}) == _HEADERS[name]
