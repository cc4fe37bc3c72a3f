"""What the agent needs of a message that NATS delivers, and no more."""

from __future__ import annotations

from typing import Protocol


class Request(Protocol):
    """One delivered message. nats-py's Msg is one."""

    @property
    def subject(self) -> str:
        """What it was sent to."""

    @property
    def data(self) -> bytes:
        """The body."""

    @property
    def headers(self) -> dict[str, str] | None:
        """The headers."""

    @property
    def reply(self) -> str:
        """Where the requester waits for the answer, or ""."""

    async def respond(self, data: bytes) -> None:
        """Answer the requester."""
