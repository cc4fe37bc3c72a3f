"""What a check has found."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One line of the doctor's.

    state: warn: it serves, but not as it could, or something could not be found out; fail: it
    won't serve. mend: what to do; None where all is well.
    """

    check: str
    state: Literal["ok", "warn", "fail"]
    found: str
    mend: str | None = None


def ok(check: str, found: str) -> Finding:
    """Return that all is well."""
    return Finding(check, "ok", found)


def warn(check: str, found: str, mend: str) -> Finding:
    """Return what doesn't keep the node from serving."""
    return Finding(check, "warn", found, mend)


def fail(check: str, found: str, mend: str) -> Finding:
    """Return what does."""
    return Finding(check, "fail", found, mend)
