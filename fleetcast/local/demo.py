"""The demo: the story of fleetcast on a stack of its own, each step told as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fleetcast.local.stack import LocalStack
from fleetcast.local.story import BETTER, WORSE, Story

if TYPE_CHECKING:
    from fleetcast.local.story import Step


def run_demo() -> bool:
    """Run the story and print it, with a table at the end; return whether every step held."""
    console = Console(highlight=False)

    def tell(step: Step) -> None:
        console.print(f"\n[bold]{step.name}[/]  {_verdict(step)}", soft_wrap=True)
        console.print(f"  expected  {step.expected}", soft_wrap=True)
        console.print(f"  seen      {step.seen}", soft_wrap=True)

    with LocalStack((BETTER, WORSE)) as stack:
        story = Story(stack, tell)
        held = story.run()
    console.print(_table(story.steps))
    return held


def _table(steps: list[Step]) -> Table:
    table = Table("step", "held", title="What was shown")
    for step in steps:
        table.add_row(step.name, _verdict(step))
    return table


def _verdict(step: Step) -> str:
    return "[green]holds[/]" if step.held else "[red]does not hold[/]"
