"""Collecting readings: no probe harms another, and none outlives the deadline."""

import threading
from collections.abc import Callable, Mapping

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, UnknownRegionError
from botocore.parsers import ResponseParserError

from fleetcast.scoring import Reading
from lambdas.score_regions.collection import Probe, SignalKey, collect, reading_of_error

QUEUE = SignalKey("queue_depth", "us-east-1")
JOBS = SignalKey("running_jobs", "us-east-1")
GPU = SignalKey("gpu_utilization", "us-east-1")
NOT_OFFERED = frozenset({"UnsupportedOperation"})
SEEN = Reading.of(3, observed_at_s=1.0)


def probe(*expects: SignalKey, read: Callable[[], Mapping[SignalKey, Reading]]) -> Probe:
    return Probe(name="a probe", expects=expects, read=read)


def raising(error: Exception) -> Callable[[], Mapping[SignalKey, Reading]]:
    def read() -> Mapping[SignalKey, Reading]:
        raise error

    return read


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "GetQueueAttributes")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (client_error("InternalFailure"), "InternalFailure"),
        (EndpointConnectionError(endpoint_url="https://sqs"), "EndpointConnectionError"),
        (ResponseParserError("not XML: b'Rate exceeded'"), "Rate exceeded"),
        (KeyError("Attributes"), "KeyError"),  # an answer in a form that nobody expected
    ],
)
def test_a_probe_that_raises_leaves_the_others_alone(error: Exception, words: str) -> None:
    readings = collect(
        [
            probe(QUEUE, JOBS, read=raising(error)),
            probe(GPU, read=lambda: {GPU: SEEN}),
        ],
        timeout_s=30,
    ).readings

    assert readings[GPU] == SEEN
    for key in (QUEUE, JOBS):
        assert readings[key].value is None
        assert readings[key].status == "failed"
        assert words in (readings[key].error or "")


def test_what_is_not_back_by_the_deadline_is_missing() -> None:
    collected = threading.Event()

    def read_late() -> Mapping[SignalKey, Reading]:
        collected.wait()
        return {QUEUE: SEEN}

    readings = collect(
        [probe(QUEUE, read=read_late), probe(GPU, read=lambda: {GPU: SEEN})], timeout_s=0.2
    ).readings
    collected.set()

    assert readings == {QUEUE: Reading.absent("missing", "deadline"), GPU: SEEN}


def test_probes_that_never_got_a_thread_are_missing_too() -> None:
    collected = threading.Event()

    def read_late() -> Mapping[SignalKey, Reading]:
        collected.wait()
        return {}

    keys = [SignalKey("queue_depth", f"region-{n}") for n in range(200)]
    readings = collect([probe(key, read=read_late) for key in keys], timeout_s=0.1).readings
    collected.set()

    assert readings == dict.fromkeys(keys, Reading.absent("missing", "deadline"))


def test_what_an_answer_leaves_out_is_missing() -> None:
    readings = collect([probe(QUEUE, JOBS, read=lambda: {QUEUE: SEEN})], timeout_s=30).readings

    assert readings == {QUEUE: SEEN, JOBS: Reading.absent("missing", "not in the answer")}


def test_nothing_to_collect_is_no_failure() -> None:
    assert collect([], timeout_s=0).readings == {}


def test_an_answer_of_nothing_is_an_answer_and_an_error_is_none() -> None:
    answered = collect(
        [
            probe(QUEUE, JOBS, read=lambda: {QUEUE: SEEN}),
            probe(GPU, read=raising(client_error("Throttling"))),
        ],
        timeout_s=30,
    ).answered

    assert answered == {QUEUE, JOBS}


def test_that_something_is_not_offered_is_an_answer() -> None:
    collected = collect(
        [
            Probe(
                name="a probe",
                expects=(GPU,),
                read=raising(client_error("UnsupportedOperation")),
                not_offered=NOT_OFFERED,
            )
        ],
        timeout_s=30,
    )

    assert collected.answered == {GPU}
    assert collected.readings[GPU].status == "not_offered"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (client_error("AccessDenied"), "refused"),
        (client_error("UnauthorizedOperation"), "refused"),
        (client_error("MaxConfigLimitExceeded"), "refused"),
        (client_error("InvalidAction"), "failed"),
        (client_error("UnsupportedOperation"), "not_offered"),
        (client_error("Throttling"), "failed"),
        (UnknownRegionError(region_name="lab-1", error_msg="no partition"), "missing"),
        (TimeoutError("read timed out"), "failed"),
    ],
)
def test_the_kind_of_error_decides_the_status(error: Exception, status: str) -> None:
    assert reading_of_error(error, not_offered=NOT_OFFERED).status == status


def test_an_error_text_is_one_line_of_bounded_length() -> None:
    error = reading_of_error(ResponseParserError("not XML:\n" + "<html>" * 1000)).error

    assert error is not None
    assert error.startswith("ResponseParserError: not XML: <html>")
    assert "\n" not in error
    assert len(error) < 400


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_a_number_that_is_not_finite_is_recorded_as_a_failure(value: float) -> None:
    reading = Reading.of(value, observed_at_s=1.0)

    assert reading.value is None
    assert reading.status == "failed"
