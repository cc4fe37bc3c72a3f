"""What this node has promised, on disk before the promise is made.

Owns the SQLite file. WAL with synchronous=FULL: what `write` has returned from survives a
kill -9 and a power cut. Writes that come together share one fsync, and it runs in a thread of
its own, so that the event loop goes on meanwhile.

The write-ahead log stays small: SQLite copies it into the database whenever it has grown to
_CHECKPOINT_PAGES and then begins it anew, and since nobody else may have the file open, nothing
ever keeps it from doing so. It has its full length from the start: a write that makes a file longer
takes three times as long to reach the disk as one that doesn't.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

import msgspec

from fleetcast.agent.entries import Entry, Fence
from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor, Future
    from pathlib import Path

_T = TypeVar("_T")

_LOCK_TIMEOUT_S: Final = 1
# 4 KiB each. One burst may add to it what a single transaction holds. More would be copied longer,
# and with fewer, one launch of a hundred waits for a copy.
_CHECKPOINT_PAGES: Final = 500
_LOG_BYTES: Final = 4_200 * _CHECKPOINT_PAGES
# Raise it with a change after which an older agent would misread the file.
_FORM: Final = 1
# An instance's row is appended, and the one that it had goes. Keyed by the ids, which are random,
# a burst would write a page for each of its instances.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS instances (
    row         INTEGER PRIMARY KEY,
    instance_id TEXT NOT NULL,
    entry       BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS fences (
    instance_id TEXT PRIMARY KEY,
    attempt     INTEGER NOT NULL,
    set_at_s    REAL NOT NULL
) WITHOUT ROWID;
"""
_UPSERT_FENCE: Final = """
INSERT INTO fences (instance_id, attempt, set_at_s) VALUES (?, ?, ?)
ON CONFLICT (instance_id) DO UPDATE
SET attempt = max(attempt, excluded.attempt), set_at_s = excluded.set_at_s
"""
_MAX_ROWS_A_STATEMENT: Final = 256


class JournalUnwritable(FleetcastError):
    """The journal could not be written (disk full, read-only, …): promise nothing."""


class JournalUnreadable(FleetcastError):
    """The journal holds what this version can't read: starting would forget what is promised."""


class _Changes(NamedTuple):
    """What is to be written. entries: encoded, by instance id."""

    entries: dict[str, bytes]
    fences: list[tuple[str, int, float]]


_encode: Final = msgspec.msgpack.Encoder().encode


