"""The layout that the wheel, the checkout and the type checker must agree on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.version import InvalidVersion, Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOP = Path(__file__).resolve().parents[2]
LINKED = ("collectors", "instrument", "tui")
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())
PYTHONS = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
PIPS = (
    ("3.10", "pip==22.3"),
    ("3.10", "pip==23.0"),
    ("3.11", "pip==24.2"),
    ("3.11", "pip==25.3"),
    ("3.11", "pip"),
)
"""Versions of pip that read markers differently, and the Python of each."""

CUDA = re.compile(r"^([\w-]+-cu(?:da)?(\d\d)[0x]?)==", re.MULTILINE)
"""A package whose name says for which CUDA it is."""


def _packages_on_disk() -> set[str]:
    found = {"profkit"}
    for init in (TOP / "profkit").rglob("__init__.py"):
        found.add(".".join(init.parent.relative_to(TOP).parts))
    for name in LINKED:
        found |= {
            ".".join(("profkit", *init.parent.relative_to(TOP).parts))
            for init in (TOP / name).rglob("__init__.py")
        }
    return found


def test_every_package_is_listed() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == _packages_on_disk()


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for name in ("profkit", *LINKED) for path in (TOP / name).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("name", LINKED)
def test_the_top_level_folders_are_linked_relatively(name: str) -> None:
    link = TOP / "profkit" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert PROJECT["tool"]["setuptools"]["package-dir"][f"profkit.{name}"] == name


def test_the_init_files_keep_no_state() -> None:
    for name in LINKED:
        lines = (TOP / name / "__init__.py").read_text().split('"""')
        assert "".join(lines[2:]).strip() == ""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel from a copy of the tracked and untracked files, not in the checkout."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=TOP,
        capture_output=True,
        check=False,
    )
    if files.returncode:
        pytest.skip("not a git checkout")
    copy = tmp_path_factory.mktemp("source")
    names = [
        name for name in files.stdout.decode().split("\0") if name and os.path.lexists(TOP / name)
    ]
    subprocess.run(["tar", "-cf", copy / "all.tar", "-C", TOP, "--", *names], check=True)
    subprocess.run(["tar", "-xf", copy / "all.tar", "-C", copy], check=True)
    built = tmp_path_factory.mktemp("wheel")
    code = "import sys, setuptools.build_meta as backend; print(backend.build_wheel(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", code, str(built)], cwd=copy, check=True, capture_output=True
    )
    return zipfile.ZipFile(next(built.glob("*.whl")))


def test_the_wheel_owns_only_profkit(wheel: zipfile.ZipFile) -> None:
    assert {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == {
        "profkit"
    }


def test_the_wheel_holds_every_module_once(wheel: zipfile.ZipFile) -> None:
    names = [name for name in wheel.namelist() if name.endswith(".py")]
    assert len(names) == len(set(names))
    sources = {
        str(path.relative_to(TOP))
        for path in (TOP / "profkit").rglob("*.py")
        if "__pycache__" not in path.parts
    }
    linked = {
        f"profkit/{path.relative_to(TOP)}" for name in LINKED for path in (TOP / name).rglob("*.py")
    }
    assert set(names) == sources | linked


@pytest.mark.parametrize("extra", PROJECT["project"]["optional-dependencies"])
def test_no_extra_is_named_like_a_version(extra: str) -> None:
    """Before 26.0, pip compared such an extra with others as versions, and crashed."""
    with pytest.raises(InvalidVersion):
        Version(extra)


@pytest.mark.nightly
@pytest.mark.parametrize(("version", "pip"), PIPS)
def test_pip_installs_the_wheel(
    version: str, pip: str, wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    python = next(PYTHONS.glob(f"{version}.*/bin/python"), None)
    if python is None:
        pytest.skip(f"no Python {version} in {PYTHONS}")
    install, target = [str(python), "-m", "pip", "install"], str(tmp_path / "installed")
    own = [*install, "--no-deps", "--target", str(tmp_path / "pip"), pip]
    if subprocess.run(own, capture_output=True, check=False).returncode:
        pytest.skip(f"{pip} cannot be installed; is a package index reachable?")
    copy = tmp_path / "profkit-0.1.0-py3-none-any.whl"  # its modules in C are for one Python only
    shutil.copy(str(wheel.filename), copy)
    done = []
    for options in (["--no-deps"], []):  # pip 23.0 reads the markers of dependencies only
        done.append(
            subprocess.run(
                [*install, *options, "--no-index", "--target", target, str(copy)],
                env={**os.environ, "PYTHONPATH": str(tmp_path / "pip")},
                capture_output=True,
                text=True,
                check=False,
            )
        )
    alone, resolved = done
    assert alone.returncode == 0, alone.stderr
    assert (tmp_path / "installed" / "profkit" / "schema.py").exists()
    assert "Traceback" not in resolved.stderr, resolved.stderr  # without an index, pip finds none


@pytest.mark.nightly
@pytest.mark.parametrize("python", sorted(map(str, PYTHONS.glob("3.1[0-4].*/bin/python"))))
def test_its_wheel_works_without_a_compiler(python: str, tmp_path: Path) -> None:
    environment = {**os.environ, "WHEELS": str(tmp_path)}
    command = [str(TOP / ".ci/wheels"), python]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "error sending request" in done.stderr:
        pytest.skip("no package index is reachable")
    assert done.returncode == 0, done.stderr
    assert "Improvement: " in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("extras", "generation"), [(("torch", "cuda13", "dali"), "13"), (("volta",), "12")]
)
def test_extras_that_go_together_are_of_one_cuda(extras: tuple[str, ...], generation: str) -> None:
    asked = ["--python-version", "3.12", "--no-annotate", "--no-header", "--no-config"]
    for extra in extras:
        asked += ["--extra", extra]
    done = subprocess.run(
        ["uv", "pip", "compile", "--quiet", *asked, "pyproject.toml"],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    if "error sending request" in done.stderr:
        pytest.skip("no package index is reachable")
    assert done.returncode == 0, done.stderr
    found = dict(CUDA.findall(done.stdout))
    assert {name.rpartition("-cu")[0] for name in found} >= {"cupy", "nvidia-dali", "nvidia-cudnn"}
    assert set(found.values()) == {generation}


def test_a_plain_install_brings_no_framework() -> None:
    required = {
        line.split(">")[0].split(";")[0].strip() for line in PROJECT["project"]["dependencies"]
    }
    assert required == {"pyarrow", "numpy", "textual", "nvtx", "nvidia-ml-py", "shtab", "tomli"}


def test_no_lock_file_is_tracked() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "uv.lock"], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert tracked.stdout == ""


@pytest.mark.skipif(not (TOP / "Dockerfile").exists(), reason="only in a checkout")
def test_the_recipe_of_the_container_uses_what_is_there() -> None:
    """Nothing here can build it: its instructions, stages and paths are checked at least."""
    lines = (TOP / "Dockerfile").read_text("utf-8").splitlines()
    stages, instructions = set(), []
    for line in filter(None, lines):
        word, _, rest = line.partition(" ")
        assert word in {"#", "FROM", "RUN", "COPY"}, line
        instructions.append(word)
        if word == "FROM" and " AS " in rest:
            stages.add(rest.split()[-1])
        if word == "RUN":
            subprocess.run(["bash", "-nc", rest], check=True)
        if word == "COPY":
            *options, source, _ = rest.split()
            assert options or (TOP / source).exists(), line
            assert {option.removeprefix("--from=") for option in options} <= stages
    assert instructions.count("FROM") == 2
    assert {".venv", "build", "traces"} <= set((TOP / ".dockerignore").read_text().split())
