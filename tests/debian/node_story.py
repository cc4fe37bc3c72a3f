"""What happens on a node that systemd runs, from installing to uninstalling the agent.

test_on_a_node.py has it run there as root, by the interpreter that fleetcast is installed for. It
prints what it does; the last line is ENDED_WELL if all was as it should be.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import nats

from fleetcast import messages
from fleetcast.subjects import NodeAction, launch_subject, node_subject

if TYPE_CHECKING:
    from collections.abc import Callable

ENDED_WELL: Final = "the story has ended well"
# An emulated guest on an emulated node takes its time.
_WITHIN_S: Final = 240
_AGENT: Final = "/opt/fleetcast/bin/fleetcast-agent"
_URL: Final = "nats://127.0.0.1:4222"
_IMAGE_ID: Final = "ami-0123456789abcdef0"
_INSTANCE: Final = f"i-{1:017x}"
_UNIT: Final = f"fleetcast-guest@{_INSTANCE}.service"
_AS_THE_AGENT: Final = (
    *("systemd-run", "--quiet", "--pipe", "--wait"),
    *("--property=User=fleetcast", "--property=NoNewPrivileges=yes"),
)


def main() -> None:
    """Tell the story."""
    _run("systemd-run", "--quiet", "--unit=nats", "nats-server", "-a", "127.0.0.1")
    _until("NATS answers", lambda: _fails_not("systemctl", "is-active", "nats"))
    before = _paths()
    installed()
    pid = a_guest_is_launched()
    the_agent_may_touch_nothing_else()
    the_guest_outlives_the_agent(pid)
    a_hung_server_ends_the_agent(pid)
    a_stopped_unit_lets_its_guest_shut_down()
    uninstalled()
    assert _paths() == before, sorted(_paths() ^ before)
    print(ENDED_WELL, flush=True)  # noqa: T201 - it is what this is for


def installed() -> None:
    """Install, and once more."""
    Path("/etc/fleetcast").mkdir(mode=0o755)
    Path("/root/images.toml").rename("/etc/fleetcast/images.toml")
    install = (_AGENT, "install", "--region", "us-east-1", "--nats", _URL, "--node", "n1")
    said = _run(*install, "--family", "t3")
    assert "systemctl start fleetcast-agent.service" in said, said
    assert _run(*install, "--family", "t3").endswith("nothing to change\n")
    assert _run("systemctl", "is-active", "fleetcast-agent") == "active\n"
    examined = _run(_AGENT, "doctor")
    for finding in ("user: user fleetcast can run", "guests' units: systemd begins", "permissions"):
        assert f"ok    {finding}" in examined, examined
    Path("/etc/fleetcast/agent.toml").chmod(0o600)
    assert not _fails_not(_AGENT, "doctor")
    Path("/etc/fleetcast/agent.toml").chmod(0o640)


def a_guest_is_launched() -> int:
    """Launch one and return its QEMU's pid."""
    accepted = asyncio.run(_launch())
    assert isinstance(accepted, messages.Accepted), accepted
    _until("the guest runs", lambda: _state() == "running")
    pid = _guest_pid()
    cgroup = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").strip()
    slice_ = "0::/fleetcast.slice/fleetcast-guests.slice"
    assert cgroup == f"{slice_}/{_UNIT}/guest", cgroup
    limits = Path("/sys/fs/cgroup" + cgroup.removeprefix("0::"))
    assert int((limits / "memory.max").read_text()) > 512 * 1024**2
    assert (limits / "cpu.max").read_text() == "300000 100000\n"
    return pid


def the_agent_may_touch_nothing_else() -> None:
    """Try what the agent's user must not be able to do."""
    for command in (
        ("systemctl", "--no-ask-password", "stop", "nats"),
        ("systemctl", "--no-ask-password", "start", "fleetcast-guest@evil.service"),
        ("systemctl", "--no-ask-password", "set-property", _UNIT, "MemoryMax=1G"),
        ("systemd-run", "--no-ask-password", "/usr/bin/id"),
    ):
        assert not _fails_not(*_AS_THE_AGENT, *command), command


def the_guest_outlives_the_agent(pid: int) -> None:
    """Restart, kill and upgrade the agent; it takes its guest up each time."""
    for command in (
        ("systemctl", "restart", "fleetcast-agent"),
        ("systemctl", "kill", "--signal=SIGKILL", "fleetcast-agent"),
        (_AGENT, "upgrade"),
    ):
        _run(*command)
        _until("the agent has it again", lambda: _state() == "running")
        assert _guest_pid() == pid


