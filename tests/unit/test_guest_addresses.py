"""The addresses that are made from instance ids."""

from __future__ import annotations

import re
from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from fleetcast.agent.guest_data.addresses import USER_NETWORK, mac_address, user_mode_address

_INSTANCE_IDS = st.from_regex(r"i-[0-9a-f]{17}", fullmatch=True)


@given(_INSTANCE_IDS)
def test_a_mac_address_is_locally_administered_and_one_stations(instance_id: str) -> None:
    assert re.fullmatch(r"02(:[0-9a-f]{2}){5}", mac_address(instance_id))


@given(_INSTANCE_IDS)
def test_a_private_address_is_none_that_has_another_use(instance_id: str) -> None:
    address = IPv4Address(user_mode_address(instance_id))
    assert address in USER_NETWORK
    _, _, third, fourth = address.packed
    assert third not in {0, 169, 170, 255}  # reserved, or where clouds have services
    assert 1 <= fourth <= 254


def test_addresses_are_an_instances_for_good() -> None:
    # Guests know each other by them, also after an upgrade of the agent.
    assert mac_address("i-0123456789abcdef0") == "02:57:df:73:29:1f"
    assert user_mode_address("i-0123456789abcdef0") == "169.254.125.84"


def test_few_instances_share_an_address() -> None:
    ids = [f"i-{number:017x}" for number in range(5_000)]
    assert len({mac_address(one) for one in ids}) == len(ids)
