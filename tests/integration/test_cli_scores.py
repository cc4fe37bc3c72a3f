"""`fleetcast scores` and `fleetcast recommend`, against the real handler behind real HTTP."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import IO, TYPE_CHECKING

import msgspec
import pytest
from click.testing import CliRunner, Result

from fleetcast.cli.command import fleetcast
from fleetcast.read_answers import ScoresAnswer
from fleetcast.scoring import RegionSignals, weighted_score
from tests.read_api import ReadApi, read_api, reading, served
from tests.tables import REGION_SCORES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadApi]:
    with read_api(monkeypatch) as api, served(api) as url:
        monkeypatch.setenv("FLEETCAST_API_URL", url)
        yield api


def run(*arguments: str) -> Result:
    return CliRunner().invoke(fleetcast, arguments)


def stdout_of(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


# --- scores --------------------------------------------------------------------------------


def test_scores_show_each_region_with_signals_statuses_ages_and_reasons(api: ReadApi) -> None:
    api.put("us-east-1", 0.4725, instance_type="t3.medium", age_s=1500, queue_depth=reading(7))
    api.put(
        "eu-west-1",
        0.25,
        instance_type="t3.medium",
        missing=1,
        reasons=["telemetry is partial: GPU", "low queue depth (3)"],
        queue_depth=reading(3, age_s=125),
        spot_placement=reading(0.9, age_s=2 * 3600),
        gpu_utilization=reading(None, status="refused", error="AccessDenied: no"),
        cpu_utilization=reading(12.5),
    )

    shown = stdout_of("scores", "--type", "t3.medium")

    for words in (
        "Scores for t3.medium",
        "0.4725",
        "stale 25m",
        "fresh 1m",
        "ok 2m",
        "ok 2h",
        "refused",
        "telemetry is partial: GPU; low queue depth (3)",
        "AccessDenied: no",
        "12.5",
    ):
        assert words in shown
    assert shown.index("eu-west-1") < shown.index("us-east-1")  # the other one is stale


def test_scores_that_stand_in_for_a_type_are_said_to(api: ReadApi) -> None:
    api.put("us-east-1", 82.5)

    assert "c7i.large has none of its own" in stdout_of("scores", "--type", "c7i.large")


@pytest.mark.usefixtures("api")
def test_scores_before_the_first_sweep_say_so() -> None:
    assert "no score yet" in stdout_of("scores")


def test_scores_as_json_are_the_apis(api: ReadApi) -> None:
    api.put("us-east-1", 0.4725, queue_depth=reading(7))

    shown = msgspec.json.decode(stdout_of("scores", "--json"))

    assert (200, shown) == api.get("/v1/scores")


def test_requests_are_signed_for_the_api(api: ReadApi) -> None:
    stdout_of("scores", "--json")

    [(_, headers)] = api.requests
    assert headers["Authorization"].startswith("AWS4-HMAC-SHA256 ")
    assert "/us-east-1/execute-api/aws4_request" in headers["Authorization"]


def test_the_region_to_sign_for_is_the_one_in_an_aws_url(
    api: ReadApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(api) as url:
        monkeypatch.setenv("http_proxy", url)
        run("scores", "--api-url", "http://abc123.execute-api.eu-north-1.amazonaws.com/prod/")

    [(target, headers)] = api.requests
    assert target == "http://abc123.execute-api.eu-north-1.amazonaws.com/prod/v1/scores"
    assert "/eu-north-1/execute-api/aws4_request" in headers["Authorization"]


# --- explain -------------------------------------------------------------------------------


def test_an_explanation_sums_up_to_the_score(api: ReadApi) -> None:
    score = weighted_score(
        RegionSignals(
            spot_placement=0.8,
            spot_price_ratio=0.3,
            queue_depth=3,
            gpu_utilization=100,
            running_jobs=0,
            capacity_block_trend=-1,
        )
    )
    api.put(
        "us-east-1",
        score,
        instance_type="t3.medium",
        spot_placement=reading(0.8),
        spot_price_ratio=reading(0.3),
        queue_depth=reading(3),
        gpu_utilization=reading(5, status="stale", error="Throttling: slow down"),
        running_jobs=reading(0, status="not_offered", error="launches don't queue here"),
        capacity_block_trend=reading(None, status="not_offered", error="no such blocks"),
    )

    shown = stdout_of("scores", "explain", "us-east-1", "--type", "t3.medium")

    assert f"{score:.4f}" in next(line for line in shown.splitlines() if "sum" in line)
    assert "100 (worst)" in shown
    assert "-1 (worst)" in shown
    assert "Throttling: slow down" in shown
    assert "weights have been changed" not in shown


def test_a_score_made_with_other_weights_is_said_to_be(api: ReadApi) -> None:
    api.put("us-east-1", 0.0123, instance_type="t3.medium", queue_depth=reading(3))

    shown = stdout_of("scores", "explain", "us-east-1", "--type", "t3.medium")

    assert "The score is 0.0123: the weights have been changed" in shown


def test_a_region_that_is_not_the_fleets_cannot_be_explained(api: ReadApi) -> None:
    api.put("us-east-1", 0.5, instance_type="t3.medium")

    result = run("scores", "explain", "nowhere", "--type", "t3.medium")

    assert result.exit_code == 1
    assert "'nowhere' is not among the fleet's regions: us-east-1, eu-west-1" in result.output


def test_a_region_without_a_score_cannot_be_explained(api: ReadApi) -> None:
    api.put("us-east-1", 0.5, instance_type="t3.medium")

    result = run("scores", "explain", "eu-west-1", "--type", "t3.medium")

    assert result.exit_code == 1
    assert "no sweep has scored eu-west-1 yet" in result.output


def test_a_type_without_its_own_score_is_explained_in_words(api: ReadApi) -> None:
    api.put("us-east-1", 82.5)

    result = run("scores", "explain", "us-east-1", "--type", "c7i.large")

    assert result.exit_code == 1
    assert "10 x queue depth" in result.output


def test_options_before_a_subcommand_are_refused_rather_than_ignored() -> None:
    result = run("scores", "--type", "t3.nano", "explain", "us-east-1", "--type", "t3.medium")

    assert result.exit_code == 2
    assert "give the options after `explain`" in result.output


# --- recommend -----------------------------------------------------------------------------


def test_the_best_region_is_recommended_with_the_reason_before_all_others(api: ReadApi) -> None:
    api.put("us-east-1", 40, reasons=["moderate GPU load"])
    api.put("eu-west-1", 12, reasons=["empty queue", "88% GPU available"])

    shown = stdout_of("recommend")

    assert shown.startswith("eu-west-1: empty queue; 88% GPU available\n")
    assert "moderate GPU load" in shown


def test_a_recommendation_shows_what_was_seen_of_every_region(api: ReadApi) -> None:
    api.put("us-east-1", 40, queue_depth=reading(37), average_wait_s=reading(612))
    api.put("eu-west-1", 12, queue_depth=reading(None, status="failed", error="Throttling"))

    shown = stdout_of("recommend")

    for words in ("queue depth", "37", "failed", "average wait s", "612"):
        assert words in shown


def test_equally_good_regions_are_named(api: ReadApi) -> None:
    api.put("us-east-1", 0.3, instance_type="t3.medium")
    api.put("eu-west-1", 0.31, instance_type="t3.medium")

    shown = stdout_of("recommend", "--type", "t3.medium")

    assert "launches spread over them: eu-west-1" in shown


def test_without_any_region_to_recommend_the_exit_code_says_so(api: ReadApi) -> None:
    api.put("us-east-1", 1, free_gpus=reading(0))

    result = run("recommend", "--gpus", "4", "--gpu-required")

    assert result.exit_code == 3
    assert "no region has the GPUs: " in result.stdout
    assert "us-east-1: 4 GPUs asked for, 0 free" in result.stdout
    assert "excluded: 4 GPUs asked for, 0 free" in result.stdout


def test_a_recommendation_as_json_is_the_apis(api: ReadApi) -> None:
    api.put("us-east-1", 1, free_gpus=reading(8))

    shown = msgspec.json.decode(stdout_of("recommend", "--gpus", "2", "--json"))

    assert (200, shown) == api.get("/v1/recommendation?gpus=2")
    assert shown["region"] == "us-east-1"


# --- what goes wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("command", [["scores"], ["recommend"]])
def test_an_absent_url_is_said(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEETCAST_API_URL", raising=False)

    result = run(*command)

    assert result.exit_code == 2
    assert "set FLEETCAST_API_URL or --api-url" in result.output


def test_what_is_no_url_is_said() -> None:
    result = run("scores", "--api-url", "abc123.amazonaws.com")

    assert result.exit_code == 2
    assert "no http:// or https:// URL" in result.output


def test_an_api_that_is_not_there_is_said() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        url = f"http://127.0.0.1:{closed.server_port}/prod/"

    result = run("scores", "--api-url", url)

    assert result.exit_code == 1
    assert f"can't reach the API at {url.rstrip('/')}" in result.output


@pytest.mark.usefixtures("api")
def test_absent_credentials_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    result = run("scores")

    assert result.exit_code == 1
    assert "no AWS credentials are configured" in result.output


@pytest.mark.usefixtures("api")
def test_a_profile_that_does_not_exist_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "absent")

    result = run("scores")

    assert result.exit_code == 1
    assert "absent" in result.output


@pytest.mark.usefixtures("api")
def test_a_refusal_by_the_api_is_said_in_its_words() -> None:
    result = run("scores", "--type", "t3.huge")

    assert result.exit_code == 1
    assert "InvalidParameterValue: Invalid value 't3.huge' for instance-type." in result.output


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Serve one answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Keep the test output free of access logs."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, b'{"message":"Missing Authentication Token"}', "403: Missing Authentication Token"),
        (403, b'{"Message":"User is not authorized"}', "HTTP 403: User is not authorized"),
        (
            403,
            (
                b"<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message><![CDATA[not "
                b"<you>]]></Message></Error></Errors><RequestID>1</RequestID></Response>"
            ),
            "HTTP 403: UnauthorizedOperation: not <you>",
        ),
        (403, b"<page><title/></page>", "HTTP 403: no reason given"),
        (502, b"<html>Bad gateway</html>", "HTTP 502: no reason given"),
        (502, b"[]", "HTTP 502: no reason given"),
        (200, b"<html>It works!</html>", "answered what the read API does not"),
        (200, b'{"regions": []}', "answered what the read API does not"),
    ],
)
def test_an_answer_from_something_else_is_said(status: int, body: bytes, words: str) -> None:
    with answering(status, body) as url:
        result = run("scores", "--api-url", url)

    assert result.exit_code == 1
    assert words in result.output


# --- watch ---------------------------------------------------------------------------------

COMMAND = [
    *(sys.executable, "-B", "-c", "from fleetcast.cli.command import main; main()"),
    "scores",
]


@contextmanager
def watching(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Run `fleetcast scores --watch`; interrupt it at the end, which must be no failure."""
    with subprocess.Popen(
        [*COMMAND, "--watch", "--every", "0.1", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
            assert process.returncode == 0
            assert [line for line in errors.splitlines() if "asking again" not in line] == []
        finally:
            process.kill()


def lines_of(stream: IO[str] | None) -> Iterator[str]:
    assert stream is not None
    return iter(stream.readline, "")


@contextmanager
def without_scores(api: ReadApi) -> Iterator[None]:
    """Take the table away, so that the API fails."""
    description = api.dynamodb.describe_table(TableName=REGION_SCORES)["Table"]
    api.dynamodb.delete_table(TableName=REGION_SCORES)
    yield
    api.dynamodb.create_table(
        TableName=REGION_SCORES,
        KeySchema=description["KeySchema"],
        AttributeDefinitions=description["AttributeDefinitions"],
        BillingMode="PAY_PER_REQUEST",
    )


def test_watching_as_json_prints_an_answer_a_line_until_it_is_interrupted(api: ReadApi) -> None:
    api.put("us-east-1", 1)
    with watching("--json") as process:
        lines = lines_of(process.stdout)
        first = msgspec.json.decode(next(lines), type=ScoresAnswer)
        api.put("us-east-1", 2)
        scores = (msgspec.json.decode(line, type=ScoresAnswer).regions[0].score for line in lines)

        assert first.regions[0].score == 1
        assert any(score == 2 for score in scores)


@pytest.mark.parametrize(("options", "shown"), [((), "no score yet"), (("--json",), "unscored")])
def test_watching_goes_on_when_the_api_fails_for_a_while(
    api: ReadApi, options: tuple[str, ...], shown: str
) -> None:
    with watching(*options) as process:
        lines, errors = lines_of(process.stdout), lines_of(process.stderr)
        assert any(shown in line for line in lines)
        with without_scores(api):
            assert "ServiceUnavailable" in next(errors)
        api.put("us-east-1", 0.4242)
        assert any("0.4242" in line for line in lines)


@contextmanager
def watching_on_a_terminal() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run `fleetcast scores --watch` on a terminal; yield the process and the terminal's end."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "--watch", "--every", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=os.environ | {"TERM": "xterm"},
    ) as process:
        os.close(theirs)
        try:
            yield process, ours
        finally:
            process.kill()
            os.close(ours)


def read_until(terminal: int, words: bytes, *, times: int) -> None:
    shown = b""
    while shown.count(words) < times:
        shown += os.read(terminal, 65_536)


@pytest.mark.usefixtures("api")
def test_watching_on_a_terminal_ends_with_ctrl_c() -> None:
    with watching_on_a_terminal() as (process, terminal):
        read_until(terminal, b"no score yet", times=6)  # two regions, three times
        process.send_signal(signal.SIGINT)

        assert process.wait(timeout=30) == 0


def test_on_a_terminal_the_last_scores_stay_while_the_api_fails(api: ReadApi) -> None:
    with watching_on_a_terminal() as (_, terminal):
        read_until(terminal, b"no score yet", times=2)
        with without_scores(api):
            read_until(terminal, b"Asking again: ServiceUnavailable", times=1)
            read_until(terminal, b"no score yet", times=2)


def test_an_api_that_is_not_there_ends_watching_before_it_begins() -> None:
    with answering(502, b"") as url:
        result = run("scores", "--watch", "--api-url", url)

    assert result.exit_code == 1


# --- help ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["scores"], ["scores", "explain"], ["scores", "replay"], ["recommend"]]
)
def test_help_shows_an_example(command: list[str]) -> None:
    assert f"fleetcast {' '.join(command)} " in stdout_of(*command, "--help").split("Example")[1]
