"""Make lambdas/score_regions/service_models/ from botocore's service models.

    python -m infra.sweep_models [FOLDER]

The result is a data folder as botocore's loader reads it, with what a sweep asks and reads and
nothing else. An EC2 client takes 8 ms to make from the whole model, of some 750 actions, and 1 ms
from ours; the whole one takes 30 MiB of memory; and of an answer each member is parsed that its
model has.

To ask or read more, add it to USED and run the command above.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.loaders import Loader

from infra.ec2_model import JsonObject, render

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MODELS_PATH: Final = Path(__file__).parents[1] / "lambdas" / "score_regions" / "service_models"
MODEL_TYPE: Final = "service-2"
# What botocore doesn't go by: words for people, and values that it lets pass unchecked anyway.
_UNUSED: Final = {"documentation", "documentationUrl", "enum", "errors"}


class Used(NamedTuple):
    """Members of an action that a sweep sends and reads, NextToken being what pages go by.

    A dot steps into a structure (or a list of them) of which only a part is used.
    """

    sends: tuple[str, ...]
    reads: tuple[str, ...]


USED: Final[Mapping[str, Mapping[str, Used]]] = {
    "cloudformation": {
        "DescribeStacks": Used(
            sends=("StackName",),
            reads=("Stacks.Outputs.OutputKey", "Stacks.Outputs.OutputValue"),
        ),
    },
    "cloudwatch": {
        "GetMetricData": Used(
            sends=(
                "MetricDataQueries.Id",
                "MetricDataQueries.MetricStat",
                *("StartTime", "EndTime", "NextToken"),
            ),
            reads=(
                "MetricDataResults.Id",
                "MetricDataResults.Timestamps",
                "MetricDataResults.Values",
                "MetricDataResults.StatusCode",
                "MetricDataResults.Messages",
                "NextToken",
            ),
        ),
    },
    "ec2": {
        "DescribeCapacityBlockOfferings": Used(
            sends=(
                *("InstanceType", "InstanceCount", "CapacityDurationHours"),
                *("StartDateRange", "EndDateRange", "NextToken"),
            ),
            reads=("CapacityBlockOfferings.StartDate", "NextToken"),
        ),
        "DescribeSpotPriceHistory": Used(
            sends=("Filters", "ProductDescriptions", "StartTime", "NextToken"),
            reads=(
                "SpotPriceHistory.InstanceType",
                "SpotPriceHistory.AvailabilityZone",
                "SpotPriceHistory.SpotPrice",
                "SpotPriceHistory.Timestamp",
                "NextToken",
            ),
        ),
        "GetSpotPlacementScores": Used(
            sends=(
                *("InstanceTypes", "TargetCapacity", "SingleAvailabilityZone"),
                *("RegionNames", "NextToken"),
            ),
            reads=("SpotPlacementScores.Region", "SpotPlacementScores.Score", "NextToken"),
        ),
    },
    "pricing": {
        "GetProducts": Used(
            sends=("ServiceCode", "Filters", "FormatVersion", "NextToken"),
            reads=("PriceList", "NextToken"),
        ),
    },
    "sqs": {
        "GetQueueAttributes": Used(sends=("QueueUrl", "AttributeNames"), reads=("Attributes",)),
    },
}


def used_model(service_model: JsonObject, used: Mapping[str, Used]) -> JsonObject:
    """Prune a botocore service model to what is used of its actions.

    Raises KeyError for an action or member that the service model doesn't have.
    """
    shapes = service_model["shapes"]
    # By shape: actions may share one, and use other members of it.
    members: defaultdict[str, set[str]] = defaultdict(set)
    operations = {}
    for action, (sends, reads) in sorted(used.items()):
        operation = service_model["operations"][action]
        operations[action] = _useful(operation)
        for reference, paths in ((operation["input"], sends), (operation["output"], reads)):
            for path in paths:
                _keep(shapes, reference["shape"], path, members)
    return {
        "version": service_model["version"],
        "metadata": service_model["metadata"],
        "operations": operations,
        "shapes": {name: _pruned(shapes[name], members[name]) for name in sorted(members)},
    }


def _keep(shapes: JsonObject, name: str, path: str, members: defaultdict[str, set[str]]) -> None:
    """Note in `members` what of a shape and of those below it is needed; all for no path."""
    shape = shapes[name]
    is_new = name not in members
    kept = members[name]
    if shape["type"] != "structure":
        if path or is_new:
            for inner in _inner_shapes(shape):
                _keep(shapes, inner, path, members)
        return
    first, _, rest = path.partition(".")
    wanted = {first} if path else shape["members"].keys() - kept
    kept |= wanted
    for member in sorted(wanted):
        _keep(shapes, shape["members"][member]["shape"], rest, members)


def _inner_shapes(shape: JsonObject) -> Iterator[str]:
    for part in ("member", "key", "value"):
        if part in shape:
            yield shape[part]["shape"]


def _pruned(shape: JsonObject, members: set[str]) -> JsonObject:
    """Return a shape with these members only."""
    pruned = _useful(shape)
    if "members" in shape:
        pruned["members"] = {name: _useful(shape["members"][name]) for name in sorted(members)}
    if "required" in shape:
        pruned["required"] = [name for name in shape["required"] if name in members]
    for part in ("member", "key", "value"):
        if part in shape:
            pruned[part] = _useful(shape[part])
    return pruned


def _useful(properties: JsonObject) -> JsonObject:
    return {name: value for name, value in properties.items() if name not in _UNUSED}


def used_models() -> dict[Path, JsonObject]:
    """Return the models by the path in a data folder, made from the installed botocore."""
    loader = Loader()
    models: dict[Path, JsonObject] = {}
    for service, used in USED.items():
        version = loader.determine_latest_version(service, MODEL_TYPE)
        whole: Any = loader.load_service_model(service, MODEL_TYPE, version)
        models[Path(service, version, f"{MODEL_TYPE}.json")] = used_model(whole, used)
    return models


def main(arguments: list[str]) -> None:
    """Write the models into the folder in `arguments`, by default where the function has them."""
    folder = Path(arguments[0]) if arguments else MODELS_PATH
    for path, model in used_models().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(render(model), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
