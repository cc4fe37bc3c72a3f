"""What the metadata service answers: version 2 of EC2's, and what EC2 shows below it."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.guest_data.metadata_answers import Answer, Tokens, answer
from tests.told_instance import INSTANCE_ID, PUBLIC_KEY, told_instance

if TYPE_CHECKING:
    from fleetcast.agent.guest_data import InstanceFacts

_TTL = "x-aws-ec2-metadata-token-ttl-seconds"
_TOKENS = Tokens(b"secret of this process")


def _ask(  # what a request is made of
    method: str,
    target: str,
    headers: dict[str, str],
    *,
    facts: InstanceFacts | None = None,
    now_s: float = 0,
) -> Answer:
    told = facts or told_instance()
    return answer(told, _TOKENS, method=method, target=target, headers=headers, now_s=now_s)


def _token(*, facts: InstanceFacts | None = None, ttl_s: int = 60) -> str:
    made = _ask("PUT", "/latest/api/token", {_TTL: str(ttl_s)}, facts=facts)
    assert made.status == 200
    assert made.headers == {_TTL: str(ttl_s)}
    return made.body.decode()


def _read(path: str, *, facts: InstanceFacts | None = None) -> str | int:
    """Return what stands at a path, or the status if it isn't 200."""
    header = {"x-aws-ec2-metadata-token": _token(facts=facts)}
    found = _ask("GET", path, header, facts=facts)
    return found.body.decode() if found.status == 200 else found.status


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("instance-id", INSTANCE_ID),
        ("instance-type", "t3.micro"),
        ("ami-id", "ami-0123456789abcdef0"),
        ("ami-launch-index", "2"),
        ("reservation-id", "r-0fedcba987654321f"),
        ("local-hostname", f"{INSTANCE_ID}.eu-west-1.compute.internal"),
        ("local-ipv4", "169.254.12.34"),
        ("mac", "02:00:00:00:00:07"),
        ("network/interfaces/macs/", "02:00:00:00:00:07/"),
        ("network/interfaces/macs/02:00:00:00:00:07/local-ipv4s", "169.254.12.34"),
        ("placement/", "availability-zone\nregion"),
        ("placement/availability-zone", "eu-west-1b"),
        ("public-keys/", "0=web"),
        ("public-keys/0/", "openssh-key"),
        ("public-keys/0/openssh-key", PUBLIC_KEY),
        ("services/partition", "aws"),
        ("tags/", "instance/"),
        ("tags/instance/Name", "first"),
        ("instance-id/", 404),  # no folder
        ("iam/security-credentials/", 404),
        ("../user-data", 404),
    ],
)
def test_the_tree_is_ec2s(path: str, value: str | int) -> None:
    assert _read(f"/latest/meta-data/{path}") == value
    assert _read(f"/2021-03-23/meta-data/{path}") == value


def test_folders_are_listed_with_or_without_their_slash() -> None:
    assert _read("/latest/meta-data") == _read("/latest/meta-data/")
    assert _read("/latest/") == "dynamic\nmeta-data\nuser-data"
    versions = _read("/")
    assert isinstance(versions, str)
    assert {"1.0", "2009-04-04", "latest"} <= set(versions.splitlines())
    assert _read("/2010-01-01/meta-data/") == 404


def test_what_an_instance_has_not_is_not_there() -> None:
    bare = told_instance(public_keys={}, tags={}, zone=None, user_data=None)
    for path in ("public-keys/", "tags/", "placement/availability-zone"):
        assert _read(f"/latest/meta-data/{path}", facts=bare) == 404
    assert _read("/latest/user-data", facts=bare) == 404
    assert _read("/latest/", facts=bare) == "dynamic\nmeta-data"


def test_user_data_is_told_byte_for_byte() -> None:
    whatever = bytes(range(256)) * 64
    told = told_instance(user_data=whatever)
    header = {"x-aws-ec2-metadata-token": _token(facts=told)}
    assert _ask("GET", "/latest/user-data", header, facts=told).body == whatever


def test_the_identity_document_is_there_and_unsigned() -> None:
    document = _read("/latest/dynamic/instance-identity/document")
    assert isinstance(document, str)
    assert json.loads(document)["instanceId"] == INSTANCE_ID
    assert json.loads(document)["region"] == "eu-west-1"
    for signature in ("signature", "pkcs7", "rsa2048"):
        assert _read(f"/latest/dynamic/instance-identity/{signature}") == 404


def test_tags_whose_keys_are_no_paths_are_not_shown() -> None:
    tags = {"Name": 'a "b"\nc', "a/b": "1", "a b": "2", "..": "3", "_index": "4", "x\n": "5"}
    told = told_instance(tags=tags)
    assert _read("/latest/meta-data/tags/instance/", facts=told) == "Name"
    assert _read("/latest/meta-data/tags/instance/Name", facts=told) == 'a "b"\nc'
    assert _read("/latest/meta-data/tags/instance/a/b", facts=told) == 404


def test_nothing_is_told_without_a_token_that_this_instance_was_given() -> None:
    own, expired = _token(), _token(ttl_s=1)
    other = _token(facts=told_instance(instance_id="i-0aaaaaaaaaaaaaaa0"))
    changed = base64.urlsafe_b64encode(b"\xff" * 8 + base64.urlsafe_b64decode(own)[8:]).decode()
    for wrong in ("", "x", "ÿ", "AAAA", other, changed, expired):
        header = {"x-aws-ec2-metadata-token": wrong}
        assert _ask("GET", "/latest/meta-data/", header, now_s=1).status == 401
    assert _ask("GET", "/latest/user-data", {}).status == 401
    assert _ask("GET", "/nowhere", {}).status == 401
    header = {"x-aws-ec2-metadata-token": own}
    assert _ask("GET", "/latest/meta-data/", header, now_s=59.9).status == 200
    assert _ask("GET", "/latest/meta-data/", header, now_s=60).status == 401


@pytest.mark.parametrize("ttl", ["", "0", "21601", "-1", "1.5", "1e3", " 1", "٣", "x"])
def test_a_token_lives_for_one_second_to_six_hours(ttl: str) -> None:
    assert _ask("PUT", "/latest/api/token", {_TTL: ttl}).status == 400
    assert _ask("PUT", "/latest/api/token", {}).status == 400
    assert _token(ttl_s=1)
    assert _token(ttl_s=21_600)


def test_what_came_through_a_proxy_is_refused() -> None:
    forwarded = {"x-forwarded-for": "192.0.2.1"}
    assert _ask("PUT", "/latest/api/token", {_TTL: "60", **forwarded}).status == 403
    with_token = {"x-aws-ec2-metadata-token": _token(), **forwarded}
    assert _ask("GET", "/latest/meta-data/", with_token).status == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/latest/api/token"),
        ("POST", "/latest/api/token"),
        ("PUT", "/latest/meta-data/"),
        ("DELETE", "/latest/user-data"),
    ],
)
def test_another_method_is_refused(method: str, path: str) -> None:
    headers = {_TTL: "60", "x-aws-ec2-metadata-token": _token()}
    assert _ask(method, path, headers).status == 405


def test_no_repr_shows_what_the_user_gave_in_confidence() -> None:
    told = told_instance(user_data=b"password", tags={"secret": "password"})
    assert repr(told) == f"InstanceFacts({INSTANCE_ID})"
