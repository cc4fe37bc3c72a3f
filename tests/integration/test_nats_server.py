"""The NATS servers that tests, benchmarks and the local stack run."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import nats
import nats.errors
import pytest

from fleetcast.local.monitoring import subjects_by_connection
from fleetcast.local.nats_server import nats_cluster
from fleetcast.local.nats_server import nats_server as running_nats_server
from tests.eventually import eventually

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from fleetcast.local.nats_server import NatsServer


async def test_monitoring_shows_who_is_subscribed_to_what(nats_server: NatsServer) -> None:
    client = await nats.connect(nats_server.url, name="somebody")
    await client.subscribe("some.subject")
    await client.flush()
    seen = await asyncio.to_thread(subjects_by_connection, nats_server.monitoring_url)
    await client.close()
    assert seen["somebody"] == {"some.subject"}


def test_a_client_that_hangs_is_given_up_within_half_a_minute(nats_server: NatsServer) -> None:
    with urllib.request.urlopen(f"{nats_server.monitoring_url}/varz") as reply:  # noqa: S310 - http on loopback
        settings = json.load(reply)
    assert settings["ping_interval"] == 10e9  # nanoseconds
    assert settings["ping_max"] == 2


def test_it_listens_on_loopback_only(nats_server: NatsServer) -> None:
    hosts = {urlsplit(url).hostname for url in (nats_server.url, nats_server.monitoring_url)}
    assert hosts == {"127.0.0.1"}


async def test_it_is_gone_after_the_block() -> None:
    with running_nats_server() as server:
        address = urlsplit(server.url)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.hostname, address.port)


async def test_servers_of_a_cluster_pass_messages_to_each_other() -> None:
    async def answer(message: Msg) -> None:
        await message.respond(b"here")

    with nats_cluster(3) as servers:
        asking, *answering = [await nats.connect(server.url) for server in servers]
        for number, client in enumerate(answering):
            await client.subscribe(f"asked.{number}", cb=answer)

            async def ask(subject: str = f"asked.{number}") -> bytes | None:
                try:
                    return (await asking.request(subject, timeout=5)).data
                except nats.errors.NoRespondersError:
                    return None  # the interest is on its way

            assert await eventually(ask) == b"here"
        for client in (asking, *answering):
            await client.close()
