"""A launch waits for the function's cold start, so what it doesn't need is not loaded for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lambdas.settings import Region, RunInstancesSettings, encode_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

# Launches once in a process of its own, and tells what that has loaded and read.
LAUNCH = """
import json, sys
opened = []
sys.addaudithook(lambda name, args: opened.append(str(args[0])) if name == "open" else None)
from lambdas.run_instances.handler import handle

class Context:
    aws_request_id = "r"

    def get_remaining_time_in_millis(self):
        return 28_000

body = "Action=RunInstances&ImageId=ami-00000001&InstanceType=t3.medium&MinCount=1&MaxCount=1"
event = {"httpMethod": "POST", "body": body, "requestContext": {"accountId": "123456789012"}}
answer = handle(event, Context())
print(json.dumps({"answer": answer["body"], "modules": list(sys.modules), "opened": opened}))
"""


class _EmptyTables(BaseHTTPRequestHandler):
    """DynamoDB with nothing in it, as far as one launch looks."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        content = json.dumps({"Items": [], "Count": 0}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def dynamodb_url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _EmptyTables) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_launch_loads_neither_boto3_nor_pydantic_nor_botocores_model_of_ec2(
    dynamodb_url: str,
) -> None:
    settings = RunInstancesSettings(
        fleet_table="Fleet",
        region_scores_table="RegionScores",
        regions=(Region(name="us-east-1", nats_url="nats://127.0.0.1:1"),),
        default_region="us-east-1",
    )
    result = subprocess.run(
        [sys.executable, "-B", "-c", LAUNCH],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_url,
            **encode_settings(settings),
        },
        capture_output=True,
        check=True,
        timeout=60,
    )
    told: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert "us-east-1: can't connect to NATS" in told["answer"], "the launch came that far"
    loaded = {name.partition(".")[0] for name in told["modules"]}
    assert not loaded & {"boto3", "moto", "pydantic"}
    assert not [path for path in told["opened"] if "/data/ec2/" in path]
    assert [path for path in told["opened"] if "/data/dynamodb/" in path]
