"""What fleetcast does, told step by step on a running local stack.

Drives the deployed API through boto3's ordinary EC2 client and looks at the NATS servers' own
monitoring for who listens. The demo prints the steps; the e2e test asserts that each held.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from botocore.exceptions import ClientError

from fleetcast.launch_words import tell_launch
from fleetcast.local.conditions import wait_until
from fleetcast.local.fleet import SERVED_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_ec2 import EC2Client

    from fleetcast.local.stack import LocalStack

BETTER: Final = "us-east-1"
WORSE: Final = "eu-west-1"
SMALL_NODE: Final = "8vcpu/32GiB"  # four t3.medium
LARGE_NODE: Final = "40vcpu/160GiB"  # twenty t3.medium
STORM_LAUNCHES: Final = 300
STORM_SLOTS: Final = 60
STORM_THREADS: Final = 16

_ALL_TYPES: Final = frozenset(SERVED_TYPES)
_IMAGE: Final = "ami-0123456789abcdef0"
_SETTLE_S: Final = 10.0
_NO_CAPACITY: Final = "InsufficientInstanceCapacity"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One claim of the story, and whether it held."""

    name: str
    expected: str
    seen: str
    held: bool


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What one RunInstances call came to. where: (region, node), or None if refused."""

    reservation_id: str | None
    instance_id: str | None
    where: tuple[str, str] | None
    error: str | None
    milliseconds: float


class Story:
    """Tells the story on a stack with the regions BETTER and WORSE and no agents yet.

    tell: called with each step as soon as it is known.
    """

    def __init__(self, stack: LocalStack, tell: Callable[[Step], None]) -> None:
        self._stack = stack
        self._tell = tell
        self._ec2 = stack.ec2_client()
        self.steps: list[Step] = []

    def run(self) -> bool:
        """Run every step, also after one that did not hold. Return whether all held."""
        self._stack.start_agents(BETTER, ("n1", "n2", "n3"), SMALL_NODE)
        self._all_subscribed()
        first = self._fill_one_node()
        self._fill_the_others(first)
        self._refuse_the_ninth()
        self._come_back(first)
        overflow = self._prefer_the_better_region()
        self._explain(overflow)
        self._stay_in_the_pinned_region(overflow)
        self._storm()
        return all(step.held for step in self.steps)

    # --- the steps -------------------------------------------------------------------------

    def _all_subscribed(self) -> None:
        want = dict.fromkeys(("n1", "n2", "n3"), _ALL_TYPES)
        held = wait_until(lambda: self._stack.subscribed_types(BETTER) == want, _SETTLE_S)
        counts = _counts(self._stack.subscribed_types(BETTER))
        self._step(
            "a: all serve all",
            "n1, n2 and n3 each subscribed to the 14 types",
            f"subscribed types: {counts}",
            held=held,
        )

    def _fill_one_node(self) -> Launch:
        launch = self._launch("t3.2xlarge")
        node = launch.where[1] if launch.where else "nobody"
        held = launch.where is not None and wait_until(
            lambda: node not in self._stack.subscribed_types(BETTER), _SETTLE_S
        )
        self._step(
            "b: a full node leaves",
            "t3.2xlarge fills one node, and it leaves all 14 subjects",
            f"launched on {node}; subscribed types: "
            f"{_counts(self._stack.subscribed_types(BETTER))}",
            held=held,
        )
        return launch

    def _fill_the_others(self, first: Launch) -> None:
        launches = [self._launch("t3.medium") for _ in range(8)]
        nodes = Counter(launch.where[1] if launch.where else launch.error for launch in launches)
        full = first.where[1] if first.where else ""
        held = (
            set(nodes) == {"n1", "n2", "n3"} - {full}
            and set(nodes.values()) == {4}
            and wait_until(lambda: not self._stack.subscribed_types(BETTER), _SETTLE_S)
        )
        self._step(
            "c: the others fill up",
            f"eight t3.medium, four on each other node, none on {full}",
            f"launches by node: {dict(sorted(nodes.items(), key=str))}",
            held=held,
        )

    def _refuse_the_ninth(self) -> None:
        launch = self._launch("t3.medium")
        self._step(
            "d: no responders, no capacity",
            f"the ninth is refused with {_NO_CAPACITY}, as nobody listens any more",
            f"{launch.error or launch.where} after {launch.milliseconds:.0f} ms (within 200 ms: "
            f"{'yes' if launch.milliseconds <= 200 else 'no'}); "  # noqa: PLR2004 - shown, never held against it
            f"listening: {_counts(self._stack.subscribed_types(BETTER)) or 'nobody'}",
            held=launch.error == _NO_CAPACITY,
        )

    def _come_back(self, first: Launch) -> None:
        if first.instance_id is None or first.where is None:
            self._step("e: room comes back", "a terminated instance's node", "none", held=False)
            return
        node = first.where[1]
        self._ec2.terminate_instances(InstanceIds=[first.instance_id])
        back = wait_until(
            lambda: self._stack.subscribed_types(BETTER).get(node) == _ALL_TYPES, _SETTLE_S
        )
        launch = self._launch("t3.medium")
        self._step(
            "e: room comes back",
            f"after terminating on {node} it serves 14 types again and takes the next launch",
            f"back: {'yes' if back else 'no'}; launched on "
            f"{launch.where[1] if launch.where else launch.error}",
            held=back and launch.where == (BETTER, node),
        )

    def _prefer_the_better_region(self) -> Launch:
        """Return the first launch that had to leave the better region."""
        self._stack.start_agents(WORSE, ("m1",), SMALL_NODE)
        self._stack.queue_jobs(WORSE, 40)
        scores = self._stack.sweep("t3.medium")
        launches = [self._launch("t3.medium") for _ in range(8)]
        places = [launch.where[0] if launch.where else launch.error for launch in launches]
        self._step(
            "f: the better region first",
            f"3 launches fill {BETTER}, 4 fill {WORSE}, then {_NO_CAPACITY}",
            f"scores: {scores}; in order: {', '.join(map(str, places))}",
            held=scores[BETTER] < scores[WORSE]
            and places == [BETTER] * 3 + [WORSE] * 4 + [_NO_CAPACITY],
        )
        return launches[3]

    def _explain(self, launch: Launch) -> None:
        """Ask why a launch left the better region."""
        if launch.reservation_id is None:
            self._step("g: a launch explained", "a launch", "none", held=False)
            return
        answer = self._stack.explain(launch.reservation_id)
        story = answer.story
        ends = [(one.region, one.end) for one in story.verdicts] if story else []
        asks = [(one.outcome, one.node) for one in story.asks] if story else []
        self._step(
            "g: a launch explained",
            f"nobody listened in {BETTER}, so it went to {WORSE}, and who took it there",
            "".join(f"\n    {'  ' * line.depth}{line.text}" for line in tell_launch(answer)),
            held=ends == [(BETTER, "no_room"), (WORSE, "placed")]
            and launch.where is not None
            and asks == [("no_responders", None), ("accepted", launch.where[1])],
        )

    def _stay_in_the_pinned_region(self, launch: Launch) -> None:
        """Make room in the worse region only, then launch at each region's own endpoint."""
        if launch.instance_id is None or launch.where is None:
            self._step("h: a pinned launch stays", "room in one region", "none", held=False)
            return
        node = launch.where[1]
        self._ec2.terminate_instances(InstanceIds=[launch.instance_id])
        room = wait_until(lambda: node in self._stack.subscribed_types(WORSE), _SETTLE_S)
        refused, placed = (
            self._launch("t3.medium", self._stack.ec2_client(region)) for region in (BETTER, WORSE)
        )
        self._step(
            "h: a pinned launch stays",
            f"with room in {WORSE} only: {_NO_CAPACITY} at /regions/{BETTER}, launched at "
            f"/regions/{WORSE}",
            f"room in {WORSE}: {'yes' if room else 'no'}; at {BETTER}: "
            f"{refused.error or refused.where}; at {WORSE}: {placed.where or placed.error}",
            held=room and refused.error == _NO_CAPACITY and placed.where == (WORSE, node),
        )

    def _storm(self) -> None:
        self._stack.start_agents(BETTER, ("s1", "s2", "s3"), LARGE_NODE)
        began = time.monotonic()
        with ThreadPoolExecutor(STORM_THREADS) as threads:
            launches = list(threads.map(lambda _: self._launch("t3.medium"), range(STORM_LAUNCHES)))
        took_s = time.monotonic() - began
        outcomes = Counter(launch.error or "launched" for launch in launches)
        held_by = Counter(self._stack.held_instances(BETTER))
        launched = {launch.instance_id for launch in launches if launch.instance_id}
        twice = [one for one, nodes in held_by.items() if nodes > 1]
        self._step(
            "i: the storm",
            f"{STORM_LAUNCHES} launches from {STORM_THREADS} threads for {STORM_SLOTS} slots: "
            f"{STORM_SLOTS} launched, {STORM_LAUNCHES - STORM_SLOTS} refused, none twice",
            f"{dict(outcomes)} in {took_s:.1f} s; on two nodes: {len(twice)}",
            held=outcomes == {"launched": STORM_SLOTS, _NO_CAPACITY: STORM_LAUNCHES - STORM_SLOTS}
            and launched <= held_by.keys()
            and not twice,
        )

    # --- the means -------------------------------------------------------------------------

    def _launch(self, instance_type: str, ec2: EC2Client | None = None) -> Launch:
        began = time.monotonic()
        try:
            reply = (ec2 or self._ec2).run_instances(
                ImageId=_IMAGE,
                InstanceType=instance_type,  # type: ignore[arg-type] # also the fleet's own types
                MinCount=1,
                MaxCount=1,
            )
        except ClientError as error:
            return Launch(
                reservation_id=None,
                instance_id=None,
                where=None,
                error=error.response["Error"]["Code"],
                milliseconds=_since_ms(began),
            )
        milliseconds = _since_ms(began)
        instance = reply["Instances"][0]
        placement = instance["Placement"]
        return Launch(
            reservation_id=reply["ReservationId"],
            instance_id=instance["InstanceId"],
            where=(placement["AvailabilityZone"], placement["HostId"]),
            error=None,
            milliseconds=milliseconds,
        )

    def _step(self, name: str, expected: str, seen: str, *, held: bool) -> None:
        step = Step(name=name, expected=expected, seen=seen, held=held)
        self.steps.append(step)
        self._tell(step)


def _counts(subscribed: dict[str, frozenset[str]]) -> dict[str, int]:
    return {node: len(types) for node, types in sorted(subscribed.items())}


def _since_ms(began: float) -> float:
    return (time.monotonic() - began) * 1000
