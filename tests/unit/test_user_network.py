"""QEMU's option for user-mode networking."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from fleetcast.agent.guest_data.neighbours import mac_of
from fleetcast.agent.guest_data.user_network import user_network
from tests.told_instance import told_instance


def _option(socket: Path, *, internet: bool = False) -> dict[str, str]:
    """Take the option apart as QEMU does: commas part, and doubled ones are meant."""
    text = user_network(told_instance(), socket, netdev_id="n0", internet=internet)
    kind, *parts = text.replace(",,", "\0").split(",")
    assert kind == "user"
    return dict(part.replace("\0", ",").split("=", 1) for part in parts)


def test_a_guest_reaches_nothing_but_its_metadata_unless_the_internet_is_wanted() -> None:
    socket = Path("/x/metadata.sock")
    assert _option(socket)["restrict"] == "on"
    assert _option(socket, internet=True)["restrict"] == "off"
    assert _option(socket)["ipv6"] == "off"


@pytest.mark.parametrize("folder", ["plain", "with space", "a,b", "it's", 'say "x"', "$(id);x"])
def test_a_folder_of_any_name_is_one_argument_of_the_relay(folder: str) -> None:
    socket = Path("/state") / folder / "metadata.sock"
    where, _, command = _option(socket)["guestfwd"].partition("-cmd:")
    assert where == "tcp:169.254.169.254:80"
    program, *flags, relay, given = shlex.split(command)
    assert (program, flags, given) == (sys.executable, ["-I", "-S"], str(socket))
    assert Path(relay).is_file()


def test_a_sender_is_known_by_the_bridge_it_is_on() -> None:
    table = (
        "IP address       HW type     Flags       HW address            Mask     Device\n"
        "10.0.0.5         0x1         0x2         02:AA:00:00:00:05     *        br0\n"
        "10.0.0.5         0x1         0x2         02:bb:00:00:00:05     *        br1\n"
        "10.0.0.6         0x1         0x0         00:00:00:00:00:00     *        br0\n"
        "half a line\n"
    )
    assert mac_of("10.0.0.5", bridge="br0", table=table) == "02:aa:00:00:00:05"
    assert mac_of("10.0.0.5", bridge="br1", table=table) == "02:bb:00:00:00:05"
    assert mac_of("10.0.0.6", bridge="br0", table=table) is None  # asked for, not answered
    assert mac_of("10.0.0.7", bridge="br0", table=table) is None
