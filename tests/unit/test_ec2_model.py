"""The committed model is what its generator makes, whatever botocore has added since."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

import pytest

from infra import ec2_model
from lambdas.run_instances.ec2_shapes import AnyShape

if TYPE_CHECKING:
    from pathlib import Path

COMMITTED: dict[str, Any] = json.loads(ec2_model.MODEL_PATH.read_text(encoding="utf-8"))
REGENERATED = ec2_model.served_model(ec2_model.botocore_model())


def is_part_of(part: object, whole: object) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and is_part_of(part[key], whole[key]) for key in part)
    return part == whole


def inputs(model: dict[str, Any]) -> dict[str, Any]:
    return {action: shapes["input"] for action, shapes in model["actions"].items()}


def test_the_committed_inputs_are_what_the_generator_makes() -> None:
    assert inputs(COMMITTED) == inputs(REGENERATED)


def test_the_installed_botocore_still_has_all_that_is_committed() -> None:
    assert is_part_of(COMMITTED, REGENERATED)


def test_the_committed_file_is_as_the_generator_renders_it() -> None:
    assert ec2_model.MODEL_PATH.read_text(encoding="utf-8") == ec2_model.render(COMMITTED)


def test_every_type_of_ec2s_model_has_a_shape() -> None:
    of_ec2 = {shape["type"] for shape in ec2_model.botocore_model()["shapes"].values()}
    ours = {shape.__struct_config__.tag for shape in get_args(AnyShape)}
    assert of_ec2 == ours


def test_a_member_that_ec2_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ec2_model, "SERVED", {"TerminateInstances": ("InstanceIds", "Colour")})
    with pytest.raises(KeyError, match="Colour"):
        ec2_model.served_model(ec2_model.botocore_model())


def test_the_generator_writes_where_it_is_told(tmp_path: Path) -> None:
    ec2_model.main([str(tmp_path / "model.json")])
    assert json.loads((tmp_path / "model.json").read_text(encoding="utf-8")) == REGENERATED
