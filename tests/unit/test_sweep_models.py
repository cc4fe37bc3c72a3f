"""The committed service models are what their generator makes, and what a sweep's clients use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore.loaders import Loader

from infra import sweep_models
from infra.ec2_model import render
from infra.sweep_models import MODELS_PATH, USED, Used
from lambdas.score_regions.clients import new_session

if TYPE_CHECKING:
    from pathlib import Path

REGENERATED = sweep_models.used_models()


def everything_in(folder: Path) -> dict[Path, str]:
    return {
        path.relative_to(folder): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_committed_models_are_what_the_generator_makes() -> None:
    made = {path: render(model) for path, model in REGENERATED.items()}
    assert everything_in(MODELS_PATH) == made


def test_the_generator_writes_where_it_is_told(tmp_path: Path) -> None:
    sweep_models.main([str(tmp_path)])
    assert everything_in(tmp_path) == everything_in(MODELS_PATH)


@pytest.mark.parametrize("service", USED)
def test_a_sweeps_client_knows_what_is_used_and_nothing_else(service: Any) -> None:  # noqa: ANN401 - boto3 takes literals
    client: Any = new_session().client(service, region_name="us-east-1")
    assert set(client.meta.service_model.operation_names) == USED[service].keys()


def test_shared_shapes_keep_what_any_action_uses() -> None:
    whole = Loader().load_service_model("ec2", "service-2")
    used = {
        "DescribeSpotPriceHistory": Used(sends=("Filters.Name",), reads=("NextToken",)),
        "DescribeInstances": Used(sends=("Filters.Values",), reads=("NextToken",)),
    }
    shapes = sweep_models.used_model(whole, used)["shapes"]
    assert shapes["Filter"]["members"].keys() == {"Name", "Values"}
    assert shapes["DescribeInstancesResult"]["members"].keys() == {"NextToken"}


def test_every_shape_that_is_referred_to_is_there() -> None:
    for model in REGENERATED.values():
        references = json.dumps([model["operations"], model["shapes"]]).split('{"shape": "')[1:]
        assert {one.partition('"')[0] for one in references} == model["shapes"].keys()


@pytest.mark.parametrize("path", ["Colour", "Filters.Colour"])
def test_a_member_that_the_service_does_not_have_is_refused(path: str) -> None:
    whole = Loader().load_service_model("ec2", "service-2")
    with pytest.raises(KeyError, match="Colour"):
        sweep_models.used_model(
            whole, {"DescribeSpotPriceHistory": Used(sends=(path,), reads=("NextToken",))}
        )
