"""`fleetcast-agent doctor` finds what keeps a node from serving, and says how to mend it."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner

from fleetcast.agent.command import main
from fleetcast.agent.doctor.examination import examine
from fleetcast.agent.doctor.guest_checks import check_bridge, check_images, check_key_pairs
from fleetcast.agent.doctor.host_checks import check_qemu, check_state_dir, check_user
from fleetcast.agent.drivers.qemu.settings import QemuSettings
from fleetcast.agent.images.settings import ImagesSettings
from fleetcast.agent.install import service_user
from tests.agent_parts import instance_id
from tests.agent_process import AgentProcess, Requester
from tests.image_server import ID, an_image, catalogue_text
from tests.nats_process import NatsProcess
from tests.tls_endpoint import write_certificate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fleetcast.agent.doctor.finding import Finding

# nats-py doesn't close the sockets of attempts that failed.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

_SEED: Final = "-----BEGIN USER NKEY SEED-----\nSUAAA\n------END USER NKEY SEED------\n"  # nobody's


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


def _config(folder: Path, url: str, **changed: str) -> Path:
    settings = {
        "node": '"n1"',
        "region": '"us-east-1"',
        "zone": '"us-east-1a"',
        "state_dir": json.dumps(str(folder / "state")),
        "driver": '"simulated"',
        "families": '["t3"]',
        "nats.url": json.dumps(url),
        "capacity.vcpu": "8",
        "capacity.memory_mib": "32768",
    }
    path = folder / "doctor.toml"
    lines = (f"{key} = {value}" for key, value in (settings | changed).items())
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


async def _examined(config: Path, *, ahead_s: float = 0) -> dict[str, Finding]:
    def now_s() -> float:
        return time.time() + ahead_s

    return {one.check: one for one in await asyncio.to_thread(examine, config, now_s=now_s)}


def _fails(finding: Finding, *words: str) -> None:
    assert finding.state == "fail", finding
    assert finding.mend
    for word in words:
        assert word in f"{finding.found} {finding.mend}", finding


async def test_a_node_that_can_serve_is_told_so_with_what_was_measured(
    tmp_path: Path, server: NatsProcess
) -> None:
    config = str(_config(tmp_path, server.url))
    shown = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", "--config", config])
    assert shown.exit_code == 0, shown.output
    for said in (
        "ok    configuration: ",
        "node n1 of us-east-1, up to 7 instance types",
        "GiB free below",
        f"ok    NATS: connected to {server.url}; a round trip takes ",
        "ok    permissions: all 4 kinds of subscriptions are allowed",
        "the NATS server's, measured to ",
    ):
        assert said in shown.output
    listed = await asyncio.to_thread(
        CliRunner().invoke, main, ["doctor", "--json", "--config", config]
    )
    states = [json.loads(line) for line in listed.output.splitlines()]
    assert {one["check"] for one in states} >= {"configuration", "disk", "clock", "permissions"}


async def test_an_examination_takes_no_launch_from_the_agent_that_runs(
    tmp_path: Path, server: NatsProcess
) -> None:
    config = _config(tmp_path, server.url)
    async with (
        AgentProcess(
            tmp_path, server.url, **{"capacity.vcpu": 2_000, "capacity.memory_mib": 10**7}
        ),
        await Requester.connect(server.url) as requester,
    ):
        examining = asyncio.create_task(_examined(config))
        number = 0
        while not examining.done():
            number += 1
            assert await requester.accepted(number) == (instance_id(number),)
        assert (await examining)["permissions"].state == "ok"
        assert number


def test_a_wrong_configuration_ends_with_1_and_says_what_would_be_right(tmp_path: Path) -> None:
    config = _config(tmp_path, "nats://127.0.0.1:4222", region='"us east"')
    shown = CliRunner().invoke(main, ["doctor", "--config", str(config)])
    assert shown.exit_code == 1
    assert f"fail  configuration: {config}, line 2: region is 'us east'" in shown.output
    assert "mend: expected: only a-z, 0-9 and '-'" in shown.output


# --- NATS ----------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_fails(tmp_path: Path) -> None:
    found = await _examined(_config(tmp_path, "nats://127.0.0.1:9"))
    _fails(found["NATS"], "nats://127.0.0.1:9", "firewalls")


async def test_a_server_that_hangs_fails_in_time(tmp_path: Path, server: NatsProcess) -> None:
    server.hang()
    _fails((await _examined(_config(tmp_path, server.url)))["NATS"], "doesn't answer")


async def test_a_subscription_that_the_server_refuses_is_named(tmp_path: Path) -> None:
    config = """
        authorization { users: [{ user: agent, password: x, permissions: {
            subscribe: { allow: ">", deny: "ec2.node.>" } } }] }
        no_auth_user: agent
    """
    async with NatsProcess(tmp_path, config) as server:
        found = await _examined(_config(tmp_path, server.url))
        _fails(found["permissions"], "ec2.node.us-east-1.n1.*")
        assert "ec2.RunInstances.us-east-1.t3" not in found["permissions"].found
        assert found["NATS"].state == "ok"


async def test_clocks_that_differ_by_more_than_a_request_may_fail(
    tmp_path: Path, server: NatsProcess
) -> None:
    config = _config(tmp_path, server.url)
    _fails((await _examined(config, ahead_s=60))["clock"], "ahead of the NATS server's", "500 ms")
    _fails((await _examined(config, ahead_s=-60))["clock"], "behind the NATS server's")
    assert (await _examined(config))["clock"].state == "ok"


async def test_a_server_that_tells_no_time_is_no_failure(tmp_path: Path) -> None:
    config = """
        authorization { users: [{ user: agent, password: x, permissions: {
            publish: "_INBOX.>" } }] }
        no_auth_user: agent
    """
    async with NatsProcess(tmp_path, config) as server:
        clock = (await _examined(_config(tmp_path, server.url)))["clock"]
        assert clock.state == "warn"
        assert "$SYS.REQ.USER.INFO" in (clock.mend or "")


# --- certificates and credentials ----------------------------------------------------------


@pytest.mark.parametrize(
    ("certificate", "state", "words"),
    [
        ({"valid_days": 90}, "ok", "for 89 days more"),
        ({"valid_days": 5}, "warn", "for 4 days more only"),
        ({"valid_days": -1}, "fail", "certificate has expired"),
        ({"host": "nats.example.com"}, "fail", "Hostname mismatch"),
    ],
)
async def test_the_servers_certificate_is_examined(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    certificate: dict[str, Any],
    state: str,
    words: str,
) -> None:
    path, key = write_certificate(tmp_path, **certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    async with NatsProcess(tmp_path, f'tls {{ cert_file: "{path}", key_file: "{key}" }}') as server:
        url = server.url.replace("nats://127.0.0.1", "tls://localhost")
        found = await _examined(_config(tmp_path, url))
        assert found["TLS"].state == state, found
        assert words in found["TLS"].found
        # What TLS has refused is said once, not as a connection that fails as well.
        assert ("NATS" in found) == (state != "fail")


async def test_a_certificate_that_nobody_vouches_for_says_how_to_trust_it(tmp_path: Path) -> None:
    path, key = write_certificate(tmp_path)
    async with NatsProcess(tmp_path, f'tls {{ cert_file: "{path}", key_file: "{key}" }}') as server:
        url = server.url.replace("nats://127.0.0.1", "tls://localhost")
        found = await _examined(_config(tmp_path, url))
        _fails(found["TLS"], "certificate is refused", "update-ca-certificates")


def _jwt(claims: dict[str, object]) -> str:
    parts = ({"alg": "ed25519-nkey"}, claims)
    coded = [base64.urlsafe_b64encode(json.dumps(one).encode()).decode() for one in parts]
    jwt = ".".join([one.rstrip("=") for one in coded] + ["signature"])
    return f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n{_SEED}"


@pytest.mark.parametrize(
    ("text", "mode", "state", "words"),
    [
        (_jwt({"exp": time.time() - 86_400}), 0o600, "fail", "has expired"),
        (_jwt({"exp": time.time() + 3 * 86_400}), 0o600, "warn", "2 days more only"),
        (_jwt({"exp": time.time() + 99 * 86_400}), 0o600, "ok", "98 days more"),
        (_jwt({}), 0o600, "ok", "without an end"),
        (_jwt({}), 0o644, "warn", "others can read"),
        ("no credentials", 0o600, "fail", "no user JWT and seed"),
        (None, 0o600, "fail", "No such file"),
    ],
)
async def test_credentials_are_examined(
    tmp_path: Path, server: NatsProcess, text: str | None, mode: int, state: str, words: str
) -> None:
    path = tmp_path / "node.creds"
    if text is not None:
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
    config = _config(tmp_path, server.url, **{"nats.credentials_file": json.dumps(str(path))})
    found = (await _examined(config))["credentials"]
    assert found.state == state, found
    assert words in found.found
    assert "SUAAA" not in str(found)


# --- the host ------------------------------------------------------------------------------


def test_a_state_folder_that_others_can_read_fails(tmp_path: Path) -> None:
    assert check_state_dir(tmp_path / "not yet").state == "warn"
    tmp_path.chmod(0o755)
    _fails(check_state_dir(tmp_path), f"chmod 700 {tmp_path}")
    tmp_path.chmod(stat.S_IRWXU)
    assert "open to others" not in check_state_dir(tmp_path).found


def test_a_file_that_the_agents_user_can_not_read_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.toml").touch()
    assert check_user([tmp_path / "agent.toml", tmp_path / "not there"]).state == "ok"
    # Root may read all, and becomes the agent's user to try; anybody else tries as who he is.
    monkeypatch.setattr(service_user, "USER", "nobody")
    (tmp_path / "agent.toml").chmod(0)
    _fails(check_user([tmp_path / "agent.toml"]), "can't r", "chmod")


async def test_a_configuration_may_be_named_from_where_one_is(
    tmp_path: Path, server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tmp_path, server.url)
    monkeypatch.chdir(tmp_path)
    found = (await _examined(Path(config.name)))["user"]
    assert found.state == "ok", found


def test_a_qemu_that_is_not_there_names_the_package() -> None:
    (missing,) = check_qemu(QemuSettings(binary="/nowhere/qemu"))
    _fails(missing, "/nowhere/qemu", "apt-get install qemu-system-")


@pytest.mark.host_packages
def test_a_qemu_that_is_too_old_is_told(tmp_path: Path) -> None:
    old = tmp_path / "qemu"
    old.write_text("#!/bin/sh\necho QEMU emulator version 5.2.0\n", encoding="utf-8")
    old.chmod(0o755)
    version, kvm = check_qemu(QemuSettings(binary=str(old), accelerator="tcg"))
    _fails(version, "5.2", "6.2 or newer")
    assert kvm.state == "ok"


@pytest.mark.host_packages
def test_a_kvm_that_is_demanded_and_runs_nothing_fails(tmp_path: Path) -> None:
    idle = tmp_path / "qemu"
    idle.write_text("#!/bin/sh\necho QEMU emulator version 9.2.0\n", encoding="utf-8")
    idle.chmod(0o755)
    _, kvm = check_qemu(QemuSettings(binary=str(idle), accelerator="kvm"))
    _fails(kvm, "no guest boots", 'accelerator = "auto"')


def test_a_node_without_images_fails_and_is_told_what_one_looks_like(tmp_path: Path) -> None:
    images = tmp_path / "images.toml"
    (none,) = check_images(ImagesSettings(catalogue=str(images)))
    _fails(none, str(images), "[[image]]", "region_catalogue")
    path = str(tmp_path / "a.img")
    images.write_text(catalogue_text(an_image(b"a", path=path)), encoding="utf-8")
    (unread,) = check_images(ImagesSettings(catalogue=str(images)))
    assert unread.state == "warn"
    assert f"can't read the files of {ID} {path}" in unread.found
    Path(path).touch()
    (some,) = check_images(ImagesSettings(catalogue=str(images)))
    assert (some.state, some.found) == ("ok", f"1 in {images}")
    images.write_text("[[image]]\nid = 1\n", encoding="utf-8")
    (broken,) = check_images(ImagesSettings(catalogue=str(images)))
    _fails(broken, f"{images}, line 2: image[0].id")


def test_a_regions_catalogue_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    nobody = "https://127.0.0.1:1/images.toml"
    own = str(tmp_path / "images.toml")
    _, regions = check_images(ImagesSettings(catalogue=own, region_catalogue=nobody))
    assert (regions.check, regions.state) == ("region's images", "warn")
    assert nobody in regions.found


def test_a_folder_of_key_pairs_that_is_not_there_fails(tmp_path: Path) -> None:
    _fails(check_key_pairs(tmp_path / "keys"), str(tmp_path / "keys"), "KeyName", ".pub")
    (tmp_path / "web.pub").touch()
    assert check_key_pairs(tmp_path).found == f"1 in {tmp_path}"


def test_a_bridge_that_is_not_there_fails() -> None:
    _fails(check_bridge("no-bridge", Path("/bin/true")), "no-bridge", "ip link add no-bridge")
    # A loopback device is none.
    _fails(check_bridge("lo", Path("/bin/true")), "lo is no bridge")


@pytest.mark.host_packages
def test_this_hosts_qemu_is_found_and_its_kvm_tried() -> None:
    version, kvm = check_qemu(QemuSettings())
    assert version.state == "ok", version
    assert kvm.check == "KVM"
    assert kvm.state == "ok" or kvm.mend
