"""Make lambdas/run_instances/ec2_model.json from botocore's EC2 service model.

    python -m infra.ec2_model [PATH]

The result holds what the EC2 API function serves and nothing else: the input members that
fleetcast supports (a client that sends another one is told so) and the whole output shapes.
A member is keyed by the name under which it is read, and its ``name`` is the one under which
it is written: input goes from wire names to member names, output the other way.

To serve another action or parameter, add it to SERVED and run the command above.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from botocore.loaders import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

API_VERSION: Final = "2016-11-15"
MODEL_PATH: Final = Path(__file__).parents[1] / "lambdas" / "run_instances" / "ec2_model.json"

# Input members by action; a dot steps into a structure of which only a part is supported.
SERVED: Final[Mapping[str, tuple[str, ...]]] = {
    "DescribeInstanceTypes": ("InstanceTypes", "Filters", "MaxResults", "NextToken", "DryRun"),
    "DescribeInstances": ("InstanceIds", "Filters", "MaxResults", "NextToken", "DryRun"),
    "GetConsoleOutput": ("InstanceId", "Latest", "DryRun"),
    "RebootInstances": ("InstanceIds", "DryRun"),
    "RunInstances": (
        "ImageId",
        "InstanceType",
        "MinCount",
        "MaxCount",
        "BlockDeviceMappings.DeviceName",
        "BlockDeviceMappings.Ebs.DeleteOnTermination",
        "BlockDeviceMappings.Ebs.VolumeSize",
        "BlockDeviceMappings.Ebs.VolumeType",
        "KeyName",
        "UserData",
        "TagSpecifications",
        "ClientToken",
        "DryRun",
        "Placement.AvailabilityZone",
        "InstanceInitiatedShutdownBehavior",
        # Only `false` can be honoured, and clients such as Terraform always send it.
        "DisableApiStop",
        "DisableApiTermination",
        "EbsOptimized",
        "Monitoring",
    ),
    "StartInstances": ("InstanceIds", "DryRun"),
    "StopInstances": ("InstanceIds", "Force", "SkipOsShutdown", "Hibernate", "DryRun"),
    "TerminateInstances": ("InstanceIds", "Force", "SkipOsShutdown", "DryRun"),
}
# What EC2 answers where its model has no output. Source: EC2 API reference, RebootInstances.
_DONE: Final = {"type": "structure", "members": {"Return": {"name": "return", "type": "boolean"}}}

JsonObject = dict[str, Any]  # a shape or a whole service model, botocore's or ours


def served_model(service_model: JsonObject) -> JsonObject:
    """Prune a botocore service model to SERVED.

    Raises KeyError if SERVED names an action or member that the service model doesn't have.
    """
    shapes = service_model["shapes"]
    actions = {}
    for action, kept in sorted(SERVED.items()):
        operation = service_model["operations"][action]
        actions[action] = {
            "input": _input_shape(shapes, operation["input"], kept),
            "output": (
                _output_shape(shapes, operation["output"]) if "output" in operation else _DONE
            ),
        }
    return {"version": service_model["metadata"]["apiVersion"], "actions": actions}


def _input_shape(shapes: JsonObject, reference: JsonObject, kept: tuple[str, ...]) -> JsonObject:
    """Return a shape with the members in `kept`, or with all of them if that is empty."""
    shape = shapes[reference["shape"]]
    if shape["type"] == "list":
        return {"type": "list", "member": _input_shape(shapes, shape["member"], kept)}
    if shape["type"] != "structure":
        return {"type": shape["type"]}
    members, wire_names = {}, {}
    for name in sorted({path.partition(".")[0] for path in kept} or shape["members"]):
        member = shape["members"][name]
        inner = tuple(path.removeprefix(f"{name}.") for path in kept if path.startswith(f"{name}."))
        wire_names[name] = _input_wire_name(name, member)
        members[wire_names[name]] = {"name": name, **_input_shape(shapes, member, inner)}
    required = sorted(wire_names[name] for name in shape.get("required", ()))
    return {"type": "structure", **({"required": required} if required else {}), "members": members}


def _input_wire_name(name: str, member: JsonObject) -> str:
    """Return what a client sends for a member (the rule of the ec2 protocol)."""
    if "queryName" in member:
        return str(member["queryName"])
    location = str(member.get("locationName", name))
    return location[:1].upper() + location[1:]


def _output_shape(shapes: JsonObject, reference: JsonObject) -> JsonObject:
    shape = shapes[reference["shape"]]
    if shape["type"] == "list":
        item = shape["member"]
        name = item.get("locationName", "item")
        return {"type": "list", "member": {"name": name, **_output_shape(shapes, item)}}
    if shape["type"] != "structure":
        return {"type": shape["type"]}
    members = {
        name: {"name": member.get("locationName", name), **_output_shape(shapes, member)}
        for name, member in sorted(shape["members"].items())
    }
    return {"type": "structure", "members": members}


def render(model: JsonObject) -> str:
    """Return the model as JSON with one line per member, so that a diff reads well."""
    return "".join(_lines(model, "")) + "\n"


def _lines(value: object, indent: str) -> Iterator[str]:
    if not isinstance(value, dict) or not any(isinstance(inner, dict) for inner in value.values()):
        yield json.dumps(value)
        return
    yield "{"
    for number, (key, inner) in enumerate(value.items()):
        yield f"{',' if number else ''}\n{indent} {json.dumps(key)}: "
        yield from _lines(inner, indent + " ")
    yield f"\n{indent}}}"


def botocore_model() -> JsonObject:
    """Return the EC2 service model of the installed botocore."""
    model: JsonObject = Loader().load_service_model("ec2", "service-2", API_VERSION)
    return model


def main(arguments: list[str]) -> None:
    """Write the model to the path in `arguments`, by default where the function reads it."""
    path = Path(arguments[0]) if arguments else MODEL_PATH
    path.write_text(render(served_model(botocore_model())), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