def a_hung_server_ends_the_agent(pid: int) -> None:
    """Stop the server from doing anything: the agent ends within a minute and says why."""
    _run("systemctl", "kill", "--signal=SIGSTOP", "nats")
    began_s = time.monotonic()
    _until("the agent ends", lambda: "agent stopped" in _journal(), within_s=60)
    _say(f"it took {time.monotonic() - began_s:.0f} s")
    assert _guest_pid() == pid
    _run("systemctl", "kill", "--signal=SIGCONT", "nats")
    _until("the agent has it again", lambda: _state() == "running")


def a_stopped_unit_lets_its_guest_shut_down() -> None:
    """Stop the unit with no agent about, as when the host shuts down; then boot it again."""
    _run("systemctl", "stop", "fleetcast-agent")
    _run("systemctl", "stop", _UNIT)
    unit = _run("journalctl", f"--unit={_UNIT}", "--output=cat")
    assert "can't be asked" not in unit, unit
    _run("systemctl", "start", "fleetcast-agent")
    _until("the guest runs again", lambda: _state() == "running")


def uninstalled() -> None:
    """Uninstall: refused while the guest runs, and leaves nothing when it may end."""
    pid = _guest_pid()
    refused = subprocess.run((_AGENT, "uninstall"), capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert _INSTANCE in refused.stderr, refused.stderr
    _run(_AGENT, "uninstall", "--terminate-guests")
    assert not Path(f"/proc/{pid}").exists()
    assert not Path("/run/fleetcast").exists()
    assert not _fails_not("id", "fleetcast")
    assert not _fails_not("systemctl", "cat", "fleetcast-agent")


# --- seen and asked ------------------------------------------------------------------------


async def _launch() -> messages.LaunchReply:
    request = messages.LaunchRequest(
        account_id="000000000000",
        instances=(messages.InstanceToLaunch(instance_id=_INSTANCE, launch_index=0),),
        instance_type="t3.nano",
        image_id=_IMAGE_ID,
        shutdown_behavior="stop",
        tags={},
    )
    expires_at_ms = time.time_ns() // 1_000_000 + 10_000
    headers = messages.LaunchHeaders(
        launch_id="r-0123456789abcdef0", attempt=1, expires_at_ms=expires_at_ms
    )
    answer = await _ask(
        launch_subject("us-east-1", "t3.nano"), messages.encode(request), headers.encode()
    )
    return messages.decode_launch_reply(answer)


def _state() -> str | None:
    """Return the state of the instance as its node tells it; None without an answer."""
    request = messages.encode(messages.InstancesRequest(instance_ids=(_INSTANCE,)))
    subject = node_subject("us-east-1", "n1", NodeAction.DESCRIBE)
    try:
        answer = asyncio.run(_ask(subject, request))
    except (nats.errors.Error, OSError):
        return None
    (report,) = messages.decode(answer, messages.InstancesReply).instances
    return report.state


async def _ask(subject: str, payload: bytes, headers: dict[str, str] | None = None) -> bytes:
    connection = await nats.connect(_URL, allow_reconnect=False)
    try:
        answer = await connection.request(subject, payload, timeout=10, headers=headers)
        return bytes(answer.data)
    finally:
        await connection.close()


def _guest_pid() -> int:
    return int(_run("systemctl", "show", "--property=MainPID", "--value", _UNIT))


def _journal() -> str:
    lines = _run("journalctl", "--unit=fleetcast-agent", "--output=cat", "--lines=20")
    said = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return " ".join(one["message"] for one in said[-1:])


def _paths() -> set[str]:
    """Return all that is kept on the node's disk, apart from what systemd itself notes."""
    found = _run("find", "/etc", "/opt", "/usr", "/var/lib", "/srv", "-xdev")
    own = ("/var/lib/systemd", "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-")
    return {one for one in found.splitlines() if not one.startswith(own)}


def _until(what: str, holds: Callable[[], bool], *, within_s: float = _WITHIN_S) -> None:
    _say(f"waiting until {what}")
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(0.5)


def _fails_not(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> str:
    _say(" ".join(command))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _say(what: str) -> None:
    print(what, flush=True)  # noqa: T201 - the test that started this shows it


if __name__ == "__main__":
    main()
