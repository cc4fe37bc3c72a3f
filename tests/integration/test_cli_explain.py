"""`fleetcast explain`, against the real handler behind real HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from click.testing import CliRunner, Result

from fleetcast.cli.command import fleetcast
from fleetcast.launch_story import Ask, LaunchStory, RegionVerdict
from fleetcast.selection import RankedRegion
from lambdas.launch_table import Reservation
from tests.read_api import ACCOUNT, NOW_S, ReadApi, read_api, served

if TYPE_CHECKING:
    from collections.abc import Iterator

RESERVATION = Reservation(
    account_id=ACCOUNT,
    reservation_id="r-0123456789abcdef0",
    instance_type="t3.medium",
    launched_at_s=NOW_S - 60,
    instance_ids=("i-00000000000000001",),
    state="placing",
    undecided_until_s=NOW_S - 40,
)
STORY = LaunchStory(
    ranked=(RankedRegion(region="us-east-1", freshness="fresh", score=0.25, age_s=60.0),),
    verdicts=(RegionVerdict(region="us-east-1", end="no_room", why="no node has room"),),
    asks=(
        Ask(
            region="us-east-1",
            subject="ec2.RunInstances.us-east-1.t3.medium",
            outcome="no_responders",
            attempt=1,
            count=1,
            began_ms=3.0,
            took_ms=0.8,
        ),
    ),
    error_code="InsufficientInstanceCapacity",
    # What a node or a server says may look like markup.
    error_message="There is no room [/bold] for 1 x t3.medium now: us-east-1: no node has room.",
    took_ms=12.0,
)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadApi]:
    with read_api(monkeypatch) as api, served(api) as url:
        monkeypatch.setenv("FLEETCAST_API_URL", url)
        api.fleet.launches.begin(RESERVATION, [], None, now_s=NOW_S)
        api.fleet.launches.refuse(
            msgspec.structs.replace(RESERVATION, state="refused", story=STORY)
        )
        yield api


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(fleetcast, ["explain", *arguments])


@pytest.mark.usefixtures("api")
def test_a_launch_is_told_as_a_story() -> None:
    result = explain(RESERVATION.reservation_id)

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "r-0123456789abcdef0: refused after 12.0 ms (begun 2027-01-15 07:59:00 UTC, 1m ago)",
        "Wanted: 1 x t3.medium.",
        f"The caller was told InsufficientInstanceCapacity: {STORY.error_message}",
        "1. us-east-1: score 0.25, fresh (1m old), 2 of its load signals not read",
        "    tried alone: the only region",
        (
            "    +3.0 ms  ec2.RunInstances.us-east-1.t3.medium, 1 instance, attempt 1: "
            "nobody listens, no node there has room [0.8 ms]"
        ),
        "    left: no node has room",
    ]


def test_a_launch_as_json_is_the_apis(api: ReadApi) -> None:
    result = explain(RESERVATION.reservation_id, "--json")

    assert result.exit_code == 0, result.output
    path = f"/v1/launches/{RESERVATION.reservation_id}"
    assert (200, msgspec.json.decode(result.stdout)) == api.get(path)


@pytest.mark.usefixtures("api")
def test_a_launch_that_is_not_the_callers_is_said() -> None:
    result = explain("r-00000000000000000")

    assert result.exit_code == 1
    assert "InvalidReservationID.NotFound: The reservation ID 'r-00000000000000000'" in (
        result.output
    )


@pytest.mark.parametrize("reservation_id", ["r-..", "r-0/../scores", ""])
def test_what_is_no_reservation_id_is_said_before_anybody_is_asked(
    api: ReadApi, reservation_id: str
) -> None:
    result = explain(reservation_id)

    assert result.exit_code == 1
    assert f'InvalidReservationID.Malformed: Invalid id: "{reservation_id}"' in result.output
    assert api.requests == []


def test_who_names_an_instance_is_told_how_to_find_its_reservation(api: ReadApi) -> None:
    result = explain("i-0123456789abcdef0")

    assert result.exit_code == 1
    assert "--instance-ids i-0123456789abcdef0 --query 'Reservations[]" in result.output
    assert api.requests == []


def test_an_absent_url_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEETCAST_API_URL", raising=False)

    result = explain(RESERVATION.reservation_id)

    assert result.exit_code == 2
    assert "set FLEETCAST_API_URL or --api-url" in result.output


def test_help_has_an_example() -> None:
    assert "fleetcast explain r-0123456789abcdef0" in explain("--help").output
