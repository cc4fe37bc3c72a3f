"""The shapes of which no served action has one yet, or has them in one direction only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

import pytest

from fleetcast.errors import InvalidParameterValue, UnknownParameter
from lambdas.run_instances.ec2_shapes import Blob, Double, Field, Float, Long, Timestamp

if TYPE_CHECKING:
    from lambdas.run_instances.ec2_shapes import Scalar

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


def decoded(shape: Scalar, text: str) -> object:
    return shape.decode([Field("Name", (), text)], "Name")


def encoded(shape: Scalar, value: object) -> str | None:
    element = Element("name")
    shape.encode(element, value)
    return element.text


@pytest.mark.parametrize(
    ("shape", "text", "value"),
    [
        (Long(), "-9223372036854775808", -(2**63)),
        (Long(), "9223372036854775807", 2**63 - 1),
        (Double(), "0.5", 0.5),
        (Float(), "1e3", 1000.0),
        (Timestamp(), "2026-01-02T12:00:00Z", NOON),
        (Timestamp(), "2026-01-02T13:00:00.000+01:00", NOON),
        (Timestamp(), "2026-01-02T12:00:00", NOON),
        (Blob(), "aGk=", b"hi"),
    ],
)
def test_a_text_becomes_the_value_that_it_stands_for(
    shape: Scalar, text: str, value: object
) -> None:
    assert decoded(shape, text) == value


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (Long(), "9223372036854775808"),
        (Double(), "nan"),
        (Double(), "inf"),
        (Double(), "half"),
        (Timestamp(), "noon"),
        (Timestamp(), "2026-13-01T00:00:00Z"),
        (Blob(), "s3cret!"),
    ],
)
def test_another_text_is_refused_without_repeating_it(shape: Scalar, text: str) -> None:
    with pytest.raises(InvalidParameterValue) as refusal:
        decoded(shape, text)
    assert text not in refusal.value.message


def test_a_scalar_has_no_parts() -> None:
    with pytest.raises(UnknownParameter):
        Long().decode([Field("Name", (), "1"), Field("Name.1", ("1",), "1")], "Name")


@pytest.mark.parametrize(
    ("shape", "value", "text"),
    [
        (Long(), 2**40, "1099511627776"),
        (Double(), 0.5, "0.5"),
        (Timestamp(), NOON, "2026-01-02T12:00:00.000Z"),
        (Timestamp(), NOON.astimezone(timezone(timedelta(hours=5))), "2026-01-02T12:00:00.000Z"),
        (Blob(), b"hi", "aGk="),
    ],
)
def test_a_value_is_written_as_ec2_writes_it(shape: Scalar, value: object, text: str) -> None:
    assert encoded(shape, value) == text
