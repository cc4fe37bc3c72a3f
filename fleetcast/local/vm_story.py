"""One real guest's life, told step by step on a running local stack whose node runs QEMU.

Drives the deployed API through boto3's ordinary EC2 client; what is left of a guest is looked for
where its node keeps it.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from botocore.exceptions import ClientError

from fleetcast.local.conditions import wait_until
from fleetcast.local.qemu_guests import IMAGE_ID, guest_pids
from fleetcast.local.story import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetcast.local.stack import LocalStack

REGION: Final = "us-east-1"
NODE: Final = "vm1"
NODE_SIZE: Final = "4vcpu/2GiB"

_INSTANCE_TYPE: Final = "t3.nano"
# An emulated processor on a machine that is busy otherwise, too.
_BOOTS_WITHIN_S: Final = 180.0
_ENDS_WITHIN_S: Final = 120.0
_LOOKS_EVERY_S: Final = 0.5
_CONSOLE_LINES_SHOWN: Final = 12


class VmStory:
    """Tells the story on a stack with REGION whose guests are QEMU's, and no agents yet.

    tell: called with each step as soon as it is known.
    """

    def __init__(self, stack: LocalStack, tell: Callable[[Step], None]) -> None:
        self._stack = stack
        self._tell = tell
        self._ec2 = stack.ec2_client()
        self._secret = secrets.token_hex(8)
        self.steps: list[Step] = []

    def run(self) -> bool:
        """Run every step, also after one that did not hold. Return whether all held."""
        self._stack.start_agents(REGION, (NODE,), NODE_SIZE)
        instance_id = self._boot()
        if instance_id is None:
            return False
        self._read_its_console(instance_id)
        self._outlive_its_agent(instance_id)
        self._stop_and_start(instance_id)
        self._terminate(instance_id)
        return all(step.held for step in self.steps)

    # --- the steps -------------------------------------------------------------------------

    def _boot(self) -> str | None:
        began_s = time.monotonic()
        try:
            reply = self._ec2.run_instances(
                ImageId=IMAGE_ID,
                InstanceType=_INSTANCE_TYPE,
                MinCount=1,
                MaxCount=1,
                UserData=f"#!/bin/sh\necho {self._secret} from $(uname -s) on $(hostname)\n",
            )
        except ClientError as error:
            self._step("a: a guest boots", "an instance", str(error), held=False)
            return None
        accepted_ms = (time.monotonic() - began_s) * 1000
        instance_id = reply["Instances"][0]["InstanceId"]
        held = self._comes_to(instance_id, "running")
        self._step(
            "a: a guest boots",
            "RunInstances answers at once, and the instance runs when QEMU says so",
            f"{instance_id} accepted after {accepted_ms:.0f} ms, {self._state_of(instance_id)} "
            f"after {time.monotonic() - began_s:.1f} s: {_told(self._guest_process(instance_id))}",
            held=held and self._guest_process(instance_id) is not None,
        )
        return instance_id

    def _read_its_console(self, instance_id: str) -> None:
        wanted = f"{self._secret} from Linux"
        held = wait_until(
            lambda: wanted in self._console(instance_id), _BOOTS_WITHIN_S, every_s=_LOOKS_EVERY_S
        )
        lines = self._console(instance_id).splitlines()[-_CONSOLE_LINES_SHOWN:]
        self._step(
            "b: its console",
            f"GetConsoleOutput has what the user data printed: {wanted!r}",
            "".join(f"\n    {line}" for line in lines),
            held=held,
        )

    def _outlive_its_agent(self, instance_id: str) -> None:
        before = self._guest_process(instance_id)
        self._stack.kill_agent(NODE)
        self._stack.start_agents(REGION, (NODE,), NODE_SIZE)
        after = self._guest_process(instance_id)
        self._step(
            "c: the agent dies",
            "after kill -9 and a new agent it is the same process, and still running",
            f"before: {_told(before)}; after: {_told(after)}; {self._state_of(instance_id)}",
            held=before is not None
            and before == after
            and self._state_of(instance_id) == "running",
        )

    def _stop_and_start(self, instance_id: str) -> None:
        self._ec2.stop_instances(InstanceIds=[instance_id])
        stopped = self._comes_to(instance_id, "stopped", _ENDS_WITHIN_S)
        gone = self._guest_process(instance_id) is None
        if stopped:
            self._ec2.start_instances(InstanceIds=[instance_id])
        held = stopped and wait_until(
            lambda: "guest: boot 2" in self._console(instance_id),
            _BOOTS_WITHIN_S,
            every_s=_LOOKS_EVERY_S,
        )
        self._step(
            "d: stopped and started",
            "it shuts down, uses nothing, and boots a second time from the disk that it had",
            f"stopped: {_yes(stopped)}; process gone: {_yes(gone)}; counted its second boot: "
            f"{_yes(held)}",
            held=held and gone,
        )

    def _terminate(self, instance_id: str) -> None:
        self._ec2.terminate_instances(InstanceIds=[instance_id])
        ended = self._comes_to(instance_id, "terminated", _ENDS_WITHIN_S)
        process = self._guest_process(instance_id)
        left = self._files_of(instance_id)
        self._step(
            "e: terminated",
            "no process and no file is left of it",
            f"{self._state_of(instance_id)}; process: {_told(process)}; files: {len(left)}",
            held=ended and process is None and not left,
        )

    # --- the means -------------------------------------------------------------------------

    def _comes_to(self, instance_id: str, state: str, within_s: float = _BOOTS_WITHIN_S) -> bool:
        return wait_until(
            lambda: self._state_of(instance_id) == state, within_s, every_s=_LOOKS_EVERY_S
        )

    def _state_of(self, instance_id: str) -> str:
        reservations = self._ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
        return reservations[0]["Instances"][0]["State"]["Name"]

    def _console(self, instance_id: str) -> str:
        return self._ec2.get_console_output(InstanceId=instance_id).get("Output", "")

    def _guest_process(self, instance_id: str) -> int | None:
        pids = guest_pids(self._state_dir(), instance_id)
        return pids[0] if pids else None

    def _files_of(self, instance_id: str) -> list[Path]:
        return list(self._state_dir().rglob(f"*{instance_id}*"))

    def _state_dir(self) -> Path:
        (agent,) = self._stack.describe().agents
        return Path(agent.state_dir)

    def _step(self, name: str, expected: str, seen: str, *, held: bool) -> None:
        step = Step(name=name, expected=expected, seen=seen, held=held)
        self.steps.append(step)
        self._tell(step)


def _told(pid: int | None) -> str:
    return "none" if pid is None else f"QEMU process {pid}"


def _yes(held: bool) -> str:  # noqa: FBT001 - its one argument
    return "yes" if held else "no"
