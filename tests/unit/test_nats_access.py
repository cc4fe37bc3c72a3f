"""The rules for a NATS URL and a credentials file, which both sides apply."""

import pytest

from fleetcast.errors import InvalidConfiguration
from fleetcast.nats_access import check_nats_url, is_credentials_file


def check(url: str) -> None:
    check_nats_url(url, key="url", credentials_key="credentials_file")


@pytest.mark.parametrize(
    "url", ["tls://nats.example.com", "tls://[2001:db8::1]:4222/", "nats://127.0.0.1:4222"]
)
def test_tls_is_allowed_and_plain_nats_on_loopback(url: str) -> None:
    check(url)


@pytest.mark.parametrize(
    "url",
    [
        "tls://nats:4222?tls=false",
        "tls://nats:4222#x",
        "tls://a:1,tls://b:2",
        "tls://nats:0x",
        "tls://nats:0",
        " tls://nats:4222",
        "tls://na ts:4222",
        "tls://na\0ts:4222",
    ],
)
def test_what_is_more_than_a_host_and_a_port_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"^url: .*tls://host:port"):
        check(url)


@pytest.mark.parametrize("url", ["tls://s3cret@nats:4222", "fleet:s3cret@nats:4222", "s3cret@nats"])
def test_credentials_are_refused_unseen_with_or_without_a_scheme(url: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        check(url)
    assert str(refused.value) == "url: holds credentials; expected them in credentials_file"


@pytest.mark.parametrize("text", ["", "BEGIN NATS USER JWT", "BEGIN USER NKEY SEED"])
def test_half_of_a_credentials_file_is_none(text: str) -> None:
    assert not is_credentials_file(text)
    assert is_credentials_file(f"{text} BEGIN NATS USER JWT BEGIN USER NKEY SEED")
