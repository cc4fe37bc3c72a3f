"""Knowing that the server has carried out what a client has asked of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nats.aio.client import Client


async def settled(client: Client) -> None:
    """Return when the server has carried out all that the client has asked of it by now."""
    # nats-py writes a PING ahead of the commands that still wait in its buffer: when the first PONG
    # is here they are written, so the second one comes after them.
    await client.flush()
    await client.flush()
