"""The functions' code as it is shipped."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.asset import AssetBuildFailed, build_function_asset
from infra.config import AWS_SERVICES

PROJECT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def lambda_asset() -> Path:
    """Return the asset as a deployment to AWS would ship it; pip's part is made once."""
    return build_function_asset("lambda")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a small project with files that belong in an asset, and others that don't."""
    files = {
        "fleetcast/core.py": "",
        "fleetcast/core.json": "{}",
        "fleetcast/notes.txt": "",
        "fleetcast/selection/ranking.py": "",
        "fleetcast/agent/daemon.py": "",
        "fleetcast/__pycache__/core.cpython-311.pyc": "",
        "lambdas/settings.py": "",
        "lambdas/requirements.txt": "no-such-package-of-ours==1 --hash=sha256:00\n",
        "lambdas/run_instances/handler.py": "",
        "lambdas/run_instances/model.json": "{}",
        "lambdas/run_instances/__pycache__/handler.cpython-311.pyc": "",
    }
    for name, content in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "project"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def modules(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    for part in ("fleetcast", "lambdas"):
        for path in (folder / part).rglob("*.py"):
            yield path, ast.parse(path.read_text())


def test_an_asset_holds_the_core_and_the_functions_and_nothing_else(project: Path) -> None:
    asset = build_function_asset("local", project=project, build_dir=project / "build")
    assert set(contents(asset)) == {
        "fleetcast/core.py",
        "fleetcast/core.json",
        "fleetcast/selection/ranking.py",
        "lambdas/settings.py",
        "lambdas/run_instances/handler.py",
        "lambdas/run_instances/model.json",
    }


def test_the_same_sources_make_the_same_asset_wherever_they_are_built(
    project: Path, tmp_path: Path
) -> None:
    one = build_function_asset("local", project=project, build_dir=tmp_path / "one")
    two = build_function_asset("local", project=project, build_dir=tmp_path / "two")
    assert one.name == two.name
    assert contents(one) == contents(two)


def test_an_asset_is_made_anew_only_when_a_source_changes(project: Path, tmp_path: Path) -> None:
    first = build_function_asset("local", project=project, build_dir=tmp_path)
    made_at = first.stat().st_mtime_ns
    assert build_function_asset("local", project=project, build_dir=tmp_path) == first
    assert first.stat().st_mtime_ns == made_at

    (project / "fleetcast" / "core.py").write_text("changed = True\n")
    assert build_function_asset("local", project=project, build_dir=tmp_path) != first


def test_what_pip_cannot_install_leaves_no_asset_and_pips_words(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(AssetBuildFailed, match="no-such-package-of-ours"):
        build_function_asset("lambda", project=project, build_dir=tmp_path / "build")
    assert list((tmp_path / "build").iterdir()) == []


def test_the_shipped_asset_has_no_bytecode_and_no_part_of_the_node_or_the_operator(
    lambda_asset: Path,
) -> None:
    assert list(lambda_asset.rglob("__pycache__")) == []
    for part in ("agent", "cli", "local"):
        assert not (lambda_asset / "fleetcast" / part).exists()
    assert not (lambda_asset / "bin").exists()


def test_every_compiled_module_is_for_lambdas_python_and_processor(lambda_asset: Path) -> None:
    compiled = [path.name for path in lambda_asset.rglob("*.so")]
    assert compiled
    for name in compiled:
        assert "aarch64-linux-gnu" in name or name.endswith(".abi3.so")
        assert "cpython-313" in name or name.endswith(".abi3.so")


def test_everything_that_the_functions_import_is_in_the_asset(lambda_asset: Path) -> None:
    for path, module in modules(lambda_asset):
        for name in runtime_imports(module):
            top = name.partition(".")[0]
            if top in sys.stdlib_module_names:
                continue
            places = (lambda_asset / top, lambda_asset / f"{top}.py")
            assert any(place.exists() for place in places), f"{path} imports {name}"


def runtime_imports(module: ast.Module) -> Iterator[str]:
    """Yield what a module imports, but for what only a type checker sees."""
    nodes: list[ast.AST] = [module]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        nodes.extend(ast.iter_child_nodes(node))


def test_a_bare_python_makes_a_client_of_each_service_from_the_asset_alone(
    lambda_asset: Path,
) -> None:
    # botocore is plain Python, so that this works here though the asset is for elsewhere.
    code = (
        "import sys, json\n"
        f"sys.path[:0] = [{str(lambda_asset)!r}]\n"
        "import botocore.session\n"
        "session = botocore.session.get_session()\n"
        "assert botocore.session.__file__.startswith(sys.path[0])\n"
        f"for service in {AWS_SERVICES!r}:\n"
        "    session.create_client(service, region_name='us-east-1')\n"
        "print(json.dumps(session.get_available_services()))\n"
    )
    bare = [sys.executable, "-I", "-S", "-B", "-c", code]
    done = subprocess.run(bare, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == sorted(AWS_SERVICES)


def test_a_bare_python_with_the_functions_packages_imports_the_code_of_a_local_asset() -> None:
    asset = build_function_asset("local")
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(asset)!r})\n"
        "import fleetcast.configuration, lambdas.settings\n"
        "print(lambdas.settings.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(asset))


def test_only_clients_of_the_listed_services_are_made() -> None:
    for path, module in modules(PROJECT):
        if not path.is_relative_to(PROJECT / "lambdas"):
            continue
        for node in ast.walk(module):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in {"client", "create_client"} and node.args:
                (service, *_) = node.args
                if isinstance(service, ast.Constant):
                    assert service.value in AWS_SERVICES, path
