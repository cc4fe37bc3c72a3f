"""What the agent logs: one JSON object a line, on standard error.

A node may decide on thousands of launches a second, so a line has to be cheap to make.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Final

import msgspec

# What logging itself puts into a record; everything else was said by whoever logs.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def log_json_lines() -> None:
    """Log from INFO on, as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class JsonLines(logging.Formatter):
    """Makes a line of a record: time, level, logger, message, and the fields it was given."""

    def __init__(self) -> None:
        super().__init__()
        self._encode = msgspec.json.Encoder(enc_hook=repr).encode
        self._second = 0
        self._time_to_the_second = ""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, object] = {
            "time": self._time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            line["exc_info"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack_info"] = self.formatStack(record.stack_info)
        try:
            return self._encode(line).decode()
        except (TypeError, ValueError, OverflowError):
            return json.dumps(line, default=repr)  # slower, and takes anything

    def _time(self, created_s: float) -> str:
        second = int(created_s)
        if second != self._second:
            self._second = second
            self._time_to_the_second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        milliseconds = min(round((created_s - second) * 1000), 999)
        return f"{self._time_to_the_second}.{milliseconds:03}Z"
