"""The functions' code as one Lambda asset, made without Docker.

For Lambda: the dependencies as wheels of its platform, and beside them the core (fleetcast/
without the agent, the command line and the local stack) and lambdas/. For the local emulator,
which runs functions on this very Python, its packages are there already, and the asset is the code
alone. The same inputs give the same bytes, and what was made once is taken again.
See docs/adr/0003-lambda-assets-without-docker.md.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fleetcast.errors import FleetcastError
from infra.config import AWS_SERVICES, FunctionPlatform

_PROJECT = Path(__file__).resolve().parent.parent
_REQUIREMENTS = Path("lambdas/requirements.txt")
_WHEELS = (
    "--platform=manylinux2014_aarch64",
    "--implementation=cp",
    "--python-version=3.13",
    # The requirements are a whole lock; only without dependencies may one be built from source.
    "--no-deps",
    "--only-binary=:all:",
    "--no-binary=nkeys",  # pure Python, but published as source only
)
# What pip writes differently on each machine (scripts with its own path, and their hashes), or
# for itself alone.
_PIP_TRACES = ("bin", "*.dist-info/RECORD", "*.dist-info/REQUESTED", "*.dist-info/direct_url.json")
_SOURCE_SUFFIXES = {".py", ".json"}
_NOT_OF_THE_CORE = {"agent", "cli", "local"}


class AssetBuildFailed(FleetcastError):
    """pip could not install the functions' dependencies; the message holds what it said."""


def build_function_asset(
    function_platform: FunctionPlatform,
    *,
    project: Path = _PROJECT,
    build_dir: Path = _PROJECT / "build" / "lambda",
) -> Path:
    """Return a folder that holds the functions' code, made anew only if an input has changed.

    Raises AssetBuildFailed with pip's own words.
    """
    build_dir.mkdir(parents=True, exist_ok=True)
    sources = {path.relative_to(project): path.read_bytes() for path in _sources(project)}
    digest = hashlib.sha256()
    dependencies = None
    if function_platform == "lambda":
        dependencies = _build_dependencies(project / _REQUIREMENTS, build_dir=build_dir)
        digest.update(dependencies.name.encode())
    for path, content in sorted(sources.items()):
        digest.update(f"\0{path}\0{len(content)}\0".encode() + content)
    asset = build_dir / f"asset-{function_platform}-{digest.hexdigest()[:16]}"
    if asset.is_dir():
        return asset
    with tempfile.TemporaryDirectory(dir=build_dir) as unfinished:
        tree = Path(unfinished) / "tree"
        if dependencies:
            # Hard links: each edit of a source makes an asset, and copies would be 18 MB each.
            shutil.copytree(dependencies, tree, copy_function=os.link)
        for path, content in sources.items():
            target = tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        _put(tree, asset)
    return asset


def _sources(project: Path) -> Iterator[Path]:
    """Yield the files that belong in the asset: the core's, and those of lambdas/."""
    core = [one for one in (project / "fleetcast").iterdir() if one.name not in _NOT_OF_THE_CORE]
    for root in (*core, project / "lambdas"):
        for path in (root, *root.rglob("*")):
            if path.suffix in _SOURCE_SUFFIXES and path.is_file():
                yield path


def _build_dependencies(requirements: Path, *, build_dir: Path) -> Path:
    recipe = repr((_WHEELS, _PIP_TRACES, AWS_SERVICES)).encode()
    digest = hashlib.sha256(recipe + requirements.read_bytes())
    dependencies = build_dir / f"dependencies-{digest.hexdigest()[:16]}"
    if not dependencies.is_dir():
        with tempfile.TemporaryDirectory(dir=build_dir) as unfinished:
            tree = Path(unfinished) / "tree"
            _install(requirements, tree)
            _strip(tree)
            _put(tree, dependencies)
    return dependencies


def _install(requirements: Path, tree: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
    command += ["--disable-pip-version-check", *_WHEELS]
    command += ["--requirement", str(requirements), "--target", str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssetBuildFailed(
            f"pip could not install {_REQUIREMENTS} for the functions:\n{done.stderr.strip()}"
        )


def _strip(tree: Path) -> None:
    """Remove what no function reads: pip's traces, and botocore's models of other services.

    Those models are more than half of what pip installs, and a cold start pays for each MB.
    """
    for pattern in _PIP_TRACES:
        for path in tree.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for package in ("botocore", "boto3"):
        for model in (tree / package / "data").glob("*/"):
            if model.name not in AWS_SERVICES:
                shutil.rmtree(model)


def _put(tree: Path, target: Path) -> None:
    """Give a finished folder its name, at once, so that a half-made one is never taken."""
    try:
        tree.rename(target)
    except OSError:
        # Another build of the same inputs was faster, and its folder is as good.
        if not target.is_dir():
            raise
