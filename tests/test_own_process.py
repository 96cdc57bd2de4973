"""Tests of what profkit finds out about its process."""

import _thread
import functools
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.own_process import threads_are_patched
from profkit.rank import Rank
from profkit.run.job import recorded
from profkit.run.run_folder import finish_run, make_run
from profkit.testing import report_step
from profkit.trace import RunManifest, Trace
from tests.documents import report_text


def test_threads_whose_identity_is_another_function_are_patched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not threads_are_patched()
    monkeypatch.setattr(_thread, "get_ident", lambda: 1)  # as gevent and eventlet do
    assert threads_are_patched()


def test_a_wrapped_start_of_threads_leaves_them_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debuggers do that."""
    wrapped = functools.partial(_thread.start_new_thread)
    monkeypatch.setattr(_thread, "start_new_thread", wrapped)
    assert not threads_are_patched()


@pytest.mark.parametrize("patched", [False, True])
def test_a_run_with_patched_threads_says_so_and_gives_no_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, patched: bool
) -> None:
    if patched:
        monkeypatch.setattr(_thread, "get_ident", lambda: 1)
    path = make_run(tmp_path, "run", RunManifest(workload="fake"))
    with recorded(path, Rank()) as job:
        for _ in range(20):
            report_step(job.tracker, 1)
    finish_run(path)
    said = " ".join(report_text(build_overview(Trace.open(path))).split())
    assert ("the job replaced Python's threads" in said) == patched
    assert ("profkit's cost not measured in this run" in said) == patched