class Journal:
    """The instances of one node. Open it with `Journal.open`."""

    def __init__(self, database: sqlite3.Connection, thread: Executor) -> None:
        self._database = database
        self._thread = thread
        self._waiting: list[tuple[_Changes, asyncio.Future[None]]] = []
        self._is_writing = False
        self._rows: dict[str, int] = {}
        self._last_row = 0

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the journal.

        Raises JournalUnwritable, also if another agent has it; and JournalUnreadable.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        try:
            database = thread.submit(open_database, path).result()
        except sqlite3.Error as problem:
            thread.shutdown()
            if problem.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                why = (
                    f"another agent has {path.parent}: one that runs already, or the same state_dir"
                )
                raise JournalUnwritable(why) from problem
            raise JournalUnwritable(f"{path}: {problem}") from problem
        except JournalUnreadable:
            thread.shutdown()
            raise
        thread.submit(_lengthen_log, path)  # before anything is written, and nobody waits for it
        return cls(database, thread)

    async def entries(self) -> list[Entry]:
        """Return every instance in the journal, also the terminated ones. Call it before writing.

        Raises JournalUnreadable.
        """

        def read() -> list[tuple[int, str, bytes]]:
            return self._database.execute(
                "SELECT row, instance_id, entry FROM instances"
            ).fetchall()

        rows = await self._run(read)
        self._rows = {instance_id: row for row, instance_id, _ in rows}
        self._last_row = max(self._rows.values(), default=0)
        try:
            return [msgspec.msgpack.decode(entry, type=Entry) for _, _, entry in rows]
        except msgspec.MsgspecError as problem:
            raise JournalUnreadable(f"journal: {problem}") from problem

    async def fences(self) -> list[Fence]:
        """Return every fence in the journal."""

        def read() -> list[Fence]:
            rows = self._database.execute("SELECT instance_id, attempt, set_at_s FROM fences")
            return [
                Fence(instance_id=instance_id, attempt=attempt, set_at_s=set_at_s)
                for instance_id, attempt, set_at_s in rows
            ]

        return await self._run(read)

    async def write(self, entries: Sequence[Entry], fences: Sequence[Fence] = ()) -> None:
        """Make all of these durable, or none; and all that was written before them.

        Raises JournalUnwritable.
        """
        # Encoded here: what can't be encoded must fail its own caller, not all who share the batch.
        changes = _Changes(
            {entry.guest.instance_id: _encode(entry) for entry in entries},
            [(fence.instance_id, fence.attempt, fence.set_at_s) for fence in fences],
        )
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((changes, written))
        if not self._is_writing:
            self._is_writing = True
            # With all that is asked for in this turn of the loop.
            asyncio.get_running_loop().call_soon(self._write_waiting)
        await written

    def _write_waiting(self) -> None:
        # Group commit: everything that came while the last fsync ran shares the next one.
        batch, self._waiting = self._waiting, []
        entries: dict[str, bytes] = {}
        for changes, _ in batch:
            entries |= changes.entries  # the last one of an instance counts
        rows = dict(zip(entries, count(self._last_row + 1), strict=False))
        old = [self._rows[instance_id] for instance_id in entries if instance_id in self._rows]
        new = [(rows[instance_id], instance_id, entry) for instance_id, entry in entries.items()]
        fences = [fence for changes, _ in batch for fence in changes.fences]
        loop = asyncio.get_running_loop()
        # Not by a task: each turn of the loop is a part of what a launch waits for.
        ending = self._thread.submit(partial(self._transact, new, old, fences))
        ending.add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._tell_written, done, batch, rows)
        )

    def _tell_written(
        self,
        done: Future[None],
        batch: Sequence[tuple[_Changes, asyncio.Future[None]]],
        rows: dict[str, int],
    ) -> None:
        problem = done.exception()
        if isinstance(problem, sqlite3.Error):
            problem = JournalUnwritable(f"journal: {problem}")
        if not problem:
            self._last_row += len(rows)
            self._rows |= rows
        for _, written in batch:
            if written.cancelled():
                continue
            if problem:
                written.set_exception(problem)
            else:
                written.set_result(None)
        if self._waiting:
            self._write_waiting()
        else:
            self._is_writing = False

    def _transact(
        self,
        new: Sequence[tuple[int, str, bytes]],
        old: Sequence[int],
        fences: Sequence[tuple[str, int, float]],
    ) -> None:
        with self._database:
            # Few statements: between two of them this thread waits for the event loop's.
            for start in range(0, len(new), _MAX_ROWS_A_STATEMENT):
                rows = new[start : start + _MAX_ROWS_A_STATEMENT]
                values = ", ".join(["(?, ?, ?)"] * len(rows))
                self._database.execute(
                    f"INSERT INTO instances (row, instance_id, entry) VALUES {values}",  # noqa: S608 - question marks
                    [value for row in rows for value in row],
                )
            if old:
                self._delete(old)
            if fences:
                self._database.executemany(_UPSERT_FENCE, fences)

    def _delete(self, rows: Iterable[int]) -> None:
        self._database.executemany("DELETE FROM instances WHERE row = ?", ((row,) for row in rows))

    async def forget(self, instance_ids: Sequence[str], *, fences_before_s: float) -> None:
        """Delete these instances, and the fences set before an epoch second.

        Raises JournalUnwritable.
        """
        rows = {one: self._rows[one] for one in instance_ids if one in self._rows}

        def delete() -> None:
            with self._database:
                self._delete(rows.values())
                self._database.execute("DELETE FROM fences WHERE set_at_s < ?", (fences_before_s,))

        await self._run(delete)
        for instance_id, row in rows.items():
            if self._rows.get(instance_id) == row:  # not written again meanwhile
                del self._rows[instance_id]

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
    """Open or create the SQLite file of a journal. Raises sqlite3.Error and JournalUnreadable."""
    database = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S)
    try:
        # Two agents with one journal would hold twice what the node has.
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        form = _form(database, path)
        database.executescript(_SCHEMA)
        if form != _FORM:  # else it writes nothing: an agent starts though its disk is full
            database.execute(f"PRAGMA user_version={_FORM}")
        with database:
            # The lock is taken with the first write, and CREATE … IF NOT EXISTS may write nothing.
            database.execute("DELETE FROM instances WHERE FALSE")
    except (sqlite3.Error, JournalUnreadable):
        database.close()
        raise
    return database


def _lengthen_log(path: Path) -> None:
    """Give the write-ahead log its full length.

    SQLite passes over what stands behind the frames that it has written, as it does over those of
    an earlier round. On a full disk the log stays as it is.
    """
    log = path.with_name(f"{path.name}-wal")
    with contextlib.suppress(OSError), log.open("r+b", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        try:
            os.posix_fallocate(file.fileno(), 0, _LOG_BYTES)
            # Blocks that are only set aside would have to be noted as written later.
            file.write(bytes(max(_LOG_BYTES - length, 0)))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(length)


def _form(database: sqlite3.Connection, path: Path | str) -> int:
    form: int
    (form,) = database.execute("PRAGMA user_version").fetchone()
    if form > _FORM:
        raise JournalUnreadable(
            f"{path} was written in form {form} by a newer agent; this one reads form {_FORM}"
        )
    return form
