"""`fleetcast catalogue`: regenerate the catalogue of EC2's instance types.

EC2 is asked through DescribeInstanceTypes, or moto's in-process mock of it, which needs no AWS
account; both go the same way. This module owns how EC2's answer becomes an InstanceType.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import click
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError
from rich.console import Console

from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import EC2_CATALOGUE_PATH, Catalogue, InstanceType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeInfoTypeDef

MOTO_REGION = "us-east-1"
# Where EC2 describes what a type has beside CPUs, memory and GPUs.
_ACCELERATORS = ("FpgaInfo", "InferenceAcceleratorInfo", "MediaAcceleratorInfo", "NeuronInfo")


@click.group(epilog="Example: fleetcast catalogue refresh --from-moto")
def catalogue() -> None:
    """Work with the catalogue of EC2's instance types."""


@catalogue.command(epilog="Example: fleetcast catalogue refresh --region us-east-1")
@click.option(
    "--region",
    "regions",
    multiple=True,
    help="Ask EC2 in this region; repeat it for the types of several. Default: the profile's.",
)
@click.option("--from-moto", is_flag=True, help="Ask moto's copy of EC2; needs no AWS account.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=EC2_CATALOGUE_PATH,
    help="Write here instead of over the installed catalogue.",
)
def refresh(regions: Sequence[str | None], output: Path, *, from_moto: bool) -> None:
    """Write the catalogue anew from EC2's DescribeInstanceTypes.

    A region lists only the types it offers. What none of the asked regions lists is dropped from
    the catalogue, and named.
    """
    if from_moto and regions:
        raise click.UsageError("--region and --from-moto exclude each other")
    with ExitStack() as stack:
        if from_moto:
            _answer_from_moto(stack)
            regions = [MOTO_REGION]
        refreshed = Catalogue(_collect(regions or [None]))
    if not len(refreshed):
        raise click.ClickException("EC2 listed no instance types; the catalogue is left as it was")
    previous = _read_or_empty(output)
    _write_atomically(output, refreshed.to_json())
    _report(previous, refreshed, output)


def fetch_instance_types(client: EC2Client) -> Iterator[list[InstanceType]]:
    """Yield one page after the other of the types that the client's region offers.

    Raises botocore's ClientError and BotoCoreError.
    """
    for page in client.get_paginator("describe_instance_types").paginate():
        yield [instance_type_from_ec2(described) for described in page["InstanceTypes"]]


def instance_type_from_ec2(described: InstanceTypeInfoTypeDef) -> InstanceType:
    """Turn one item of a DescribeInstanceTypes answer into what a host must have for it."""
    gpus = described.get("GpuInfo", {}).get("Gpus", [])
    first_gpu = gpus[0] if gpus else {}
    processor = described["ProcessorInfo"]
    architectures = processor["SupportedArchitectures"]
    return InstanceType(
        name=described["InstanceType"],
        vcpu=described["VCpuInfo"]["DefaultVCpus"],
        memory_mib=described["MemoryInfo"]["SizeInMiB"],
        # Count is 0 for a slice of a GPU (g6f); a host without any can't run it all the same.
        gpus=sum(gpu.get("LogicalGpuCount", gpu["Count"]) for gpu in gpus),
        gpu_name=first_gpu.get("Name"),
        gpu_manufacturer=first_gpu.get("Manufacturer"),
        architectures=tuple(sorted(architectures, key=lambda name: (name == "i386", name))),
        cpu_manufacturer=processor.get("Manufacturer"),
        has_accelerators=any(section in described for section in _ACCELERATORS),
    )


def _collect(regions: Sequence[str | None]) -> Iterator[InstanceType]:
    """Yield the types of every region, showing how far it is. None is the profile's region."""
    session = boto3.Session()
    with Console(stderr=True).status("Asking EC2 for its instance types") as progress:
        for region in regions:
            types_n = 0
            try:
                for page_n, page in enumerate(
                    fetch_instance_types(session.client("ec2", region_name=region)), start=1
                ):
                    types_n += len(page)
                    place = region or "the profile's region"
                    progress.update(f"{place}: page {page_n}, {types_n} instance types")
                    yield from page
            except NoRegionError as error:
                raise click.ClickException("no region is configured; give --region") from error
            except NoCredentialsError as error:
                raise click.ClickException(
                    "no AWS credentials are configured; give AWS_PROFILE, or use --from-moto"
                ) from error
            except (BotoCoreError, ClientError) as error:
                raise click.ClickException(f"DescribeInstanceTypes failed: {error}") from error


def _answer_from_moto(stack: ExitStack) -> None:
    """Let moto answer for EC2 while the stack is open."""
    try:
        moto = import_module("moto")  # by name: the command line works without moto
    except ImportError as error:
        raise click.ClickException("moto is not installed; run: pip install 'moto[ec2]'") from error
    stack.enter_context(moto.mock_aws())


def _read_or_empty(path: Path) -> Catalogue:
    try:
        return Catalogue.from_json(path.read_bytes())
    except (FileNotFoundError, InvalidConfiguration):
        return Catalogue([])  # there is nothing to compare with, and refreshing mends it


def _write_atomically(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise click.ClickException(f"can't write {path}: {error.strerror}") from error


def _report(previous: Catalogue, refreshed: Catalogue, path: Path) -> None:
    added = [known.name for known in refreshed if known.name not in previous]
    dropped = [known.name for known in previous if known.name not in refreshed]
    changed = [
        known.name
        for known in refreshed
        if known.name in previous and previous.lookup(known.name) != known
    ]
    click.echo(
        f"Wrote {len(refreshed)} instance types to {path}: "
        f"{len(added)} added, {len(changed)} changed, {len(dropped)} dropped"
    )
    for word, names in (("changed", changed), ("dropped", dropped)):
        for name in names:
            click.echo(f"  {word} {name}")
