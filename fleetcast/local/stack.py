"""The whole system on this machine: NATS, the AWS emulator, the deployed app, agents.

What runs is what a cloud runs: the same CDK app deployed by the same command line, the same
functions, real NATS servers, agents as processes of their own. Only the configuration differs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import boto3
import msgspec
from botocore.config import Config

from fleetcast.errors import FleetcastError
from fleetcast.local.agents import Agents
from fleetcast.local.aws_fakes import AwsFakes
from fleetcast.local.deployment import deploy
from fleetcast.local.emulator import ACCESS_KEY_ID, SECRET_ACCESS_KEY, start_emulator
from fleetcast.local.fleet import OWN_INSTANCE_TYPES, SERVED_TYPES, NodeGroup, parse_size
from fleetcast.local.inventory import held_instances
from fleetcast.local.monitoring import subjects_by_connection
from fleetcast.local.nats_server import start_nats_server
from fleetcast.local.processes import Processes
from fleetcast.local.progress import step
from fleetcast.local.qemu_guests import check_qemu, end_guests, write_image_catalogue
from fleetcast.local.signal_sources import (
    CLUSTER,
    JOB_STACK,
    SignalSources,
    is_aws_region,
    moving_scenario,
)
from fleetcast.local.stack_file import LOCAL_DIRECTORY, StackFile
from fleetcast.local.stack_lock import held_lock
from fleetcast.read_answers import LaunchAnswer
from fleetcast.subjects import launch_subject
from lambdas.region_scores import RegionScoresTable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from mypy_boto3_ec2 import EC2Client


# Where the stack is deployed to; the fleet's regions may be any.
_HOME_REGION: Final = "us-east-1"
_CLIENT_THREADS: Final = 64
_SWEEP_DEADLINE_S: Final = 60
# Started by this very Python, wherever its scripts are.
_COMMAND_LINE: Final = "from fleetcast.cli.command import main; main()"
_COMMAND_DEADLINE_S: Final = 30
_SPOT_PLACEMENT_REFRESH_S: Final = 60
_API_RATE_PER_S: Final = 2_000


class SweepFailed(FleetcastError):
    """The scoring function failed; the message has what it said."""


class LocalStack:
    """A running stack, for the length of a `with` block.

    regions: the first is the default region. fleet: nodes to start with; more may come.
    guests: whether its nodes simulate their guests, or run them in QEMU.
    directory: all that it writes; what an earlier run left is cleared, but for what makes this
    one faster. Entering raises StackAlreadyRunning or ProcessFailed, with nothing left running.
    """

    def __init__(
        self,
        regions: Sequence[str],
        *,
        fleet: Sequence[NodeGroup] = (),
        guests: Literal["simulated", "qemu"] = "simulated",
        directory: Path = LOCAL_DIRECTORY,
    ) -> None:
        self._regions = tuple(regions)
        self._fleet = fleet
        self._images = directory / "images.toml" if guests == "qemu" else None
        self._directory = directory
        self._log_dir = directory / "log"
        self._stack_file = directory / "stack.json"
        self._session = boto3.session.Session(
            aws_access_key_id=ACCESS_KEY_ID,
            aws_secret_access_key=SECRET_ACCESS_KEY,
            region_name=_HOME_REGION,
        )

    def __enter__(self) -> Self:
        with ExitStack() as running:
            self._start(running)
            self._running = running.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with step("Stopping the local stack"):
            self._running.close()

    # --- what it is ------------------------------------------------------------------------

    def describe(self) -> StackFile:
        """Say where everything is, as stack.json does."""
        outputs = self._outputs
        return StackFile(
            api_url=self._emulator.local_api_url(outputs["ApiUrl"]),
            aws_endpoint_url=self._emulator.url,
            access_key_id=ACCESS_KEY_ID,
            secret_access_key=SECRET_ACCESS_KEY,
            regions=self._regions,
            nats={region: server.url for region, server in self._nats.items()},
            tables={"RegionScores": outputs["RegionScoresTable"], "Fleet": outputs["FleetTable"]},
            functions={
                "score_regions": outputs["ScoreRegionsFunction"],
                "run_instances": outputs["RunInstancesFunction"],
                "reconcile": outputs["ReconcileFunction"],
            },
            agents=self._agents.entries,
            log_dir=str(self._log_dir),
        )

    def ec2_client(self, region: str | None = None) -> EC2Client:
        """Return boto3's ordinary EC2 client for the deployed API; many threads may share it.

        region: for this region's own endpoint, whose launches go nowhere else.
        """
        api_url = self.describe().api_url
        return self._session.client(
            "ec2",
            endpoint_url=f"{api_url}regions/{region}" if region else api_url,
            # Without retries: EC2 clients repeat InsufficientInstanceCapacity by themselves.
            config=Config(retries={"total_max_attempts": 1}, max_pool_connections=_CLIENT_THREADS),
        )

    def subscribed_types(self, region: str) -> dict[str, frozenset[str]]:
        """Return the types that each node is subscribed to, as the NATS server sees it.

        Nodes that are subscribed to none are left out.
        """
        types_by_subject = {launch_subject(region, one): one for one in SERVED_TYPES}
        prefix = f"fleetcast-agent {region} "
        subscribed = {
            name.removeprefix(prefix): frozenset(
                types_by_subject[subject] for subject in subjects if subject in types_by_subject
            )
            for name, subjects in subjects_by_connection(self._nats[region].monitoring_url).items()
            if name.startswith(prefix)
        }
        return {node: types for node, types in subscribed.items() if types}

    def held_instances(self, region: str) -> list[str]:
        """Return the ids of all live instances of a region as its nodes report them.

        An id that two nodes hold comes twice. Raises TimeoutError if a node doesn't answer.
        """
        nodes = sum(entry.region == region for entry in self._agents.entries)
        return asyncio.run(held_instances(self._nats[region].url, region, nodes=nodes))

    def explain(self, reservation_id: str) -> LaunchAnswer:
        """Return what `fleetcast explain` says of a launch.

        Raises subprocess.CalledProcessError if the command fails.
        """
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND_LINE, "explain", reservation_id, "--json"],
            env=os.environ
            | self._emulator.environment()
            | {"FLEETCAST_API_URL": self.describe().api_url},
            stdout=subprocess.PIPE,
            timeout=_COMMAND_DEADLINE_S,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=LaunchAnswer)

    # --- what can be done to it ------------------------------------------------------------

    def start_agents(self, region: str, nodes: Sequence[str], size: str) -> None:
        """Start agents and return when they serve.

        size: of each, e.g. ``8vcpu/32GiB``. Raises ProcessFailed, or InvalidConfiguration for a
        size that is none.
        """
        group = NodeGroup(
            region=region,
            nodes=tuple(nodes),
            zones=(None,) * len(nodes),
            size=parse_size(size),
        )
        self._agents.start(group, nats_url=self._nats[region].url)
        self.describe().write(self._stack_file)

    def kill_agent(self, node: str) -> None:
        """End an agent as a crash does. Raises KeyError if there is none of that name."""
        self._agents.kill(node)
        self.describe().write(self._stack_file)

    def queue_jobs(self, region: str, count: int) -> None:
        """Put that many jobs into a region's queue, which makes its score worse."""
        self._signals.queue_jobs(region, count)

    def sweep(self, instance_type: str) -> dict[str, float]:
        """Run the scoring function now; return the type's score in each region.

        Raises SweepFailed with what the function said.
        """
        functions = self._session.client(
            "lambda",
            endpoint_url=self._emulator.url,
            config=Config(read_timeout=_SWEEP_DEADLINE_S, retries={"total_max_attempts": 1}),
        )
        answer = functions.invoke(FunctionName=self._outputs["ScoreRegionsFunction"])
        if answer.get("FunctionError"):
            raise SweepFailed(answer["Payload"].read().decode(errors="replace"))
        dynamodb = self._session.client("dynamodb", endpoint_url=self._emulator.url)
        scores = RegionScoresTable(dynamodb, self._outputs["RegionScoresTable"])
        return {region: score.score for region, score in scores.read_scores(instance_type).items()}

    # --- starting --------------------------------------------------------------------------

    def _start(self, running: ExitStack) -> None:
        running.enter_context(held_lock(self._directory, pid=os.getpid()))
        self._stack_file.unlink(missing_ok=True)
        end_guests(self._directory)  # what an earlier run left, if it was killed
        for name in ("agents", "log", "nats"):
            shutil.rmtree(self._directory / name, ignore_errors=True)
        self._log_dir.mkdir(parents=True)
        if self._images:
            check_qemu()
            (self._directory / "keys").mkdir(exist_ok=True)  # key pairs are whoever's plays with it
            with step("Building a small Linux image"):
                write_image_catalogue(self._images)
        with step("Starting NATS and the AWS emulator"):
            fakes_url = self._start_services(running)
        with step("Deploying the app with cdk") as note:
            self._outputs = deploy(
                self._config(fakes_url),
                self._emulator,
                directory=self._directory / "deployment",
                progress=note,
            )
        if self._fleet:
            with step(f"Starting {sum(len(group.nodes) for group in self._fleet)} agents"):
                for group in self._fleet:
                    self._agents.start(group, nats_url=self._nats[group.region].url)
        running.callback(self._stack_file.unlink, missing_ok=True)
        self.describe().write(self._stack_file)

    def _start_services(self, running: ExitStack) -> str:
        """Start all that the app is deployed onto; return the URL of the AWS fakes."""
        processes = running.enter_context(Processes())
        self._nats = {
            region: start_nats_server(
                processes, self._directory / "nats", name=f"nats-{region}", log_dir=self._log_dir
            )
            for region in self._regions
        }
        running.callback(end_guests, self._directory)
        self._agents = Agents(
            # Stopped on their own, and first: an agent that loses its NATS can't leave in order.
            running.enter_context(Processes()),
            directory=self._directory / "agents",
            log_dir=self._log_dir,
            images=self._images,
        )
        scenario = moving_scenario(self._regions)
        fakes = running.enter_context(AwsFakes(lambda: scenario))
        self._emulator = start_emulator(
            processes, self._directory / "emulator", region=_HOME_REGION, log_dir=self._log_dir
        )
        self._signals = running.enter_context(
            SignalSources(self._session, self._emulator.url, self._regions)
        )
        return fakes.url

    def _config(self, fakes_url: str) -> dict[str, Any]:
        """Say what stands under "fleetcast" in a real deployment's cdk.json."""
        regions = [
            {"name": name, "nats_url": server.url}
            | (
                {"job_stack_name": JOB_STACK, "cluster_name": CLUSTER}
                if is_aws_region(self._session, name)
                else {}
            )
            for name, server in self._nats.items()
        ]
        return {
            "regions": regions,
            "default_region": self._regions[0],
            "instance_types": msgspec.to_builtins(OWN_INSTANCE_TYPES),
            "scoring": {
                "scored_instance_types": SERVED_TYPES,
                # The fakes have no limit, and their scores move within minutes.
                "spot_placement_refresh_s": _SPOT_PLACEMENT_REFRESH_S,
            },
            # A storm is to meet the fleet, not API Gateway's throttle, which the emulator has too.
            "api_rate_per_s": _API_RATE_PER_S,
            "api_burst": _API_RATE_PER_S,
            "function_platform": "local",
            "retain_tables": False,
            "aws_endpoint_urls": {"ec2": fakes_url, "pricing": fakes_url},
        }
