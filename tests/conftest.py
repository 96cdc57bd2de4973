"""Set-up of all tests: shared generated data, no deadlines, and repeats of measured tests.

Deadlines would fail on machines that other users keep busy.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

settings.register_profile(
    "shared machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")

pytest_plugins = ["pytester"]

MOST_ATTEMPTS = 3
LONG_FOLDERS = ("hangs", "workloads", "harmless", "trust", "cli")
"""Tests that start jobs. With several workers they run first, so that none is last alone."""
RAN_AGAIN = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    _heed_signals()
    config.addinivalue_line(
        "markers",
        "measured: compares a duration that a pause of the machine moves; has three attempts",
    )
    config.addinivalue_line(
        "markers",
        "alone: fails while other tests use the machine; .ci/run runs it after the others",
    )
    config.addinivalue_line(
        "markers",
        "full: runs only if -m names it (make test-full); the test says why others suffice",
    )
    config.stash[RAN_AGAIN] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _is_full(config):
        left_out = [item for item in items if item.get_closest_marker("full")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker("full")]
    items.sort(key=lambda item: item.path.parent.name not in LONG_FOLDERS)


def _is_full(config: pytest.Config) -> bool:
    expression: str = config.getoption("markexpr")
    return "full" in expression


@pytest.fixture(scope="session")
def is_full(request: pytest.FixtureRequest) -> bool:
    """Whether combinations run, too, in which a failure would show in others as well."""
    return _is_full(request.config)


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
