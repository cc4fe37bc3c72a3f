"""The section [qemu] of agent.toml."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from fleetcast.agent.setting_types import AbsolutePath
from fleetcast.errors import InvalidConfiguration

_Program = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[^\x00-\x1f\x7f]+\Z",
        description='a program, such as "/usr/bin/qemu-system-x86_64"',
    ),
]
# As Linux names network interfaces. Source: dev_valid_name() in the kernel's net/core/dev.c.
_Interface = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[^\s/:\x00-\x1f\x7f]{1,15}\Z",
        description='a network interface, such as "br0"',
    ),
]


class QemuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node's guests are run.

    binary: None: QEMU for the host's architecture, from PATH. accelerator: auto: KVM if a guest has
    been seen to run by it. shutdown_timeout_s: what a guest that is stopped may take to shut itself
    down. bridge: the host's bridge that guests are on, through bridge_helper; None: each in a
    network of its own. internet: those reach the internet, and with it all that the host reaches.
    uefi_code, uefi_variables: the firmware of UEFI images; None: where Debian has it.
    """

    binary: _Program | None = None
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    shutdown_timeout_s: Annotated[
        float, msgspec.Meta(ge=1, le=3600, description="seconds, from 1 to 3600")
    ] = 60.0
    bridge: _Interface | None = None
    bridge_helper: AbsolutePath = "/usr/lib/qemu/qemu-bridge-helper"
    internet: bool = False
    uefi_code: AbsolutePath | None = None
    uefi_variables: AbsolutePath | None = None

    def __post_init__(self) -> None:
        """Refuse what would have no effect."""
        if self.bridge is not None and self.internet:
            raise InvalidConfiguration(
                "internet",
                "is for guests in networks of their own, and bridge is set",
                expected="one of the two",
            )
