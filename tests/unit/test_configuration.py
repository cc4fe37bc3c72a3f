"""Reading typed configuration: what is accepted, and that an error names its key."""

from typing import Annotated, Literal

import msgspec
import pytest

from fleetcast.configuration import read_struct
from fleetcast.errors import InvalidConfiguration, InvalidSignal


class Server(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    port: Annotated[int, msgspec.Meta(ge=1, description="a port, 1 or more")] = 4222

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise InvalidConfiguration("name", "is 'bad'", expected="another one")
        if self.name == "odd":
            raise InvalidSignal("an odd server")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    servers: tuple[Server, ...]
    first: Server | None = None
    mode: Literal["calm", "fast"] = "calm"
    limits: dict[str, int] = {}
    note: str | None = None


def read(values: object) -> Settings:
    return read_struct(values, Settings)


def test_values_become_structs_with_defaults_for_what_is_absent() -> None:
    settings = read(
        {"servers": [{"name": "a"}, {"name": "b", "port": 1}], "limits": {"x": 3}, "note": None}
    )
    assert settings == Settings(
        servers=(Server(name="a"), Server(name="b", port=1)), limits={"x": 3}
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "configuration: is None; expected a mapping"),
        ({}, "servers: is missing; expected a list"),
        (
            {"servers": [], "server": 1},
            "server: is not a known key; expected one of servers, first, mode, limits, note",
        ),
        ({"servers": "a"}, "servers: is 'a'; expected a list"),
        ({"servers": [{"name": "a"}, 5]}, "servers[1]: is 5; expected a mapping"),
        ({"servers": [{}]}, "servers[0].name: is missing; expected text"),
        (
            {"servers": [{"name": "a", "port": 0}]},
            "servers[0].port: is 0; expected a port, 1 or more",
        ),
        (
            {"servers": [{"name": "a", "port": "1"}]},
            "servers[0].port: is '1'; expected a port, 1 or more",
        ),
        ({"servers": [{"name": "bad"}]}, "servers[0].name: is 'bad'; expected another one"),
        ({"servers": [{"name": "odd"}]}, "servers[0]: an odd server; expected a valid Server"),
        ({"servers": [], "first": {"name": 1}}, "first.name: is 1; expected text"),
        ({"servers": [], "mode": "slow"}, "mode: is 'slow'; expected one of calm, fast"),
        ({"servers": [], "limits": {"x": "y"}}, "limits.x: is 'y'; expected a whole number"),
        ({"servers": [], "limits": 4}, "limits: is 4; expected a mapping"),
        ({"servers": [], "note": 4}, "note: is 4; expected text"),
        (
            {"servers": [], "mode": "s" * 500},
            f"mode: is '{'s' * 59}...; expected one of calm, fast",
        ),
    ],
)
def test_an_error_names_the_key_and_what_would_be_right(values: object, message: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        read(values)
    assert str(refused.value) == message
