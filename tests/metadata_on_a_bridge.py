"""A bridge with three machines, and a metadata service on it. Prints what each was told.

    unshare --map-root-user --net python -m tests.metadata_on_a_bridge

runs it in a network of its own: all that is made here goes with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from fleetcast.agent.guest_data.metadata_service import MetadataServices
from tests.told_instance import told_instance

_BRIDGE: Final = "br0"
_SERVICE: Final = "169.254.169.254"
_ASK: Final = """
import http.client, sys
def ask(method, path, **headers):
    service = http.client.HTTPConnection("169.254.169.254", 80, timeout=10)
    service.request(method, "/latest/" + path, headers=headers)
    answer = service.getresponse()
    return answer.read().decode() if answer.status == 200 else str(answer.status)
token = ask("PUT", "api/token", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"}).split("\\n")[0]
for path in ("instance-id", "local-ipv4"):
    print(ask("GET", "meta-data/" + path, **{"X-aws-ec2-metadata-token": token}))
"""


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def _machine(number: int, mac: str, lives: ExitStack) -> int:
    """Put a machine onto the bridge, and return the process whose network it is."""
    network = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec sleep 60"], stdout=subprocess.PIPE
    )
    lives.callback(network.wait)
    lives.callback(network.kill)
    assert network.stdout
    network.stdout.readline()  # it has its namespace
    _ip(f"link add port{number} type veth peer name eth{number}")
    _ip(f"link set port{number} master {_BRIDGE} up")
    _ip(f"link set eth{number} address {mac} netns {network.pid}")
    for command in (
        f"address add 10.0.0.1{number}/24 dev eth{number}",
        f"link set eth{number} up",
        "route add default via 10.0.0.1",
    ):
        inside = ["nsenter", "-t", str(network.pid), "--net", "ip", *command.split()]
        subprocess.run(inside, check=True)
    return network.pid


async def _told(pid: int) -> list[str]:
    asking = await asyncio.create_subprocess_exec(
        *("nsenter", "-t", str(pid), "--net", sys.executable, "-I", "-c", _ASK),
        stdout=subprocess.PIPE,
    )
    printed, _ = await asking.communicate()
    return printed.decode().splitlines()


async def main() -> None:
    """Build the world, ask, and print."""
    _ip(f"link add {_BRIDGE} type bridge")
    _ip(f"address add 10.0.0.1/24 dev {_BRIDGE}")
    _ip(f"address add {_SERVICE}/32 dev {_BRIDGE}")
    _ip(f"link set {_BRIDGE} up")
    services = MetadataServices()
    with ExitStack() as lives, tempfile.TemporaryDirectory() as folder:
        machines = {}
        for number, name in enumerate(("first", "second", "stranger"), start=1):
            mac = f"02:00:00:00:00:0{number}"
            machines[name] = _machine(number, mac, lives)
            if name != "stranger":
                own = Path(folder) / name
                own.mkdir()
                told = told_instance(instance_id=f"i-{number:017x}", mac=mac, private_address=None)
                await services.serve(told, own)
        # As when two guests boot at once.
        await asyncio.gather(*(services.serve_bridge(_BRIDGE, _SERVICE, 80) for _ in range(2)))
        told_to = {name: await _told(pid) for name, pid in machines.items()}
        await services.close()
    sys.stdout.write(json.dumps(told_to))


if __name__ == "__main__":
    os.environ["PATH"] += os.pathsep + "/usr/sbin"
    asyncio.run(main())
