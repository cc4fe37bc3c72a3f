"""The scoring function's AWS session: quick with timestamps, and right."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.utils import parse_timestamp

from lambdas.score_regions.clients import new_session


@pytest.mark.parametrize(
    "value",
    [
        "2026-12-01T08:00:00.000Z",
        "2026-12-01T08:00:00Z",
        "2026-12-01T08:00:00+01:00",
        "2026-12-01T08:00:00",
        "Tue, 01 Dec 2026 08:00:00 GMT",
        1_764_576_000,
        1_764_576_000.5,
        "1764576000",
    ],
)
def test_every_form_of_a_timestamp_is_read_as_botocore_reads_it(value: Any) -> None:  # noqa: ANN401 - text or a number
    client: Any = new_session().client("ec2", region_name="us-east-1")
    read = client._response_parser._timestamp_parser(value)  # noqa: SLF001 - what its answers go by
    assert read == parse_timestamp(value)
    assert read.utcoffset() == parse_timestamp(value).utcoffset()
