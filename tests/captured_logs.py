"""Everything that a logger says, fields and tracebacks included, whoever configured it."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORMATTER: Final = logging.Formatter()


class Lines(logging.Handler):
    """records: what was logged. text: all that stands in them, in any field."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def fields(self, phrase: str) -> list[dict[str, object]]:
        """Return the fields of each record with that message."""
        return [vars(record) for record in self.records if record.getMessage() == phrase]

    def text(self) -> str:
        return "\n".join(f"{_FORMATTER.format(one)} {vars(one)!r}" for one in self.records)


@contextlib.contextmanager
def captured_logs(name: str) -> Iterator[Lines]:
    """Collect what this logger and those below it say, from DEBUG on."""
    logger = logging.getLogger(name)
    lines, level = Lines(), logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
