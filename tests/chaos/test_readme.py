"""README.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

_HERE = Path(__file__).parent


def test_the_page_names_files_and_tests_that_exist() -> None:
    page = (_HERE / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", page)
    assert named
    for path, test in named:
        folder = _HERE.parent if "/" in path else _HERE
        code = (folder / path).read_text(encoding="utf-8")
        assert re.search(rf"def {test}\b", code), (path, test)
