"""build/local/stack.json: where everything of a running local stack is.

Scripts, benchmarks and tests reach the stack through it and need not know how it was made.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

LOCAL_DIRECTORY = Path(__file__).resolve().parent.parent.parent / "build" / "local"


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One running agent. state_dir: its journal; an absolute path."""

    node: str
    region: str
    pid: int
    state_dir: str


class StackFile(msgspec.Struct, frozen=True, kw_only=True):
    """A running stack.

    api_url: the EC2 endpoint. aws_endpoint_url: the emulator, for every other AWS service; both
    take the keys. nats: each region's URL. tables, functions: deployed names by their own.
    log_dir: where every process logs; an absolute path.
    """

    api_url: str
    aws_endpoint_url: str
    access_key_id: str
    secret_access_key: str
    regions: tuple[str, ...]
    nats: dict[str, str]
    tables: dict[str, str]
    functions: dict[str, str]
    agents: tuple[AgentEntry, ...]
    log_dir: str

    def write(self, path: Path) -> None:
        """Write it so that a reader never sees half of it."""
        draft = path.with_suffix(".part")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> StackFile:
        """Read it. Raises FileNotFoundError when no stack runs."""
        return msgspec.json.decode(path.read_bytes(), type=cls)
