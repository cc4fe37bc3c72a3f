"""`fleetcast-agent install` in a tree: what it writes, that it repeats, that it leaves nothing."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING, Final

import pytest
from click.testing import CliRunner

from fleetcast.agent.command import main
from fleetcast.agent.settings import read_settings

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

_PYTHON: Final = "/opt/fleetcast/bin/python"
_WHO: Final = ("--region", "us-east-1", "--nats", "tls://nats.example.com:4222", "--node", "n1")
_CREDENTIALS: Final = (
    "-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n"
    "-----BEGIN USER NKEY SEED-----\nSUAAA\n------END USER NKEY SEED------\n"
)
_UNITS: Final = "etc/systemd/system"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """As much of a Debian as matters: some of the folders are there, some are not."""
    root = tmp_path / "tree"
    for folder in ("opt/fleetcast/bin", f"{_UNITS}/multi-user.target.wants", "etc/sysusers.d"):
        (root / folder).mkdir(parents=True)
    (root / "opt/fleetcast/bin/python").symlink_to("/usr/bin/python3.99")
    (root / "etc/group").write_text("root:x:0:\nkvm:x:104:\n", encoding="utf-8")
    return root


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    path = tmp_path / "n1.creds"
    path.write_text(_CREDENTIALS, encoding="utf-8")
    return path


def _run(command: str, tree: Path, *options: str | Path) -> Result:
    return CliRunner().invoke(main, [command, "--root", str(tree), *map(str, options)])


def _installed(tree: Path, *options: str | Path) -> str:
    result = _run("install", tree, "--python", _PYTHON, *(options or _WHO))
    assert result.exit_code == 0, result.output
    return result.output


def _refused(result: Result, *words: str) -> None:
    assert result.exit_code != 0
    for word in words:
        assert word in result.output
    assert "Traceback" not in result.output


def _files(root: Path) -> dict[str, tuple[int, bytes | str]]:
    """Return every path with its mode and content."""

    def held(path: Path) -> bytes | str:
        if path.is_symlink():
            return str(path.readlink())
        return b"" if path.is_dir() else path.read_bytes()

    return {str(one.relative_to(root)): (one.lstat().st_mode, held(one)) for one in root.rglob("*")}


def test_the_agent_can_be_run_as_the_tree_says(tree: Path, credentials: Path) -> None:
    _installed(tree, *_WHO, "--zone", "us-east-1a", "--creds", credentials, "--family", "m8a")
    settings = read_settings(tree / "etc/fleetcast/agent.toml")
    assert (settings.node, settings.region, settings.zone) == ("n1", "us-east-1", "us-east-1a")
    assert settings.families == ("m8a",)
    assert settings.nats.credentials_file == "/etc/fleetcast/node.creds"
    unit = (tree / _UNITS / "fleetcast-agent.service").read_text(encoding="utf-8")
    assert (
        f"ExecStart={_PYTHON} -I -m fleetcast.agent run --config /etc/fleetcast/agent.toml" in unit
    )
    copied = tree / "etc/fleetcast/node.creds"
    assert copied.read_text(encoding="utf-8") == _CREDENTIALS
    assert stat.S_IMODE(copied.stat().st_mode) == 0o600
    # systemctl itself says whether the link is what it would have made.
    is_enabled = ("systemctl", f"--root={tree}", "is-enabled", "fleetcast-agent.service")
    assert subprocess.run(is_enabled, capture_output=True, check=False).stdout == b"enabled\n"


def test_a_node_serves_all_that_it_can_hold_unless_families_are_named(tree: Path) -> None:
    _installed(tree, *_WHO)
    settings = read_settings(tree / "etc/fleetcast/agent.toml")
    assert (settings.serve, settings.families) == ("all", ())


def test_a_node_without_images_is_told_where_they_belong(tree: Path) -> None:
    images = tree / "etc/fleetcast/images.toml"
    assert f"missing     /{images.relative_to(tree)}" in _installed(tree, *_WHO)
    images.touch()
    assert "missing" not in _installed(tree, *_WHO)


def test_a_second_run_changes_nothing_and_says_so(tree: Path, credentials: Path) -> None:
    _installed(tree, *_WHO, "--creds", credentials)
    before = _files(tree)
    assert _installed(tree, *_WHO, "--creds", credentials).endswith("nothing to change\n")
    assert _run("upgrade", tree, "--python", _PYTHON).output.endswith("nothing to change\n")
    assert _files(tree) == before


def test_uninstalling_leaves_what_was_there_before(tree: Path, credentials: Path) -> None:
    before = _files(tree)
    _installed(tree, *_WHO, "--creds", credentials)
    (tree / "var/lib/fleetcast/guests").mkdir(parents=True)
    (tree / "var/lib/fleetcast/journal.sqlite").touch()
    (tree / "etc/fleetcast/images.toml").touch()
    assert _run("uninstall", tree).exit_code == 0
    (tree / "var/lib").rmdir()
    (tree / "var").rmdir()
    assert _files(tree) == before
    assert _run("uninstall", tree).output == "nothing to change\n"


def test_uninstalling_may_keep_configuration_and_state(tree: Path, credentials: Path) -> None:
    _installed(tree, *_WHO, "--creds", credentials)
    (tree / "var/lib/fleetcast").mkdir(parents=True)
    assert _run("uninstall", tree, "--keep-state").exit_code == 0
    assert (tree / "etc/fleetcast/agent.toml").exists()
    assert (tree / "etc/fleetcast/node.creds").exists()
    assert (tree / "var/lib/fleetcast").exists()
    assert not (tree / _UNITS / "fleetcast-agent.service").exists()


def test_a_rehearsal_says_every_step_and_takes_none(tree: Path) -> None:
    before = _files(tree)
    said = _installed(tree, *_WHO, "--dry-run").splitlines()
    assert _files(tree) == before
    steps = _installed(tree).splitlines()
    assert [line.removeprefix("would ").split() for line in said[:-1]] == [
        line.split() for line in steps[:-1]
    ]
    changes_n = sum(not line.startswith("missing") for line in steps[:-1])
    assert said[-1] == f"a rehearsal: {changes_n} changes, none made"


def test_a_configuration_is_never_overwritten(tree: Path) -> None:
    _installed(tree)
    config = tree / "etc/fleetcast/agent.toml"
    config.write_text("# mine\n", encoding="utf-8")
    assert "agent.toml.new" in _installed(tree)
    assert config.read_text(encoding="utf-8") == "# mine\n"
    assert read_settings(tree / "etc/fleetcast/agent.toml.new").node == "n1"


def test_an_upgrade_renews_units_and_removes_what_this_version_no_longer_has(tree: Path) -> None:
    _installed(tree)
    unit = tree / _UNITS / "fleetcast-agent.service"
    current = unit.read_bytes()
    unit.write_bytes(b"[Unit]\nDescription=an old one\n")
    (tree / "etc/old-one.conf").touch()
    with (tree / "etc/fleetcast/installed-files").open("a", encoding="utf-8") as manifest:
        manifest.write("/etc/old-one.conf\n")
    config = (tree / "etc/fleetcast/agent.toml").read_bytes()
    assert _run("upgrade", tree, "--python", _PYTHON).exit_code == 0
    assert unit.read_bytes() == current
    assert not (tree / "etc/old-one.conf").exists()
    assert (tree / "etc/fleetcast/agent.toml").read_bytes() == config


def test_an_image_may_be_prepared_without_saying_who_its_nodes_are(tree: Path) -> None:
    _installed(tree, "--no-start")
    assert not (tree / "etc/fleetcast/agent.toml").exists()
    assert (tree / _UNITS / "fleetcast-agent.service").exists()


def test_guests_on_a_bridge_get_what_their_network_needs_while_the_configuration_says_so(
    tree: Path,
) -> None:
    drop_in = tree / _UNITS / "fleetcast-guest@.service.d/bridge.conf"
    _installed(tree)
    assert not drop_in.exists()
    config = tree / "etc/fleetcast/agent.toml"
    without = config.read_text(encoding="utf-8")
    config.write_text(f'{without}\n[qemu]\nbridge = "br0"\n', encoding="utf-8")
    assert _run("upgrade", tree, "--python", _PYTHON).exit_code == 0
    assert "AmbientCapabilities=CAP_NET_ADMIN" in drop_in.read_text(encoding="utf-8")
    config.write_text(without, encoding="utf-8")
    assert _run("upgrade", tree, "--python", _PYTHON).exit_code == 0
    assert not drop_in.exists()


def test_a_bridge_can_be_named_when_installing(tree: Path) -> None:
    before = _files(tree)
    _installed(tree, *_WHO, "--bridge", "br0")
    assert read_settings(tree / "etc/fleetcast/agent.toml").qemu.bridge == "br0"
    assert (tree / _UNITS / "fleetcast-agent.service.d/bridge.conf").exists()
    assert _run("uninstall", tree).exit_code == 0
    assert _files(tree) == before


# --- wrong input ---------------------------------------------------------------------------


def test_what_is_wrong_is_told_before_anything_is_changed(tree: Path, tmp_path: Path) -> None:
    before = _files(tree)
    (tmp_path / "no.creds").touch()
    nats = ("--nats", "tls://nats.example.com:4222")
    for options, words in (
        (("--region", "us east", *nats, "--node", "n1"), ("region", "only a-z")),
        (("--region", "us-east-1", "--nats", "nats.example.com", "--node", "n1"), ("nats.url",)),
        (("--region", "us-east-1", *nats), ("--node",)),
        (("--region", "us-east-1", "--node", "n1"), ("--nats",)),
        ((*_WHO, "--family", "t33"), ("families[0]", "t33")),
        ((*_WHO, "--driver", "xen"), ("driver", "qemu")),
        ((*_WHO, "--creds", str(tmp_path / "no.creds")), ("no.creds", "nsc generate creds")),
        ((*_WHO, "--creds", str(tmp_path / "absent")), ("absent", "No such file")),
        ((*_WHO, "--python", "/opt/absent/python"), ("/opt/absent/python", "--python")),
        ((*_WHO, "--python", "/root/venv/bin/python"), ("/root/venv/bin/python",)),
    ):
        _refused(_run("install", tree, "--python", _PYTHON, *options), *words)
    assert _files(tree) == before


def test_an_interpreter_that_the_service_would_not_see_is_refused(tree: Path) -> None:
    (tree / "home/me/venv").mkdir(parents=True)
    (tree / "home/me/venv/python").touch()
    refused = _run("install", tree, "--python", "/home/me/venv/python", *_WHO)
    _refused(refused, "/home/me/venv/python", "-m venv /opt/fleetcast")


def test_an_upgrade_of_nothing_says_how_to_install(tree: Path) -> None:
    _refused(_run("upgrade", tree, "--python", _PYTHON), "not installed", "fleetcast-agent install")


# --- what systemd makes of it --------------------------------------------------------------


@pytest.fixture
def units(tree: Path) -> Path:
    """The folder of the units, with an instance of the template and an interpreter that is one."""
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/env").touch(mode=0o755)
    assert _run("install", tree, "--python", "/usr/bin/env", *_WHO).exit_code == 0
    shutil.copy(
        tree / _UNITS / "fleetcast-guest@.service", tree / _UNITS / "fleetcast-guest@i-1.service"
    )
    return tree / _UNITS


def _systemd_analyze(*arguments: str, folder: Path) -> str:
    assert shutil.which("systemd-analyze"), "systemd-analyze is missing: apt-get install systemd"
    done = subprocess.run(
        ("systemd-analyze", "--no-pager", *arguments),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.host_packages
def test_systemd_has_nothing_to_say_against_the_units(units: Path) -> None:
    names = ("fleetcast-agent.service", "fleetcast-guest@i-1.service", "fleetcast-guests.slice")
    said = _systemd_analyze("verify", *(f"./{name}" for name in names), folder=units)
    assert "fleetcast" not in said, said


@pytest.mark.host_packages
@pytest.mark.parametrize("unit", ["fleetcast-agent.service", "fleetcast-guest@i-1.service"])
def test_the_services_are_sandboxed(units: Path, unit: str) -> None:
    said = _systemd_analyze("security", "--offline=true", f"./{unit}", folder=units)
    score = re.search(r"Overall exposure level for .*: ([0-9.]+)", said)
    assert score
    assert float(score[1]) <= 3.0


def test_systemd_makes_the_user_that_the_units_name(tree: Path) -> None:
    _installed(tree)
    assert shutil.which("systemd-sysusers"), "it is missing: apt-get install systemd"
    subprocess.run(("systemd-sysusers", f"--root={tree}"), check=True, capture_output=True)
    users = (tree / "etc/passwd").read_text(encoding="utf-8")
    groups = (tree / "etc/group").read_text(encoding="utf-8")
    user = re.search(r"^fleetcast:x:\d+:\d+:[^:]*:(.*)$", users, re.MULTILINE)
    assert user
    assert user[1] == "/var/lib/fleetcast:/usr/sbin/nologin"
    assert re.search(r"^kvm:x:\d+:fleetcast$", groups, re.MULTILINE)
