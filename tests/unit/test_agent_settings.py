"""agent.toml: every mistake is told with its key, and no secret is repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.settings import AgentSettings, read_settings
from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import ec2_catalogue

if TYPE_CHECKING:
    from pathlib import Path

_NOBODY = 65_534
_GOOD = """
node = "n1"
region = "us-east-1"
state_dir = "/var/lib/fleetcast"
driver = "simulated"
families = ["t3", "m8a"]
instance_types = ["c7g.large"]

[nats]
url = "tls://nats.example.com:4222"

[capacity]
vcpu = 8
memory_mib = 32768

[[own_instance_types]]
name = "m8a.nano"
vcpu = 1
memory_mib = 512
"""


def _read(tmp_path: Path, text: str) -> AgentSettings:
    path = tmp_path / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return read_settings(path)


def test_a_node_serves_its_families_and_types(tmp_path: Path) -> None:
    served = _read(tmp_path, _GOOD).served_types(ec2_catalogue())
    assert {"t3.nano", "t3.2xlarge", "m8a.nano", "m8a.2xlarge", "c7g.large"} <= set(served)
    assert {one.family for one in served.values()} == {"t3", "m8a", "c7g"}
    assert served["m8a.nano"].memory_mib == 512


@pytest.mark.parametrize(
    ("good", "bad", "key"),
    [
        ('node = "n1"', "", "node"),
        ('node = "n1"', 'node = "n.1"', "node"),
        ('node = "n1"', 'node = ""', "node"),
        ('region = "us-east-1"', 'region = "*"', "region"),
        ('region = "us-east-1"', 'region = "US"', "region"),
        ('node = "n1"', 'node = "n1"\nzone = "a.b"', "zone"),
        ('node = "n1"', 'node = "n1"\nnodes = "n1"', "nodes"),
        ('driver = "simulated"', 'driver = "docker"', "driver"),
        ('families = ["t3", "m8a"]', 'families = ["t3", "t33"]', "families[1]"),
        ('families = ["t3", "m8a"]', "families = 1", "families"),
        ('"c7g.large"', '"c7g.tiny"', "instance_types[0]"),
        ("vcpu = 8", "vcpu = 0", "capacity.vcpu"),
        ("vcpu = 8", 'vcpu = "8"', "capacity.vcpu"),
        ("memory_mib = 32768", "memory_mib = -1", "capacity.memory_mib"),
        ('families = ["t3", "m8a"]', 'serve = "some"', "serve"),
        ('families = ["t3", "m8a"]', 'architecture = "riscv64"', "architecture"),
        ('families = ["t3", "m8a"]', 'cpu_manufacturers = ["Acme"]', "cpu_manufacturers[0]"),
        ("[capacity]", "[gpus]\npassthrough = 1\n[capacity]", "gpus.passthrough"),
        ("[capacity]", "[telemetry]\nprometheus_port = 0\n[capacity]", "telemetry.prometheus_port"),
        ("vcpu = 8", "vcpu_per_core = 0", "capacity.vcpu_per_core"),
        ("vcpu = 8", "vcpu_per_core = 65", "capacity.vcpu_per_core"),
        ("vcpu = 8", "reserve_memory_mib = -1", "capacity.reserve_memory_mib"),
        ("vcpu = 8", "disk_gib = 0.5", "capacity.disk_gib"),
        ("vcpu = 8", "root_disk_gib = 0", "capacity.root_disk_gib"),
        ("vcpu = 8", "memory_gib = 8", "capacity.memory_gib"),
        ('name = "m8a.nano"', 'name = "m8a"', "own_instance_types[0].name"),
        ('name = "m8a.nano"', 'name = "t3.nano"', "own_instance_types[0].name"),
        ("tls://nats.example.com:4222", "nats://nats.example.com:4222", "nats.url"),
        ("tls://nats.example.com:4222", "nats://127.0.0.1.evil.com:4222", "nats.url"),
        ("tls://nats.example.com:4222", "tls://", "nats.url"),
        ("tls://nats.example.com:4222", "tls://host:port", "nats.url"),
        ("tls://nats.example.com:4222", "", "nats.url"),
        ("[capacity]", "images.cache_gib = 0\n[capacity]", "nats.images"),
        ("[capacity]", "[images]\ncache_gib = 0\n[capacity]", "images.cache_gib"),
        ("[capacity]", "[images]\nrefresh_s = 1\n[capacity]", "images.refresh_s"),
        ("[capacity]", '[images]\ncatalogue = ""\n[capacity]', "images.catalogue"),
        ("[capacity]", '[images]\ncatalogue = "a.toml"\n[capacity]', "images.catalogue"),
        ("[capacity]", '[images]\ncache_dir = "/a\\u0000b"\n[capacity]', "images.cache_dir"),
        ("[capacity]", "[images]\nrefresh_s = 86401\n[capacity]", "images.refresh_s"),
        ("[capacity]", '[qemu]\nbridge = "a bridge"\n[capacity]', "qemu.bridge"),
        ("[capacity]", '[qemu]\nbridge = "more-than-15-letters"\n[capacity]', "qemu.bridge"),
        ("[capacity]", '[qemu]\nbridge_helper = "helper"\n[capacity]', "qemu.bridge_helper"),
        ("[capacity]", '[qemu]\nbinary = "/a\\u0000b"\n[capacity]', "qemu.binary"),
        ("[capacity]", '[qemu]\nuefi_code = ""\n[capacity]', "qemu.uefi_code"),
        ("[capacity]", "[[qemu]]\n[capacity]", "qemu"),
        ('"/var/lib/fleetcast"', '"state"', "state_dir"),
        ('"/var/lib/fleetcast"', '"/a\\u0000b"', "state_dir"),
        ("[nats]", 'key_pairs_dir = "keys"\n[nats]', "key_pairs_dir"),
        ("[capacity]", 'credentials_file = "/a\\nb"\n[capacity]', "nats.credentials_file"),
        ('node = "n1"', f'node = "{"n" * 65}"', "node"),
        ('region = "us-east-1"', f'region = "{"r" * 65}"', "region"),
        ("vcpu = 8", "vcpu = 99999999999999999999", "capacity.vcpu"),
        ("memory_mib = 32768", "memory_mib = 99999999999999999999", "capacity.memory_mib"),
        ("[nats]", 'cpu_manufacturers = ["AMD"]\n[nats]', "cpu_manufacturers"),
        (
            "[capacity]",
            '[images]\nregion_catalogue = "http://x/images.toml"\n[capacity]',
            "images.region_catalogue",
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_key(tmp_path: Path, good: str, bad: str, key: str) -> None:
    assert good in _GOOD
    with pytest.raises(InvalidConfiguration) as caught:
        _read(tmp_path, _GOOD.replace(good, bad, 1))
    assert caught.value.key.rpartition(": ")[2] == key


@pytest.mark.parametrize(
    ("good", "bad", "key"),
    [
        ("memory_mib = 512", "memory_mib = 0", "own_instance_types[0].memory_mib"),
        ('name = "m8a.nano"', 'name = "t3.nano"', "own_instance_types[0].name"),
        ('instance_types = ["c7g.large"]', 'instance_types = ["c7g.x"]', "instance_types[0]"),
    ],
)
def test_a_wrong_value_is_told_with_its_file_and_line(
    tmp_path: Path, good: str, bad: str, key: str
) -> None:
    wrong = _GOOD.replace(good, bad)
    with pytest.raises(InvalidConfiguration) as caught:
        _read(tmp_path, wrong)
    line = wrong.splitlines().index(bad) + 1
    assert str(caught.value).startswith(f"{tmp_path / 'agent.toml'}, line {line}: {key}: ")


def test_what_is_wrong_on_the_host_is_told_with_its_line_too(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    blocked = tmp_path / "a-file" / "state"
    blocked.parent.touch()
    path.write_text(_GOOD.replace("/var/lib/fleetcast", str(blocked)), encoding="utf-8")
    ended = subprocess.run(
        (sys.executable, "-m", "fleetcast.agent", "run", "--config", path),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    why = json.loads(ended.stderr)["why"]
    assert (ended.returncode, why.partition(" can't be made")[0]) == (
        1,
        f"{path}, line 4: state_dir: {blocked}",
    )


@pytest.mark.parametrize(
    "url", ["nats://127.0.0.1:4222", "nats://localhost", "nats://[::1]:4222", "tls://nats:4222"]
)
def test_nats_without_tls_is_for_loopback(tmp_path: Path, url: str) -> None:
    settings = _read(tmp_path, _GOOD.replace("tls://nats.example.com:4222", url))
    assert settings.nats.url == url


@pytest.mark.parametrize("userinfo", ["token-s3cret", "user:s3cret", ":s3cret"])
@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_credentials_in_the_url_are_refused_and_not_repeated(
    tmp_path: Path, scheme: str, userinfo: str
) -> None:
    url = f"{scheme}://{userinfo}@127.0.0.1:4222"
    with pytest.raises(InvalidConfiguration) as caught:
        _read(tmp_path, _GOOD.replace("tls://nats.example.com:4222", url))
    assert "s3cret" not in str(caught.value)


def test_what_instances_may_use_need_not_be_said(tmp_path: Path) -> None:
    text = _GOOD.replace("[capacity]", "").replace("vcpu = 8", "").replace("memory_mib = 32768", "")
    capacity = _read(tmp_path, text).capacity
    assert (capacity.vcpu, capacity.memory_mib, capacity.vcpu_per_core) == (None, None, 1.0)


def test_a_node_that_serves_nothing_is_refused(tmp_path: Path) -> None:
    nothing = _GOOD.replace('["t3", "m8a"]', "[]").replace('["c7g.large"]', "[]")
    with pytest.raises(InvalidConfiguration, match="serve nothing"):
        _read(tmp_path, nothing)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"agent\.toml: can't be read"):
        read_settings(tmp_path / "agent.toml")


def test_who_may_not_read_it_is_told_who_may(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(_GOOD, encoding="utf-8")
    path.chmod(0)
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(_NOBODY)
    try:
        with pytest.raises(InvalidConfiguration, match=r"Permission denied; .*\(sudo\)"):
            read_settings(path)
    finally:
        if was_root:
            os.seteuid(0)


@pytest.mark.parametrize(
    "content",
    [
        b"node = ",
        b"\xff\xfe",
        b'node = "n1"\nnode = "n2"',
        b"node = " + b"[" * 9_999 + b"]" * 9_999,
    ],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidConfiguration, match=r"agent\.toml: is no TOML"):
        read_settings(path)


def test_a_mark_that_editors_put_in_front_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(_GOOD, encoding="utf-8-sig")
    assert read_settings(path).node == "n1"
