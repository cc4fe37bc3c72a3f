"""A node's QEMU driver with the small Linux guest's image, and guests for it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from fleetcast.agent.capacity.gpu_assignments import GpuAssignments
from fleetcast.agent.drivers import Guest
from fleetcast.agent.drivers.qemu.driver import QemuDriver
from fleetcast.agent.drivers.qemu.guest_network import GuestNetwork
from fleetcast.agent.drivers.qemu.host import find_host
from fleetcast.agent.drivers.qemu.settings import QemuSettings
from fleetcast.agent.guest_processes import guest_processes
from fleetcast.agent.images import Images
from fleetcast.agent.images.settings import ImagesSettings
from fleetcast.agent.key_pairs import KeyPairs
from fleetcast.local.qemu_guests import IMAGE_ID, write_image_catalogue
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Emulated guests on two cores, beside other tests.
UP_WITHIN_S: Final = 60.0


def qemu_driver(
    state_dir: Path, settings: QemuSettings | None = None, *, gpu_addresses: Sequence[str] = ()
) -> QemuDriver:
    """Return a driver over what is in the folder, as an agent makes it at its start."""
    state_dir.mkdir(exist_ok=True)
    # KVM is taken where it works by a probe of its own; these guests don't depend on it.
    settings = settings or QemuSettings(accelerator="tcg", shutdown_timeout_s=30)
    catalogue = write_catalogue(state_dir / "images.toml")
    host = find_host(settings, probe_memory=state_dir / "accelerator.json")
    return QemuDriver(
        state_dir / "guests",
        host=host,
        images=Images(ImagesSettings(catalogue=str(catalogue)), state_dir),
        network=GuestNetwork(
            settings,
            key_pairs=KeyPairs(None),
            architecture=host.architecture,
            region="us-east-1",
            zone=None,
        ),
        processes=guest_processes(),
        gpus=GpuAssignments(gpu_addresses),
        shutdown_timeout_s=settings.shutdown_timeout_s,
    )


def small_guest(number: int, *, user_data: str | None = None, **changes: object) -> Guest:
    """Return a guest of the small Linux image. number: makes its instance id."""
    fields: dict[str, object] = {
        "instance_id": f"i-{number:017x}",
        "launch_id": "r-0123456789abcdef0",
        "attempt": 1,
        "launch_index": 0,
        "account_id": "000000000000",
        "instance_type": "t3.nano",
        "vcpu": 1,
        "memory_mib": 128,
        "gpus": 0,
        "image_id": IMAGE_ID,
        "user_data_base64": user_data and base64.b64encode(user_data.encode()).decode(),
        "key_name": None,
        "shutdown_behavior": "stop",
        "tags": {},
    }
    return Guest(**fields | changes)  # type: ignore[arg-type]


async def console_shows(driver: QemuDriver, instance_id: str, text: str, times: int = 1) -> str:
    """Wait until a guest has written something so many times; return its console."""

    async def console() -> str:
        output = await driver.console_output(instance_id)
        return output.output.decode(errors="replace") if output else ""

    return await eventually(console, lambda seen: seen.count(text) >= times, within_s=UP_WITHIN_S)


def write_catalogue(path: Path, *, image_id: str = IMAGE_ID) -> Path:
    """Write an images.toml that has the small Linux image by that id, and return its path."""
    write_image_catalogue(path)
    path.write_text(path.read_text().replace(IMAGE_ID, image_id))
    return path
