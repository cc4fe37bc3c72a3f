"""The demos: stories of fleetcast on a stack of their own, each step told as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fleetcast.local.stack import LocalStack
from fleetcast.local.story import BETTER, WORSE, Story
from fleetcast.local.vm_story import REGION, VmStory

if TYPE_CHECKING:
    from fleetcast.local.story import Step

_console: Final = Console(highlight=False)


def run_demo() -> bool:
    """Run the story and print it, with a table at the end; return whether every step held."""
    with LocalStack((BETTER, WORSE)) as stack:
        story = Story(stack, _tell)
        held = story.run()
    _console.print(_table(story.steps))
    return held


def run_vm_demo() -> bool:
    """Run the story of a real guest and print it; return whether every step held."""
    with LocalStack((REGION,), guests="qemu") as stack:
        story = VmStory(stack, _tell)
        held = story.run()
    _console.print(_table(story.steps))
    return held


def _tell(step: Step) -> None:
    _console.print(f"\n[bold]{step.name}[/]  {_verdict(step)}", soft_wrap=True)
    # What a guest says is no markup.
    _console.print(f"  expected  {escape(step.expected)}", soft_wrap=True)
    _console.print(f"  seen      {escape(step.seen)}", soft_wrap=True)


def _table(steps: list[Step]) -> Table:
    table = Table("step", "held", title="What was shown")
    for step in steps:
        table.add_row(step.name, _verdict(step))
    return table


def _verdict(step: Step) -> str:
    return "[green]holds[/]" if step.held else "[red]does not hold[/]"
