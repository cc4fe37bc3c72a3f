"""Times as EC2's protocol writes them: ISO 8601, UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from fleetcast.local.aws_fakes.call import Refused


def epoch_s(text: str | None, default: float) -> float:
    """Read a time that a client sent, or take the default. Raises Refused for what is none."""
    if text is None:
        return default
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise Refused("InvalidParameterValue", f"{text} is not a time") from None


def timestamp(at_s: float) -> str:
    """Write an epoch second as an answer has it, to the millisecond."""
    moment = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
