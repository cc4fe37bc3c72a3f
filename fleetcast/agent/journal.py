"""What this node has promised, on disk before the promise is made.

Owns the SQLite file. WAL with synchronous=FULL: what `write` has returned from survives a
kill -9 and a power cut. Writes that come together share one fsync, and it runs in a thread of
its own, so that the event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar

import msgspec

from fleetcast.agent.drivers import Guest
from fleetcast.errors import FleetcastError
from fleetcast.messages import InstanceReport, InstanceState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

_T = TypeVar("_T")
_Rows: TypeAlias = "list[tuple[str, bytes]]"

_LOCK_TIMEOUT_S: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS instances (
    instance_id TEXT PRIMARY KEY,
    entry       BLOB NOT NULL
) WITHOUT ROWID
"""
_UPSERT: Final = """
INSERT INTO instances (instance_id, entry) VALUES (?, ?)
ON CONFLICT (instance_id) DO UPDATE SET entry = excluded.entry
"""


class JournalUnwritable(FleetcastError):
    """The journal could not be written (disk full, read-only, …): promise nothing."""


class JournalUnreadable(FleetcastError):
    """The journal holds what this version can't read: starting would forget what is promised."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One instance as the node last knew it. changed_at_s: epoch seconds."""

    guest: Guest
    state: InstanceState
    changed_at_s: float
    state_reason_code: str | None = None
    state_reason_message: str | None = None

    def report(self) -> InstanceReport:
        """Return what others are told of it."""
        return InstanceReport(
            instance_id=self.guest.instance_id,
            launch_id=self.guest.launch_id,
            attempt=self.guest.attempt,
            instance_type=self.guest.instance_type,
            state=self.state,
            state_reason_code=self.state_reason_code,
            state_reason_message=self.state_reason_message,
        )


class Journal:
    """The instances of one node. Open it with `Journal.open`."""

    def __init__(self, database: sqlite3.Connection, thread: Executor) -> None:
        self._database = database
        self._thread = thread
        self._waiting: list[tuple[_Rows, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the journal. Raises JournalUnwritable, also if another agent has it."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        try:
            database = thread.submit(open_database, path).result()
        except sqlite3.Error as problem:
            thread.shutdown()
            raise JournalUnwritable(f"{path}: {problem}") from problem
        return cls(database, thread)

    async def entries(self) -> list[Entry]:
        """Return every instance in the journal, also the terminated ones.

        Raises JournalUnreadable.
        """

        def read() -> list[Entry]:
            rows = self._database.execute("SELECT entry FROM instances").fetchall()
            return [msgspec.msgpack.decode(row[0], type=Entry) for row in rows]

        try:
            return await self._run(read)
        except msgspec.MsgspecError as problem:
            raise JournalUnreadable(f"journal: {problem}") from problem

    async def write(self, entries: Sequence[Entry]) -> None:
        """Make all entries durable, or none; and all that was written before them.

        Raises JournalUnwritable.
        """
        # Encoded here: what can't be encoded must fail its own caller, not all who share the batch.
        rows = [(entry.guest.instance_id, msgspec.msgpack.encode(entry)) for entry in entries]
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, written))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await written

    async def _flush(self) -> None:
        # Group commit: everything that came while the last fsync ran shares the next one.
        while self._waiting:
            batch, self._waiting = self._waiting, []
            rows = [row for rows_of_one, _ in batch for row in rows_of_one]
            problem: JournalUnwritable | None = None
            try:
                await self._run(partial(self._upsert, rows))
            except JournalUnwritable as unwritable:
                problem = unwritable
            for _, written in batch:
                if written.cancelled():
                    continue
                if problem:
                    written.set_exception(problem)
                else:
                    written.set_result(None)
        self._flushing = None

    def _upsert(self, rows: Sequence[tuple[str, bytes]]) -> None:
        with self._database:
            self._database.executemany(_UPSERT, rows)

    async def forget(self, instance_ids: Iterable[str]) -> None:
        """Delete these entries. Raises JournalUnwritable."""

        def delete() -> None:
            with self._database:
                self._database.executemany(
                    "DELETE FROM instances WHERE instance_id = ?",
                    [(instance_id,) for instance_id in instance_ids],
                )

        await self._run(delete)

    def close(self) -> None:
        """Finish the write at hand and close the file."""
        self._thread.submit(self._database.close).result()
        self._thread.shutdown()

    async def _run(self, work: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as problem:
            raise JournalUnwritable(f"journal: {problem}") from problem


def open_database(path: Path | str) -> sqlite3.Connection:
    """Open or create the SQLite file of a journal. Raises sqlite3.Error."""
    database = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S)
    try:
        # Two agents with one journal would hold twice what the node has.
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        with database:
            database.execute(_SCHEMA)
            # The lock is taken with the first write, and CREATE … IF NOT EXISTS may write nothing.
            database.execute("DELETE FROM instances WHERE FALSE")
    except sqlite3.Error:
        database.close()
        raise
    return database
