"""The functions' settings: the environment gives back what was put in, or says what is wrong."""

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import InstanceType
from fleetcast.scoring import Weights
from lambdas.settings import (
    LaunchOptions,
    ReconcileSettings,
    Region,
    RunInstancesSettings,
    ScoreRegionsSettings,
    decode_settings,
    encode_settings,
    environment_names,
)

US = Region(name="us-east-1", nats_url="tls://nats.example.com:4222")

names = st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
regions = st.lists(
    st.builds(
        Region,
        name=names,
        nats_url=st.sampled_from(["tls://a.example:4222", "nats://127.0.0.1:1", "tls://[::1]:9"]),
        nats_credentials_secret=st.none() | texts,
        job_stack_name=st.none() | texts,
        cluster_name=st.none() | texts,
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda region: region.name,
).map(tuple)
own_types = st.builds(
    InstanceType,
    name=st.from_regex(r"[a-z0-9-]{1,9}\.[a-z0-9-]{1,9}", fullmatch=True),
    vcpu=st.integers(1, 512),
    memory_mib=st.integers(1, 2**24),
    gpus=st.integers(0, 8),
)
seconds = st.floats(0.001, 10.0)


@st.composite
def run_instances_settings(draw: st.DrawFn) -> RunInstancesSettings:
    chosen = draw(regions)
    return RunInstancesSettings(
        fleet_table=draw(texts),
        region_scores_table=draw(texts),
        regions=chosen,
        default_region=draw(st.sampled_from(chosen)).name,
        instance_types=tuple(draw(st.lists(own_types, max_size=3))),
        accept_timeout_s=draw(seconds),
        max_score_age_s=draw(seconds),
        tie_band=draw(st.floats(0, 1)),
    )


@given(run_instances_settings())
def test_run_instances_settings_survive_the_environment(settings: RunInstancesSettings) -> None:
    assert decode_settings(RunInstancesSettings, encode_settings(settings)) == settings


@given(
    st.builds(
        ScoreRegionsSettings,
        region_scores_table=texts,
        regions=regions,
        scored_instance_types=st.lists(texts, max_size=5).map(tuple),
        score_ttl_s=seconds,
    )
)
def test_score_regions_settings_survive_the_environment(settings: ScoreRegionsSettings) -> None:
    assert decode_settings(ScoreRegionsSettings, encode_settings(settings)) == settings


@given(
    st.builds(
        ReconcileSettings,
        fleet_table=texts,
        regions=regions,
        scored_instance_types=st.lists(texts, max_size=5).map(tuple),
    )
)
def test_reconcile_settings_survive_the_environment(settings: ReconcileSettings) -> None:
    assert decode_settings(ReconcileSettings, encode_settings(settings)) == settings


def test_each_field_has_one_variable_named_after_it() -> None:
    assert environment_names(ScoreRegionsSettings) == {
        "region_scores_table": "FLEETCAST_REGION_SCORES_TABLE",
        "regions": "FLEETCAST_REGIONS",
        "scored_instance_types": "FLEETCAST_SCORED_INSTANCE_TYPES",
        "weights": "FLEETCAST_WEIGHTS",
        "score_ttl_s": "FLEETCAST_SCORE_TTL_S",
        "spot_placement_pools": "FLEETCAST_SPOT_PLACEMENT_POOLS",
        "spot_placement_refresh_s": "FLEETCAST_SPOT_PLACEMENT_REFRESH_S",
        "on_demand_refresh_s": "FLEETCAST_ON_DEMAND_REFRESH_S",
        "history_ttl_s": "FLEETCAST_HISTORY_TTL_S",
    }


def environment(**changes: str) -> dict[str, str]:
    settings = RunInstancesSettings(
        fleet_table="Fleet", region_scores_table="Scores", regions=(US,), default_region=US.name
    )
    return encode_settings(settings) | {f"FLEETCAST_{key}": value for key, value in changes.items()}


def test_what_is_not_set_keeps_its_default_and_other_variables_are_passed_over() -> None:
    variables = environment() | {"PATH": "/bin", "FLEETCAST_OF_SOMEBODY_ELSE": "x"}
    del variables["FLEETCAST_ACCEPT_TIMEOUT_S"]
    settings = decode_settings(RunInstancesSettings, variables)
    assert settings.accept_timeout_s == LaunchOptions().accept_timeout_s


def test_a_missing_variable_is_named() -> None:
    variables = environment()
    del variables["FLEETCAST_FLEET_TABLE"]
    with pytest.raises(InvalidConfiguration, match=r"^FLEETCAST_FLEET_TABLE: is missing"):
        decode_settings(RunInstancesSettings, variables)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FLEET_TABLE", "", "FLEETCAST_FLEET_TABLE: is ''; expected the name of a resource"),
        ("TIE_BAND", "wide", "FLEETCAST_TIE_BAND: is no JSON"),
        ("TIE_BAND", "2", "FLEETCAST_TIE_BAND: is 2; expected a score difference from 0 to 1"),
        ("ACCEPT_TIMEOUT_S", "0", "FLEETCAST_ACCEPT_TIMEOUT_S: is 0; expected a number of seconds"),
        ("REGIONS", "[]", "FLEETCAST_REGIONS: is empty; expected at least one region"),
        ("REGIONS", '[{"name": "A"}]', "FLEETCAST_REGIONS[0].name: is 'A'; expected a name of a-z"),
        ("REGIONS", '[{"name": "a"}]', "FLEETCAST_REGIONS[0].nats_url: is missing"),
        (
            "REGIONS",
            '[{"name": "a", "nats_url": "nats://a.example:4222"}]',
            "FLEETCAST_REGIONS[0].nats_url: 'nats://a.example:4222' is not encrypted",
        ),
        (
            "DEFAULT_REGION",
            "mars-1",
            "FLEETCAST_DEFAULT_REGION: is 'mars-1'; expected one of us-east-1",
        ),
        (
            "INSTANCE_TYPES",
            '[{"name": "m8a.nano", "vcpu": 0, "memory_mib": 512}]',
            "FLEETCAST_INSTANCE_TYPES[0].vcpu: m8a.nano has 0; expected at least 1",
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_variable_and_what_would_be_right(
    variable: str, value: str, message: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        decode_settings(RunInstancesSettings, environment(**{variable: value}))
    assert str(refused.value).startswith(message)


def test_weights_that_do_not_sum_to_one_are_refused() -> None:
    half = dict.fromkeys(Weights.__struct_fields__, 0.5)
    variables = environment() | {"FLEETCAST_WEIGHTS": msgspec.json.encode(half).decode()}
    with pytest.raises(InvalidConfiguration, match=r"^FLEETCAST_WEIGHTS: .* sum to 4"):
        decode_settings(ScoreRegionsSettings, variables)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nats.example.com:4222",
        "http://nats.example.com:4222",
        "tls://",
        "tls://nats.example.com:port",
        "tls://nats.example.com:4222/path",
        "tls://[::1",
    ],
)
def test_what_is_no_nats_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"^nats_url: "):
        Region(name="us-east-1", nats_url=url)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_nats_url_needs_no_tls_on_loopback(host: str) -> None:
    assert Region(name="us-east-1", nats_url=f"nats://{host}:4222").nats_url.startswith("nats://")


def test_credentials_in_a_nats_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        Region(name="us-east-1", nats_url="tls://fleet:hunter2@nats.example.com:4222")
    assert "nats_credentials_secret" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_reading_settings_loads_no_cloud_library() -> None:
    code = (
        "import sys, lambdas.settings\n"
        "heavy = {'boto3', 'botocore', 'aws_lambda_powertools', 'nats'} & set(sys.modules)\n"
        "print(*heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
