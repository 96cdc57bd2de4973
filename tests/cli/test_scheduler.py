"""`explain --scheduler`: the same bytes wherever ranks are read, and clear errors."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.compute as pc
import pytest

from profkit.analysis.bandwidth import link_use
from profkit.cli import main
from profkit.errors import ExitCode, UnreadableError
from profkit.frame.calls import Calls, RankCalls
from profkit.frame.columns import rows_of_rank, split_ranks
from profkit.frame.exchange import expose, split_exchange
from profkit.frame.exposed import split_allreduce, untimed_exchanges
from profkit.frame.rank_part import KEPT, read_part
from profkit.frame.rank_sums import sum_spans
from profkit.frame.run_frame import frame_of
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.trace.reader import RankTrace
from profkit.trace.stream import StreamContent

MS = 1_000_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One of them on a device, one with a late rank, one of which a rank's spans are damaged."""
    folder = tmp_path_factory.mktemp("runs")
    made = [
        synthetic_trace(folder / "one", steps=40, device="cuda"),
        synthetic_trace(folder / "four", ranks=4, steps=60, rank_phase_ns={2: {"data": 9 * MS}}),
        synthetic_trace(folder / "eight", ranks=8, steps=50, phase_ns={"other": MS}),
    ]
    with (made[2] / "r00005" / "spans.arrows").open("r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
    return [str(run) for run in made]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a scheduler with two workers, which are processes of this machine."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as local:
        yield local.scheduler_address


def said(capsys: pytest.CaptureFixture[str], *words: str, verb: str = "explain") -> str:
    assert main([verb, *words]) == ExitCode.DONE
    return capsys.readouterr().out


@pytest.mark.parametrize("shape", ["text", "json"])
def test_processes_give_the_same_bytes(
    runs: list[str], capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    for named in (runs, runs[1:]):
        assert said(capsys, *named, "--format", shape, "--scheduler", "processes") == said(
            capsys, *named, "--format", shape
        )


def test_dask_gives_the_same_bytes(
    runs: list[str], cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for named in (runs, runs[1:]):
        assert said(capsys, *named, "--json", "--scheduler", cluster) == said(
            capsys, *named, "--json"
        )
    for run in runs:
        assert said(capsys, run, "--json", "--scheduler", cluster, verb="report") == said(
            capsys, run, "--json", verb="report"
        )


@pytest.mark.parametrize("shape", ["text", "markdown"])
def test_a_report_says_the_same_wherever_ranks_are_read(
    runs: list[str], capsys: pytest.CaptureFixture[str], shape: str
) -> None:
    for run in runs:
        assert said(
            capsys, run, "--format", shape, "--scheduler", "processes", verb="report"
        ) == said(capsys, run, "--format", shape, verb="report")


def test_two_runs_and_a_report_are_read_on_the_scheduler_alone(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but kernels is read here once more, and these runs have no kernels."""
    read = RankTrace._read

    def read_elsewhere(rank: RankTrace, table: str, columns: Sequence[str] | None) -> StreamContent:
        assert table == "kernels" or threading.current_thread() is not here, table
        return read(rank, table, columns)

    here = threading.current_thread()
    monkeypatch.setattr(RankTrace, "_read", read_elsewhere)
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(
            "profkit.run.scheduling._open_scheduler", lambda *_: contextlib.nullcontext(pool.map)
        )
        said(capsys, *runs[1:], "--scheduler", "processes")
        said(capsys, runs[2], "--scheduler", "processes", "--json", verb="report")


@pytest.mark.parametrize("verb", ["report", "explain"])
def test_figures_of_a_run_with_very_many_ranks_are_those_of_a_sample(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
) -> None:
    names, means = ["one", "two"], []
    for number, name in enumerate(names):
        phases = {"forward": (12 + number) * MS}
        synthetic_trace(tmp_path / name, ranks=3, steps=300, phase_ns=phases, device="cuda")
    words = [str(tmp_path / name) for name in names[: 1 + (verb == "explain")]]
    noted = {"report": "3 ranks are many: figures are those of 1 in 2 steps", "explain": "one in 2"}
    assert noted[verb] not in said(capsys, *words, "--all", verb=verb)
    monkeypatch.setattr("profkit.frame.run_frame.MOST_KEPT", 2)
    for limit in ("MOST_STEPS", "MOST_WHOLE_STEPS"):
        monkeypatch.setattr(f"profkit.run.scheduling.{limit}", 600)
    sampled = said(capsys, *words, "--all", verb=verb)
    assert noted[verb] in sampled
    assert sampled == said(capsys, *words, "--all", "--scheduler", "processes", verb=verb)
    for name in names:
        frame = frame_of(Trace.open(tmp_path / name))
        frame.sample(600)
        times = frame.times(frame.selection.steps)
        assert 100 < len(times.wall_ns) < 200
        parts = frame_of(Trace.open(tmp_path / name))
        means.append((times.means(), parts.times(parts.selection.steps).means()))
        assert frame.own_cost.hooks_ns == pytest.approx(parts.own_cost.hooks_ns, rel=0.02)
    for some, of_all in means:
        assert some == pytest.approx(of_all, rel=0.02, abs=0.01 * MS)


def test_what_goes_wrong_in_a_cluster_is_one_line(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its workers may lack profkit; an error that a worker finds in a run is shown as it is."""
    broken = ThreadPoolExecutor(1)
    monkeypatch.setattr(
        "profkit.run.scheduling._cluster", lambda address: contextlib.nullcontext(broken)
    )
    monkeypatch.setattr("profkit.run.scheduling.check_scheduler", lambda where: None)
    for raised, code, words in (
        (
            RuntimeError("Error during deserialization\nmore"),
            ExitCode.UNFINISHED,
            "(Error during deserialization); its scheduler and workers need this profkit",
        ),
        (
            UnreadableError("r00000: node7 does not see it"),
            ExitCode.UNREADABLE,
            "profkit: r00000: node7 does not see it\n",
        ),
    ):
        monkeypatch.setattr(broken, "map", mock.Mock(side_effect=raised))
        assert main(["explain", *runs, "--scheduler", "tcp://here:1"]) == code
        assert words in capsys.readouterr().err
    broken.shutdown()


def test_the_sums_of_ranks_are_those_of_all_of_them_at_once(runs: list[str]) -> None:
    for run in runs:
        frame = frame_of(Trace.open(run))
        together, added = sum_spans(frame.trace.spans, frame.numbers), frame.all_sums
        for name in ("steps", "host", "exposed", "pieces", "waits", "outer"):
            assert np.array_equal(getattr(together, name), getattr(added, name)), name
        assert together.windows.equals(added.windows)
        assert together.on_device == added.on_device


def test_calls_of_all_ranks_say_the_same_as_their_rows(runs: list[str]) -> None:
    """Ranks of a data-parallel job make the same calls, which are then kept once."""
    frame = frame_of(Trace.open(runs[1]))
    calls, used, windows = frame.collectives, frame.selection.steps, frame.all_sums.windows
    rows = frame.trace.collectives
    assert isinstance(calls, Calls)
    exposed = [expose(each, windows, used) for each in (rows, calls)]
    assert split_exchange(exposed[0]) == split_exchange(exposed[1])
    assert link_use(calls, used) == link_use(rows, used)
    of_rows, of_calls = (split_allreduce(each) for each in exposed)
    assert of_rows is not None
    assert of_calls is not None
    assert of_rows.hidden_ns is not None
    assert of_calls.hidden_ns is not None
    assert np.array_equal(of_rows.hidden_ns, of_calls.hidden_ns)
    for name, ns in of_rows.parts.items():
        assert np.array_equal(of_calls.parts[name], ns), name
    for timed in (windows.slice(0, 0), windows.slice(10), windows):
        first, other = (
            untimed_exchanges(each, timed, used, with_calls=True) for each in (rows, calls)
        )
        assert np.array_equal(first, other)
    others = rows.set_column(
        rows.schema.get_field_index("bytes"), "bytes", pc.add(rows["bytes"], rows["rank"])
    )
    own = {rank: RankCalls.of(each) for rank, each in split_ranks(others).items()}
    assert Calls.join(rows_of_rank(others, 0), own) is None, "the sizes differ by rank"


def test_a_worker_that_does_not_see_the_run_is_an_error_and_not_an_empty_rank(
    runs: list[str], tmp_path: Path
) -> None:
    rank = Trace.open(runs[1]).ranks[0]
    sizes = {"spans": rank.path("spans").stat().st_size}
    with pytest.raises(UnreadableError, match="does not see the spans"):
        read_part(str(tmp_path / "elsewhere"), 0, sizes, KEPT, 0)
    shutil.copytree(rank.folder, tmp_path / "here")
    assert read_part(str(tmp_path / "here"), 0, sizes, KEPT, 0)[1].sums.host.any()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("ftp://here:1", "takes serial, processes, or the address of a Dask scheduler"),
        ("dask", "takes serial, processes"),
    ],
)
def test_what_is_no_scheduler_is_a_usage_error(
    runs: list[str], where: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *runs, "--scheduler", where]) == ExitCode.USAGE
    assert words in capsys.readouterr().err


def test_a_scheduler_that_is_not_there_is_said(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed")
    monkeypatch.setattr("profkit.run.scheduling.CONNECT_S", 0.2)
    assert main(["explain", *runs, "--scheduler", "tcp://127.0.0.1:1"]) == ExitCode.UNFINISHED
    assert "no Dask scheduler answers there" in capsys.readouterr().err
