"""`fleetcast recommend`: where to launch, asked before launching."""

from __future__ import annotations

import click

from fleetcast.cli.read_api import ReadApi, api_url_option
from fleetcast.cli.scores_view import recommendation_view
from fleetcast.cli.terminal import output_console, print_json

_EXAMPLES = """\b
Examples:
  fleetcast recommend --type t3.medium
  fleetcast recommend --gpus 4 --gpu-required
  region=$(fleetcast recommend --type g5.xlarge --json | jq -r .region)
"""


@click.command(epilog=_EXAMPLES)
@click.option("--type", "instance_type", metavar="TYPE", help="For this instance type.")
@click.option(
    "--gpus",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Leave out regions known to have fewer free GPUs.",
)
@click.option(
    "--gpu-required",
    is_flag=True,
    help="Leave out regions not known to have them (at least one) free, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
@api_url_option
@click.pass_context
def recommend(
    context: click.Context,
    *,
    instance_type: str | None,
    gpus: int,
    gpu_required: bool,
    as_json: bool,
    api_url: str | None,
) -> None:
    """Say which region a launch would best go to, and why.

    Launches go by the same order. Exits with 3 when no region can be recommended, and says why.
    """
    answer = ReadApi(api_url).recommendation(instance_type, gpus=gpus, gpu_required=gpu_required)
    if as_json:
        print_json(answer)
    else:
        console = output_console()
        console.print(recommendation_view(answer, width=console.width))
    if answer.region is None:
        context.exit(3)
