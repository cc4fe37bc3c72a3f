"""When systemd stops a guest's unit, the guest is asked to shut itself down first."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import TYPE_CHECKING, Final

from fleetcast.agent import guest_shutdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

_SHUTDOWN: Final = b'{"event": "SHUTDOWN", "data": {"guest": true}}\r\n'


@contextlib.contextmanager
def monitor(path: Path, answer: Callable[[str, int], bytes | None]) -> Iterator[list[str]]:
    """Serve one client as QEMU's monitor does; yield what it was told.

    answer: by the command and how many there were before it; None to hang up.
    """
    told: list[str] = []

    def serve(listening: socket.socket) -> None:
        client, _ = listening.accept()
        with client, client.makefile("rb") as lines:
            client.sendall(b'{"QMP": {"version": {}}}\r\n')
            for line in lines:
                told.append(json.loads(line)["execute"])
                said = answer(told[-1], len(told) - 1)
                if said is None:
                    return
                client.sendall(b'{"return": {}}\r\n' + said)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield told
        thread.join(10)
        assert not thread.is_alive()


def test_the_power_button_is_pressed_until_the_guest_has_shut_down(tmp_path: Path) -> None:
    path = tmp_path / "qmp.sock"
    # It doesn't hear the first press, and tells the end in two pieces.
    with monitor(path, lambda _, before: _SHUTDOWN[:20] if before == 2 else b"") as told:
        assert not guest_shutdown.shut_down(path, within_s=0.3, press_every_s=0.1)
    assert told[:3] == ["qmp_capabilities", "system_powerdown", "system_powerdown"]
    path.unlink()
    with monitor(path, lambda _, before: _SHUTDOWN if before == 2 else b"") as told:
        assert guest_shutdown.shut_down(path, within_s=10, press_every_s=0.1)
    assert told == ["qmp_capabilities", "system_powerdown", "system_powerdown"]


def test_a_qemu_that_ends_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "qmp.sock"
    with monitor(path, lambda _, before: None if before else b""):
        assert not guest_shutdown.shut_down(path, within_s=60)


def test_a_guest_without_a_monitor_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not guest_shutdown.shut_down(tmp_path / "qmp.sock", within_s=60)
    assert "can't be asked to shut down" in capsys.readouterr().err
