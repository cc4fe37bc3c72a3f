"""The journal: what was written survives, and a failure reaches exactly those it concerns."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import shutil
import sqlite3
from typing import TYPE_CHECKING

import msgspec
import pytest

from fleetcast.agent.entries import Entry, Fence
from fleetcast.agent.journal import Journal, JournalUnreadable, JournalUnwritable
from tests.agent_parts import a_guest, instance_id, make_journal_refuse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Journal]:
    journal = Journal.open(path)
    try:
        yield journal
    finally:
        journal.close()


def _entry(number: int, **changed: object) -> Entry:
    return Entry(guest=a_guest(number, **changed), state="pending", changed_at_s=1.0)


def _fence(number: int, *, attempt: int = 1, set_at_s: float = 1.0) -> Fence:
    return Fence(instance_id=instance_id(number), attempt=attempt, set_at_s=set_at_s)


async def test_what_was_written_is_there_after_reopening(path: Path) -> None:
    with _opened(path) as journal:
        await journal.write([_entry(1), _entry(2)])
    with _opened(path) as journal:
        assert sorted(await journal.entries(), key=lambda one: one.guest.instance_id) == [
            _entry(1),
            _entry(2),
        ]


async def test_the_last_write_of_an_instance_wins(path: Path) -> None:
    with _opened(path) as journal:
        await asyncio.gather(journal.write([_entry(1)]), journal.write([_entry(1, attempt=2)]))
        assert await journal.entries() == [_entry(1, attempt=2)]


async def test_many_writers_at_once_are_all_written(path: Path) -> None:
    with _opened(path) as journal:
        await asyncio.gather(*(journal.write([_entry(number)]) for number in range(100)))
        assert len(await journal.entries()) == 100


async def test_a_refused_write_leaves_nothing_behind_and_later_ones_succeed(path: Path) -> None:
    make_journal_refuse(path.parent, 2)
    with _opened(path) as journal:
        with pytest.raises(JournalUnwritable, match="disk full"):
            await journal.write([_entry(1), _entry(2)])
        assert await journal.entries() == []
        await journal.write([_entry(1)])
        assert await journal.entries() == [_entry(1)]


async def test_what_cannot_be_encoded_fails_its_own_writer_only(path: Path) -> None:
    with _opened(path) as journal:
        outcomes = await asyncio.gather(
            journal.write([_entry(1, attempt=2**70)]),
            journal.write([_entry(2)]),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], OverflowError)
        assert outcomes[1] is None
        assert await journal.entries() == [_entry(2)]


async def test_a_writer_that_gave_up_holds_nobody_up(path: Path) -> None:
    with _opened(path) as journal:
        gone = asyncio.create_task(journal.write([_entry(1)]))
        staying = asyncio.create_task(journal.write([_entry(2)]))
        await asyncio.sleep(0)
        gone.cancel()
        await staying
        assert [one.guest.instance_id for one in await journal.entries()] == [
            instance_id(1),
            instance_id(2),
        ]


async def test_forgotten_entries_are_gone(path: Path) -> None:
    with _opened(path) as journal:
        await journal.write([_entry(1), _entry(2)])
        await journal.forget([instance_id(1)], fences_before_s=0)
        assert await journal.entries() == [_entry(2)]


async def test_an_instance_has_one_row_however_often_it_changes(path: Path) -> None:
    for attempt in range(1, 4):
        with _opened(path) as journal:
            await journal.entries()
            for _ in range(3):
                await journal.write([_entry(1, attempt=attempt), _entry(2)])
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM instances").fetchone() == (2,)
    with _opened(path) as journal:
        attempts = {one.guest.instance_id: one.guest.attempt for one in await journal.entries()}
        assert attempts == {instance_id(1): 3, instance_id(2): 1}


async def test_what_was_forgotten_can_be_written_again(path: Path) -> None:
    with _opened(path) as journal:
        await journal.write([_entry(1)])
        await asyncio.gather(
            journal.forget([instance_id(1)], fences_before_s=0),
            journal.write([_entry(1, attempt=2)]),
        )
        await journal.write([_entry(1, attempt=3)])
        assert await journal.entries() == [_entry(1, attempt=3)]


async def test_a_burst_of_any_size_is_written_whole_or_not_at_all(path: Path) -> None:
    make_journal_refuse(path.parent, 999)
    with _opened(path) as journal:
        with pytest.raises(JournalUnwritable):
            await journal.write([_entry(number) for number in range(1, 1_001)])
        assert await journal.entries() == []
        await journal.write([_entry(number) for number in range(1, 999)])
        assert len(await journal.entries()) == 998


async def test_of_two_fences_the_higher_one_stays(path: Path) -> None:
    with _opened(path) as journal:
        await journal.write([], [_fence(1, attempt=3), _fence(2)])
        await journal.write([_entry(1)], [_fence(1, attempt=2)])
    with _opened(path) as journal:
        fences = {fence.instance_id: fence.attempt for fence in await journal.fences()}
        assert fences == {instance_id(1): 3, instance_id(2): 1}


async def test_only_old_fences_are_forgotten(path: Path) -> None:
    with _opened(path) as journal:
        await journal.write([], [_fence(1, set_at_s=10), _fence(2, set_at_s=11)])
        await journal.forget([], fences_before_s=11)
        assert [fence.instance_id for fence in await journal.fences()] == [instance_id(2)]


async def test_a_fence_and_what_it_ends_are_written_together_or_not_at_all(path: Path) -> None:
    make_journal_refuse(path.parent, 1)
    with _opened(path) as journal:
        with pytest.raises(JournalUnwritable, match="disk full"):
            await journal.write([_entry(1)], [_fence(2)])
        assert await journal.fences() == []


async def test_a_journal_of_an_older_agent_is_read(path: Path) -> None:
    with _opened(path) as journal:
        await journal.write([_entry(1)])
    before = {"guest": a_guest(1), "state": "running", "changed_at_s": 1.0}
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE instances SET entry = ?", (msgspec.msgpack.encode(before),))
        database.execute("DROP TABLE fences")
    with _opened(path) as journal:
        (entry,) = await journal.entries()
        assert (entry.state, entry.held_until_ms, entry.given_up) == ("running", None, False)
        assert await journal.fences() == []


async def test_the_write_ahead_log_does_not_grow_with_what_is_written(path: Path) -> None:
    wal = path.with_name("journal.sqlite-wal")
    with _opened(path) as journal:
        sizes = []
        for _ in range(30):
            await journal.write([_entry(number, tags={"x": "y" * 4_000}) for number in range(200)])
            sizes.append(wal.stat().st_size)
    written = 30 * 200 * 4_000
    # At most a checkpoint's worth and one transaction.
    assert max(sizes) < 10_000_000 < written


async def test_what_is_written_makes_the_write_ahead_log_no_longer(path: Path) -> None:
    wal = path.with_name("journal.sqlite-wal")
    with _opened(path) as journal:
        await journal.entries()
        at_first = wal.stat().st_size
        for number in range(100):
            await journal.write([_entry(number)])
        assert wal.stat().st_size == at_first > 0


async def test_what_was_written_is_there_after_a_crash_that_leaves_the_log_behind(
    path: Path, tmp_path: Path
) -> None:
    after_crash = tmp_path / "after" / "journal.sqlite"
    after_crash.parent.mkdir()
    with _opened(path) as journal:
        await journal.write([_entry(1)])
        for name in ("journal.sqlite", "journal.sqlite-wal"):
            shutil.copyfile(path.with_name(name), after_crash.with_name(name))
    with _opened(after_crash) as journal:
        assert await journal.entries() == [_entry(1)]


async def test_a_disk_that_has_no_room_for_a_whole_log_is_written_as_long_as_it_goes(
    path: Path,
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with _opened(path) as journal:
            await journal.write([_entry(1)])
            assert await journal.entries() == [_entry(1)]
            assert path.with_name("journal.sqlite-wal").stat().st_size < 200_000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_is_no_journal_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database, not at all" * 100)
    with pytest.raises(JournalUnwritable, match="not a database"):
        Journal.open(path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalUnwritable, match="unable to open"):
        Journal.open(tmp_path / "missing" / "journal.sqlite")


async def test_an_entry_that_this_version_cannot_read_is_never_skipped(path: Path) -> None:
    with _opened(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO instances VALUES (1, ?, ?)", (instance_id(1), b"\x00"))
    with _opened(path) as journal, pytest.raises(JournalUnreadable):
        await journal.entries()


def test_a_journal_of_a_newer_form_is_refused_and_left_as_it_is(path: Path) -> None:
    with _opened(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA user_version = 7")
    with pytest.raises(JournalUnreadable, match=r"form 7.*reads form 1"):
        Journal.open(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (7,)


def test_two_agents_never_share_a_journal(path: Path) -> None:
    with _opened(path), pytest.raises(JournalUnwritable, match="another agent has"):
        Journal.open(path)
    with _opened(path):
        pass


def test_user_data_stays_out_of_the_words_for_a_guest() -> None:
    shown = repr(_entry(1))
    assert "c2VjcmV0" not in shown
    assert "private" not in shown
