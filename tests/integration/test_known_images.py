"""What a node answers about images, and that neither a broken edit nor a lost server takes one."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import tempfile
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from fleetcast.agent.drivers import BootFailed, ClientFault, NodeFault
from fleetcast.agent.images import Images
from fleetcast.agent.images.known_images import OwnCatalogue, RegionCatalogue
from fleetcast.agent.images.settings import ImagesSettings
from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import InstanceType
from fleetcast.messages import InstanceToLaunch, LaunchRequest
from tests.eventually import eventually
from tests.image_server import ID, ImageServer, an_image, catalogue_text, image_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

_OTHER_ID: Final = "ami-12345678"
_X86: Final = InstanceType(name="x.small", vcpu=1, memory_mib=512)
_ARM: Final = InstanceType(name="a.small", vcpu=1, memory_mib=512, architectures=("arm64",))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageServer]:
    with image_server(tmp_path, monkeypatch) as running:
        yield running


def _images(tmp_path: Path, server: ImageServer | None = None) -> Images:
    """Return a node's images as a new agent makes them."""
    settings = ImagesSettings(
        catalogue=str(tmp_path / "images.toml"),
        region_catalogue=server.url("/images.toml") if server else None,
    )
    return Images(settings, tmp_path)


def _write_own(tmp_path: Path, text: str) -> None:
    (tmp_path / "images.toml").write_text(text, encoding="utf-8")


def _publish(server: ImageServer, text: str) -> None:
    server.files["/images.toml"] = text.encode()


def _request(image_id: str = ID, *, root_disk_gib: int | None = None) -> LaunchRequest:
    return LaunchRequest(
        account_id="000000000000",
        instances=(InstanceToLaunch(instance_id="i-12345678", launch_index=0),),
        instance_type="x.small",
        image_id=image_id,
        root_disk_gib=msgspec.UNSET if root_disk_gib is None else root_disk_gib,
    )


def _answer(
    images: Images, request: LaunchRequest, instance_type: InstanceType = _X86
) -> tuple[str, str]:
    """Return the code and the message of what a launch is answered, the code "" if it may go on."""
    try:
        images.check(request, instance_type)
    except ClientFault as fault:
        return fault.code, str(fault)
    except NodeFault as fault:
        return "node fault", str(fault)
    return "", ""


def _code(images: Images, image_id: str = ID) -> str:
    return _answer(images, _request(image_id))[0]


@contextlib.asynccontextmanager
async def _kept_current(images: Images) -> AsyncIterator[None]:
    keeping = asyncio.create_task(images.keep_current())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


def test_a_launch_is_refused_in_the_words_of_ec2(tmp_path: Path) -> None:
    _write_own(tmp_path, catalogue_text(an_image(b"a", path="/a")))
    images = _images(tmp_path)
    assert _answer(images, _request()) == ("", "")
    assert _answer(images, _request(_OTHER_ID)) == (
        "InvalidAMIID.NotFound",
        f"The image id '[{_OTHER_ID}]' does not exist",
    )
    code, message = _answer(images, _request(), _ARM)
    assert code == "InvalidParameterValue"
    assert message.startswith(
        "The architecture 'arm64' of the specified instance type does not match the architecture "
        "'x86_64' of the specified AMI."
    )


def test_a_node_that_knows_no_image_leaves_launches_to_others(tmp_path: Path) -> None:
    # One that was just installed must not tell for its region that nothing exists.
    images = _images(tmp_path)
    lacked = f"the node knows no image: {tmp_path / 'images.toml'} is missing or empty"
    assert images.lacks() == lacked
    assert _answer(images, _request()) == ("node fault", lacked)


@pytest.mark.parametrize(
    "image_id", ["", "ami-1", "AMI-12345678", "../ami-12345678", "ami-12345678\n", "ami-1234567z"]
)
def test_what_is_no_image_id_is_malformed(tmp_path: Path, image_id: str) -> None:
    assert _code(_images(tmp_path), image_id) == "InvalidAMIID.Malformed"


async def test_a_root_disk_smaller_than_its_image_is_refused_once_that_is_known(
    tmp_path: Path,
) -> None:
    content = struct.pack(">4sIQIIQ", b"QFI\xfb", 2, 0, 0, 16, 2**30 + 1).ljust(512)
    (tmp_path / "a").write_bytes(content)
    image = an_image(content, path=str(tmp_path / "a"), format="qcow2")
    _write_own(tmp_path, catalogue_text(image))
    images = _images(tmp_path)
    await images.link(ID, tmp_path / "guest")
    assert _answer(images, _request(root_disk_gib=1)) == (
        "InvalidBlockDeviceMapping",
        f"Volume of size 1GB is smaller than image '{ID}', expect size >= 2GB",
    )
    assert _answer(images, _request(root_disk_gib=2)) == ("", "")


def test_a_broken_catalogue_ends_a_start(tmp_path: Path) -> None:
    _write_own(tmp_path, "[[image]]\nid = 1\n")
    with pytest.raises(InvalidConfiguration, match=r"images\.toml, line 2: image\[0\]\.id: is 1"):
        _images(tmp_path)


