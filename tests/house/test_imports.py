"""The modules that a fresh interpreter loads for the cheap commands."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


def test_the_workloads_are_listed_without_a_framework() -> None:
    assert _loaded_after("from profkit.plugins import WORKLOADS; WORKLOADS.load_all()").isdisjoint(
        {"torch", "paddle", "PIL"}
    )


def test_a_report_loads_no_framework_and_no_interface() -> None:
    code = (
        "from profkit.analysis.overview import build_overview; from profkit.report import as_text"
    )
    assert _loaded_after(code).isdisjoint({"torch", "paddle", "textual", "pandas"})


def test_the_public_names_load_when_they_are_used() -> None:
    assert "pyarrow" in _loaded_after("import profkit; profkit.Trace")
