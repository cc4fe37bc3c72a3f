"""The environment that the stack gives a function is the one that its settings read."""

from typing import Any

import msgspec
import pytest

from infra.config import read_config
from lambdas.settings import (
    ReadApiSettings,
    ReconcileSettings,
    RunInstancesSettings,
    ScoreRegionsSettings,
    decode_settings,
    environment_names,
)


def environment(template: dict[str, Any], function: str) -> dict[str, Any]:
    (variables,) = (
        resource["Properties"]["Environment"]["Variables"]
        for name, resource in template["Resources"].items()
        if resource["Type"] == "AWS::Lambda::Function" and function in name
    )
    return dict(variables)


@pytest.mark.parametrize(
    ("function", "settings_type"),
    [
        ("RunInstances", RunInstancesSettings),
        ("ScoreRegions", ScoreRegionsSettings),
        ("ReadApi", ReadApiSettings),
        ("Reconcile", ReconcileSettings),
    ],
)
def test_synthesised_variables_are_exactly_the_settings_fields(
    template: dict[str, Any], function: str, settings_type: type[msgspec.Struct]
) -> None:
    names = environment_names(settings_type)
    assert set(environment(template, f"Functions{function}")) == set(names.values())


def test_functions_read_back_what_the_configuration_says(
    template: dict[str, Any], stack_config: dict[str, Any]
) -> None:
    config = read_config(stack_config)

    launching = decode_settings(
        RunInstancesSettings, deployed(environment(template, "FunctionsRunInstances"))
    )
    assert launching == RunInstancesSettings(
        fleet_table="name of a table",
        region_scores_table="name of a table",
        regions=config.regions,
        default_region=config.default_region,
        instance_types=config.instance_types,
    )

    scoring = decode_settings(
        ScoreRegionsSettings, deployed(environment(template, "FunctionsScoreRegions"))
    )
    assert scoring == ScoreRegionsSettings(
        region_scores_table="name of a table",
        regions=config.regions,
        scored_instance_types=config.scoring.scored_instance_types,
    )

    reconciling = decode_settings(
        ReconcileSettings, deployed(environment(template, "FunctionsReconcile"))
    )
    assert reconciling == ReconcileSettings(
        fleet_table="name of a table",
        regions=config.regions,
        scored_instance_types=config.scoring.scored_instance_types,
    )


def deployed(variables: dict[str, Any]) -> dict[str, str]:
    """Put a name where the template has a reference to a table."""
    return {
        name: value if isinstance(value, str) else "name of a table"
        for name, value in variables.items()
    }