async def test_an_edit_is_followed_without_a_restart(tmp_path: Path) -> None:
    images = _images(tmp_path)
    assert _code(images) == "node fault"
    async with _kept_current(images):
        _write_own(tmp_path, catalogue_text(an_image(b"a", path="/a")))
        await eventually(lambda: asyncio.sleep(0, _code(images) == ""))


def test_a_broken_edit_is_told_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _write_own(tmp_path, catalogue_text(an_image(b"a", path="/a")))
    own = OwnCatalogue(tmp_path / "images.toml")
    _write_own(tmp_path, "[[image]]\nid = 'ami-1'\n")
    own.look()
    own.look()
    assert [*own.images] == [ID]
    (told,) = caplog.records
    assert told.levelname == "ERROR"
    assert "line 2: image[0].id: is 'ami-1'" in str(vars(told)["why"])
    (tmp_path / "images.toml").unlink()
    own.look()
    assert [*own.images] == [ID]
    _write_own(tmp_path, catalogue_text(an_image(b"a", id=_OTHER_ID, path="/a")))
    own.look()
    assert [*own.images] == [_OTHER_ID]


async def test_the_nodes_own_images_go_before_its_regions(
    tmp_path: Path, server: ImageServer
) -> None:
    url = server.url("/a")
    _publish(
        server,
        catalogue_text(
            an_image(b"a", url=url, architecture="arm64", firmware="uefi"),
            an_image(b"a", id=_OTHER_ID, url=url),
        ),
    )
    _write_own(tmp_path, catalogue_text(an_image(b"a", path="/a")))
    images = _images(tmp_path, server)
    async with _kept_current(images):
        await eventually(lambda: asyncio.sleep(0, _code(images, _OTHER_ID) == ""))
    assert _code(images) == ""


async def test_before_its_regions_catalogue_was_read_a_node_cannot_say_what_there_is(
    tmp_path: Path, server: ImageServer
) -> None:
    server.statuses["/images.toml"] = [500]
    images = _images(tmp_path, server)
    async with _kept_current(images):
        await eventually(lambda: asyncio.sleep(0, server.asked["/images.toml"]))
        assert _code(images) == "node fault"


async def test_a_server_that_is_away_takes_no_image(tmp_path: Path, server: ImageServer) -> None:
    region = _region(tmp_path, server)
    _publish(server, catalogue_text(an_image(b"a", url=server.url("/a"))))
    await region.fetch()
    for broken in ("[[image]]\nid = 1", catalogue_text(an_image(b"a", path="/etc/shadow"))):
        _publish(server, broken)
        await region.fetch()
        assert [*(region.images or ())] == [ID]
    server.files.clear()
    await region.fetch()
    assert [*(region.images or ())] == [ID]
    # Nor does a restart.
    assert [*(_region(tmp_path, server).images or ())] == [ID]


async def test_an_image_that_is_asked_for_in_vain_is_looked_up_soon(
    tmp_path: Path, server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetcast.agent.images.known_images._FETCH_AGAIN_AFTER_S", 0.1)
    _publish(server, "")
    images = _images(tmp_path, server)
    async with _kept_current(images):
        await eventually(lambda: asyncio.sleep(0, _code(images) == "InvalidAMIID.NotFound"))
        _publish(server, catalogue_text(an_image(b"a", url=server.url("/a"))))
        await eventually(lambda: asyncio.sleep(0, _code(images) == ""))


async def test_who_asks_right_after_it_was_fetched_is_not_forgotten(
    tmp_path: Path, server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetcast.agent.images.known_images._FETCH_AGAIN_AFTER_S", 0.1)
    _publish(server, "")
    region = _region(tmp_path, server)
    keeping = asyncio.create_task(region.keep_current())
    await eventually(lambda: asyncio.sleep(0, region.images is not None))
    _publish(server, catalogue_text(an_image(b"a", url=server.url("/a"))))
    region.fetch_soon()
    await eventually(lambda: asyncio.sleep(0, bool(region.images)))
    keeping.cancel()


async def test_a_huge_catalogue_is_not_read(tmp_path: Path, server: ImageServer) -> None:
    region = _region(tmp_path, server)
    _publish(server, "#" * (5 * 2**20))
    await region.fetch()
    assert region.images is None


async def test_an_image_that_is_in_no_catalogue_any_more_does_not_boot(tmp_path: Path) -> None:
    with pytest.raises(BootFailed, match="in no catalogue"):
        await _images(tmp_path).link(ID, tmp_path / "guest")


def test_a_cache_that_guests_cannot_link_from_is_refused(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere,
        pytest.raises(InvalidConfiguration, match=r"images\.cache_dir: .* another file system"),
    ):
        Images(ImagesSettings(cache_dir=elsewhere), tmp_path)
    with pytest.raises(InvalidConfiguration, match=r"images\.cache_dir: /proc/images can't be"):
        Images(ImagesSettings(cache_dir="/proc/images"), tmp_path)


def _region(tmp_path: Path, server: ImageServer) -> RegionCatalogue:
    return RegionCatalogue(server.url("/images.toml"), copy=tmp_path / "copy.toml", every_s=300)
