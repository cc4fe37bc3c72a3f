"""`fleetcast catalogue refresh`, against moto and against a loopback server that speaks EC2."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner, Result

from fleetcast.cli.command import fleetcast
from fleetcast.instance_types import Catalogue, InstanceType

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_PERMISSION = (
    "<Response><Errors><Error><Code>UnauthorizedOperation</Code>"
    "<Message>You are not authorized to perform this operation.</Message></Error></Errors>"
    "<RequestID>1</RequestID></Response>"
)


class FakeEC2(ThreadingHTTPServer):
    """Answers DescribeInstanceTypes with these pages of names; refuses while there are none."""

    pages: tuple[tuple[str, ...], ...] = ()

    def answer(self, form: dict[str, list[str]]) -> tuple[int, str]:
        if not self.pages:
            return 403, NO_PERMISSION
        page_n = int(form.get("NextToken", ["0"])[0])
        items = "".join(
            f"<item><instanceType>{name}</instanceType>"
            "<vCpuInfo><defaultVCpus>1</defaultVCpus></vCpuInfo>"
            "<memoryInfo><sizeInMiB>512</sizeInMiB></memoryInfo>"
            "<processorInfo><supportedArchitectures><item>arm64</item></supportedArchitectures>"
            "</processorInfo></item>"
            for name in self.pages[page_n]
        )
        more = page_n + 1 < len(self.pages)
        token = f"<nextToken>{page_n + 1}</nextToken>" if more else ""
        return 200, (
            "<DescribeInstanceTypesResponse><requestId>1</requestId>"
            f"<instanceTypeSet>{items}</instanceTypeSet>{token}</DescribeInstanceTypesResponse>"
        )


class FakeEC2Handler(BaseHTTPRequestHandler):
    server: FakeEC2

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        status, answer = self.server.answer(parse_qs(body))
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_arguments: object) -> None:
        """Keep the test output free of access logs."""


@pytest.fixture
def no_aws_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "PROFILE", "REGION", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / "absent"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


@pytest.fixture
def ec2(no_aws_account: pytest.MonkeyPatch) -> Iterator[FakeEC2]:
    environment = no_aws_account
    with FakeEC2(("127.0.0.1", 0), FakeEC2Handler) as server:
        environment.setenv("AWS_ACCESS_KEY_ID", "a")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "b")
        environment.setenv("AWS_ENDPOINT_URL_EC2", f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "types.json"


def refresh(*arguments: object) -> Result:
    return CliRunner().invoke(fleetcast, ["catalogue", "refresh", *map(str, arguments)])


def test_moto_fills_the_whole_catalogue_and_the_report_says_what_changed(output: Path) -> None:
    own = InstanceType(name="zz.retired", vcpu=1, memory_mib=1)
    other = InstanceType(name="t3.medium", vcpu=1, memory_mib=1)
    output.write_bytes(Catalogue([own, other]).to_json())

    result = refresh("--from-moto", "--output", output)

    assert result.exit_code == 0, result.output
    catalogue = Catalogue.from_json(output.read_bytes())
    assert len(catalogue) > 1000
    assert catalogue.lookup("t3.medium").memory_mib == 4096
    assert catalogue.lookup("g6f.large").gpus == 1  # EC2 says 0 GPUs, 1 logical one
    assert "1 changed, 1 dropped" in result.output
    assert "changed t3.medium" in result.output
    assert "dropped zz.retired" in result.output
    assert list(output.parent.iterdir()) == [output]


def test_every_page_is_written_in_the_order_of_names(ec2: FakeEC2, output: Path) -> None:
    ec2.pages = (("t4g.small", "t4g.nano"), ("t4g.micro",))
    result = refresh("--region", "us-east-1", "--output", output)
    assert result.exit_code == 0, result.output
    assert list(Catalogue.from_json(output.read_bytes())) == [
        InstanceType(name=name, vcpu=1, memory_mib=512, architectures=("arm64",))
        for name in ("t4g.micro", "t4g.nano", "t4g.small")
    ]


def test_a_damaged_catalogue_is_replaced(ec2: FakeEC2, output: Path) -> None:
    ec2.pages = (("t4g.nano",),)
    output.write_bytes(b"{")
    result = refresh("--region", "us-east-1", "--output", output)
    assert result.exit_code == 0, result.output
    assert len(Catalogue.from_json(output.read_bytes())) == 1


def test_an_empty_answer_leaves_the_catalogue_as_it_was(ec2: FakeEC2, output: Path) -> None:
    ec2.pages = ((),)
    output.write_bytes(b"before")
    result = refresh("--region", "us-east-1", "--output", output)
    assert result.exit_code == 1
    assert "listed no instance types" in result.output
    assert output.read_bytes() == b"before"


@pytest.mark.usefixtures("ec2")
def test_a_refusal_by_ec2_is_said_in_its_words(output: Path) -> None:
    result = refresh("--region", "us-east-1", "--output", output)
    assert result.exit_code == 1
    assert "UnauthorizedOperation" in result.output
    assert not output.exists()


def test_an_output_that_cannot_be_written_is_said(ec2: FakeEC2, tmp_path: Path) -> None:
    ec2.pages = (("t4g.nano",),)
    result = refresh("--region", "us-east-1", "--output", tmp_path / "absent" / "types.json")
    assert result.exit_code == 1
    assert "can't write" in result.output


@pytest.mark.usefixtures("no_aws_account")
def test_absent_credentials_are_said(output: Path) -> None:
    result = refresh("--region", "us-east-1", "--output", output)
    assert result.exit_code == 1
    assert "no AWS credentials are configured" in result.output


@pytest.mark.usefixtures("no_aws_account")
def test_an_absent_region_is_said(output: Path) -> None:
    result = refresh("--output", output)
    assert result.exit_code == 1
    assert "give --region" in result.output


def test_two_sources_at_once_are_refused() -> None:
    result = refresh("--from-moto", "--region", "us-east-1")
    assert result.exit_code == 2
    assert "exclude each other" in result.output


def test_help_shows_an_example() -> None:
    result = refresh("--help")
    assert result.exit_code == 0
    assert "Example: fleetcast catalogue refresh" in result.output
