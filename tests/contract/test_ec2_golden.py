"""EC2 answers as documents, to be read and compared by eye.

`REWRITE_GOLDEN=1 pytest tests/contract/test_ec2_golden.py` rewrites tests/golden/ec2. A rewritten
file still has to mean the same to botocore, so that a mistake can't become the reference.
"""

from __future__ import annotations

import base64
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import botocore.session
import msgspec
import pytest
from botocore.parsers import create_parser

from fleetcast.errors import InsufficientInstanceCapacity
from fleetcast.instance_types import ec2_catalogue
from lambdas.records import InstanceRecord
from lambdas.run_instances.descriptions import (
    describe_result,
    reservation_result,
    start_result,
    stop_result,
    termination_result,
)
from lambdas.run_instances.ec2_protocol import encode_error, encode_response
from lambdas.run_instances.instance_type_listing import (
    ListingParameters,
    ServedType,
    listing_result,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "ec2"
REQUEST_ID = "59dbff89-35bd-4eac-99ed-be587EXAMPLE"
LAUNCHED_AT_S = 1_800_000_000.0

PENDING = InstanceRecord(
    account_id="123456789012",
    reservation_id="r-0123456789abcdef0",
    instance_id="i-0123456789abcdef0",
    instance_type="t3.medium",
    image_id="ami-0123456789abcdef0",
    architecture="x86_64",
    launch_index=0,
    launched_at_s=LAUNCHED_AT_S,
    region="us-east-1",
    node="n1",
    tags={"name": "web <1> & co"},
)
RUNNING = msgspec.structs.replace(
    PENDING,
    state="running",
    zone="us-east-1a",
    key_name="ops",
    root_device_name="/dev/xvda",
    private_ip_address="169.254.12.34",
    mac_address="02:3f:9a:00:17:c4",
)
STOPPED = msgspec.structs.replace(RUNNING, state="stopped")
ENDED = msgspec.structs.replace(
    RUNNING,
    reservation_id="r-0123456789abcdef1",
    instance_id="i-0123456789abcdef1",
    state="terminated",
    terminated_at_s=LAUNCHED_AT_S + 60,
    state_reason_code="Client.UserInitiatedShutdown",
    state_reason_message="Client.UserInitiatedShutdown: User initiated shutdown",
    shutdown_asked_at_s=LAUNCHED_AT_S + 59,
    tags={},
)
SECOND = msgspec.structs.replace(
    PENDING, instance_id="i-0123456789abcdef2", launch_index=1, node="n2"
)

RESULTS: dict[str, dict[str, Any]] = {
    "RunInstances": reservation_result([PENDING, SECOND]),
    "DescribeInstances": describe_result([RUNNING, ENDED], {}, now_s=LAUNCHED_AT_S + 120),
    "TerminateInstances": termination_result(
        [(RUNNING, msgspec.structs.replace(RUNNING, state="shutting-down"))]
    ),
    "StartInstances": start_result([(STOPPED, PENDING)]),
    "StopInstances": stop_result([(RUNNING, msgspec.structs.replace(RUNNING, state="stopping"))]),
    "RebootInstances": {"Return": True},
    "GetConsoleOutput": {
        "InstanceId": RUNNING.instance_id,
        "Timestamp": datetime.fromtimestamp(LAUNCHED_AT_S, UTC),
        "Output": base64.b64encode(b"hello\n").decode(),
    },
    "DescribeInstanceTypes": listing_result(
        [
            ServedType(instance_type=ec2_catalogue().lookup(name), has_room=True)
            for name in ("g4dn.xlarge", "m6g.large")
        ],
        ListingParameters(),
    ),
}
# What botocore's parser has no word for.
BEYOND_BOTOCORE: dict[str, dict[str, Any]] = {"RebootInstances": {}}


def readable(document: str) -> str:
    return document.replace("><", ">\n<") + "\n"


def golden(name: str, document: str) -> str:
    """Return the reference document, after replacing it if that was asked for."""
    path = GOLDEN / f"{name}.xml"
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(readable(document), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def read_by_botocore(document: str, *, action: str, status: int) -> dict[str, Any]:
    model = botocore.session.Session().get_service_model("ec2").operation_model(action)
    response = {"status_code": status, "headers": {}, "body": document.encode()}
    parser: Any = create_parser("ec2")  # typed as if every answer had a shape
    parsed: dict[str, Any] = parser.parse(response, model.output_shape)
    return parsed


def without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("action", RESULTS)
def test_an_answer_is_the_reference_document_and_botocore_reads_the_result(action: str) -> None:
    document = encode_response(action, RESULTS[action], request_id=REQUEST_ID)
    reference = golden(action, document)
    assert readable(document) == reference
    parsed = read_by_botocore(reference, action=action, status=200)
    assert parsed.pop("ResponseMetadata")["RequestId"] == REQUEST_ID
    assert parsed == without_none(BEYOND_BOTOCORE.get(action, RESULTS[action]))


def test_a_refusal_is_the_reference_document_and_botocore_reads_its_code() -> None:
    error = InsufficientInstanceCapacity("No node in us-east-1 has room for t3.medium.")
    document = encode_error(error, request_id=REQUEST_ID)
    reference = golden("InsufficientInstanceCapacity", document)
    assert readable(document) == reference
    parsed = read_by_botocore(reference, action="RunInstances", status=error.http_status)
    assert parsed["Error"] == {"Code": error.code, "Message": error.message}
    assert parsed["ResponseMetadata"]["RequestId"] == REQUEST_ID
