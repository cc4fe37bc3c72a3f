"""Prints a benchmark's table and writes its figures where others read them."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path("build/bench").absolute()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number. key: as build/bench/NAME.json has it. about: what it says, in a few words."""

    key: str
    value: float
    about: str


def publish(name: str, figures: Sequence[Figure]) -> None:
    """Print the figures as a table and write build/bench/NAME.json."""
    table = Table(title=f"bench {name}", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("what it says")
    for figure in figures:
        table.add_row(figure.key, f"{figure.value:g}", figure.about)
    Console().print(table)
    FOLDER.mkdir(parents=True, exist_ok=True)
    content = {
        "name": name,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}",
        "figures": {figure.key: figure.value for figure in figures},
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
