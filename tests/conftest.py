"""Set-up of all tests: shared generated data, no deadlines, and repeats of measured tests.

Deadlines would fail on machines that other users keep busy.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from tests.tiers import TIERS, tier_of_module, tier_of_test

settings.register_profile(
    "shared machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")

pytest_plugins = ["pytester"]

MOST_ATTEMPTS = 3
TESTS = Path(__file__).resolve().parent
RAN_AGAIN = pytest.StashKey[list[str]]()
CHOSEN = pytest.StashKey[frozenset[str]]()
"""The tiers that run besides the default one."""


def pytest_configure(config: pytest.Config) -> None:
    _heed_signals()
    markers = {
        "measured": "compares a duration that a pause of the machine moves; has three attempts",
        "alone": "fails while other tests use the machine; make nightly runs it after the others",
        **TIERS,
    }
    for name, meaning in markers.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.stash[RAN_AGAIN] = []
    config.stash[CHOSEN] = _chosen_tiers(config.getoption("markexpr"))


def _chosen_tiers(expression: str) -> frozenset[str]:
    """Return the tiers to collect: a module of real jobs may have tests for the night."""
    chosen = frozenset(tier for tier in TIERS if tier in expression)
    return chosen | {"jobs"} if "nightly" in chosen else chosen


def _is_named(path: Path, config: pytest.Config) -> bool:
    """Return true if the command line names this file or its folder: then all tests of it run."""
    named = [Path(word.partition("::")[0]).resolve() for word in config.args]
    return any(path.is_relative_to(word) and TESTS in word.parents for word in named)


def _place(path: Path) -> PurePosixPath:
    is_ours = path.is_relative_to(TESTS)
    return PurePosixPath(path.relative_to(TESTS) if is_ours else path)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the modules of other tiers, which takes longer than most tests."""
    tier = tier_of_module(_place(collection_path))
    if tier is None or tier in config.stash[CHOSEN] or _is_named(collection_path, config):
        return None
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.stash[CHOSEN]
    left_out, kept = [], []
    for item in items:
        tier = tier_of_test(_place(item.path), item.name)
        if tier is not None:
            item.add_marker(tier)
        is_other = any(item.get_closest_marker(name) for name in TIERS if name not in chosen)
        if is_other and not _is_named(item.path, config):
            left_out.append(item)
        else:
            kept.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture(scope="session")
def is_nightly(request: pytest.FixtureRequest) -> bool:
    """Whether combinations run, too, in which a failure would show in others as well."""
    return "nightly" in request.config.stash[CHOSEN]


def pytest_collection_finish() -> None:
    """Leave the modules and thousands of tests out of garbage collections.

    Each one took more than a second otherwise.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let libraries free what they hold at the end, or they complain."""
    gc.unfreeze()


def _heed_signals() -> None:
    """Restore the default reaction to Ctrl-C and to a closed terminal.

    Shells let background commands ignore Ctrl-C, and `nohup` ignores the end of the terminal. The
    jobs that tests start would inherit both.
    """
    defaults: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    for number, default in defaults.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a failed test that is marked `measured`.

    A machine that pauses for a moment changes the durations that such a test compares.
    """
    if item.get_closest_marker("measured") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = [_error(report) for report in reports if report.failed]
        if not failed or attempt == MOST_ATTEMPTS:
            break
        item.config.stash[RAN_AGAIN].append(f"{item.nodeid}: attempt {attempt} failed: {failed[0]}")
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _error(report: pytest.TestReport) -> str:
    return next(
        (line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")),
        report.longreprtext,
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.stash[RAN_AGAIN]:
        terminalreporter.section("measured tests that ran again")
        for line in config.stash[RAN_AGAIN]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep bytecode for the session if Python is not allowed to write it.

    Otherwise a hundred processes would each compile torch and Paddle again.
    """
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):
            patch.delenv("PYTHONDONTWRITEBYTECODE")
            patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        yield


@pytest.fixture(scope="session", autouse=True)
def generated_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make generated data sets once for all workers, and let threads wait without spinning.

    They are in a temporary folder, unless the caller names one.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    with pytest.MonkeyPatch.context() as patch:
        if "PROFKIT_CACHE" not in os.environ:
            patch.setenv("PROFKIT_CACHE", str(base / "generated"))
        patch.setenv(
            "OMP_WAIT_POLICY", "PASSIVE"
        )  # jobs of tests share the cores with their own loaders, and with other tests
        yield
