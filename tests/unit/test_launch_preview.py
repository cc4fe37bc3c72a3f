"""What a dry run says of what nodes answer: never more than they know."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn, cast

import msgspec
import pytest

from fleetcast import messages
from fleetcast.capacity import Resources
from fleetcast.errors import (
    DryRunOperation,
    EC2Error,
    InsufficientInstanceCapacity,
    RefusedByNode,
    ServiceUnavailable,
)
from lambdas.bus import NoResponders
from lambdas.run_instances.launch_parameters import LaunchParameters
from lambdas.run_instances.launch_preview import preview_launch

if TYPE_CHECKING:
    from lambdas.run_instances.services import Services

UNREAD = messages.LaunchFault(code=None, message="the catalogue has not been read yet")
NO_IMAGE = messages.LaunchFault(code="InvalidAMIID.NotFound", message="no such image")


def said_of(
    *nodes: messages.CapacityReply, known: tuple[str, ...] = ("n1",), min_count: int = 1
) -> EC2Error:
    """Return what a dry run in one region ends with."""

    async def gather(region: str, _subject: str, payload: bytes, **_: object) -> list[bytes]:
        messages.decode(payload, messages.RegionRequest)
        if not nodes:
            raise NoResponders(region, "nobody listens")
        return [messages.encode(node) for node in nodes]

    async def preview() -> NoReturn:
        services = SimpleNamespace(
            settings=SimpleNamespace(region_names=["a"]),
            known_nodes=lambda _region: known,
            bus=SimpleNamespace(gather=gather),
        )
        await preview_launch(cast("Services", services), asked)

    asked = LaunchParameters(
        image_id="ami-12345678", instance_type="t3.medium", min_count=min_count, max_count=9
    )
    with pytest.raises(EC2Error) as ended:
        asyncio.run(preview())
    return ended.value


def node(
    name: str, room: int, fault: messages.LaunchFault | msgspec.UnsetType = msgspec.UNSET
) -> messages.CapacityReply:
    return messages.CapacityReply(
        node=name,
        zone=None,
        closed=None,
        total=Resources(vcpu=8, memory_mib=32_768),
        free=Resources(vcpu=2 * room, memory_mib=4_096 * room),
        room={"t3.medium": room} if room else {},
        armed={},
        fault=fault,
    )


def test_room_on_several_nodes_is_room_for_a_launch() -> None:
    said = said_of(node("n1", 2), node("n2", 1), known=("n1", "n2"), min_count=3)
    assert isinstance(said, DryRunOperation)
    assert "a: 3." in str(said)


@pytest.mark.parametrize("nodes", [(), (node("n1", 0),)])
def test_a_lack_of_capacity_is_said_where_everybody_says_so(
    nodes: tuple[messages.CapacityReply, ...],
) -> None:
    assert isinstance(said_of(*nodes), InsufficientInstanceCapacity)


def test_a_node_that_is_not_heard_leaves_it_open() -> None:
    said = said_of(node("n1", 1), known=("n1", "n2"), min_count=2)
    assert isinstance(said, ServiceUnavailable)
    assert "a: 1 or more (not all heard)" in str(said)


def test_room_on_a_node_that_cannot_say_is_neither_room_nor_a_lack_of_it() -> None:
    said = said_of(node("n1", 4, UNREAD))
    assert isinstance(said, ServiceUnavailable)
    assert "a: 0 or more (n1 can't say: the catalogue has not been read yet)" in str(said)
    with_another = said_of(node("n1", 4, UNREAD), node("n2", 1), known=("n1", "n2"))
    assert isinstance(with_another, DryRunOperation)


def test_what_every_node_would_refuse_is_refused_in_the_nodes_words_and_not_in_all_of_them() -> (
    None
):
    said = said_of(node("n1", 4, NO_IMAGE))
    assert isinstance(said, RefusedByNode)
    assert str(said) == "InvalidAMIID.NotFound: no such image"
    long = msgspec.structs.replace(NO_IMAGE, message="no! " * 10_000)
    assert len(str(said_of(node("n1", 4, long)))) < 1_000


def test_a_full_nodes_refusal_counts_for_nothing() -> None:
    assert isinstance(said_of(node("n1", 0, NO_IMAGE)), InsufficientInstanceCapacity)
