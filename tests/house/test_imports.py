"""The modules that a fresh interpreter loads for the cheap commands."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.testing import synthetic_trace

HEAVY = (
    "numpy",
    "pyarrow",
    "torch",
    "paddle",
    "textual",
    "pandas",
    "nvtx",
    "pynvml",
    "PIL",
    "asyncio",
    "multiprocessing",
)


def _loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('loaded:', *sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.parametrize(
    "code",
    [
        "import profkit",
        "import profkit.cli; profkit.cli.build_parser().format_help()",
        "import profkit.cli\ntry: profkit.cli.main(['trace', '--help'])\nexcept SystemExit: pass",
        "import profkit; profkit.ExitCode.DONE",
        "from profkit.instrument import recorder",
        "from profkit.collectors import process, poller",
    ],
)
def test_cheap_things_load_nothing_heavy(code: str) -> None:
    assert _loaded_after(code).isdisjoint(HEAVY)


def test_the_list_of_verbs_imports_none_of_them() -> None:
    code = "import profkit.cli\ntry: profkit.cli.main(['--help'])\nexcept SystemExit: pass"
    loaded = _loaded_after(code)
    assert not {name for name in loaded if name.startswith("profkit.commands")}
    assert loaded.isdisjoint({"typing", "dataclasses", "shutil", "profkit.text"})


def test_the_workloads_are_listed_without_a_framework() -> None:
    assert _loaded_after("from profkit.plugins import WORKLOADS; WORKLOADS.load_all()").isdisjoint(
        {"torch", "paddle", "PIL"}
    )


def test_a_report_loads_no_framework_and_no_interface() -> None:
    code = "from profkit.report.overview_document import overview; from profkit.show import text"
    assert _loaded_after(code).isdisjoint({"torch", "paddle", "textual", "pandas"})


def test_the_public_names_load_when_they_are_used() -> None:
    assert "pyarrow" in _loaded_after("import profkit; profkit.Trace")


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_a_command_of_its_own_process_never_loads_pandas(tmp_path: Path) -> None:
    """It takes a second, and `pyarrow.array` loads it for any numpy array."""
    run = synthetic_trace(tmp_path / "run", steps=40)
    code = (
        f"import sys\nsys.argv = ['profkit', 'report', {str(run)!r}]\n"
        "import profkit.cli\nassert profkit.cli.main() == 0"
    )
    assert "pandas" not in _loaded_after(code)
    convert = "import pyarrow\nassert len(pyarrow.table({'a': [1]}).to_pandas()) == 1"
    assert "pandas" in _loaded_after(f"{code}\n{convert}")
    as_library = code.replace("main()", f"main(['report', {str(run)!r}])")
    assert "pandas" in _loaded_after(as_library)
