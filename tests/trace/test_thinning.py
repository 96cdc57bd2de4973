"""Long runs keep exact sums of their older steps: what readers say of them stays true."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from profkit.analysis.lengths import ERROR, count_lengths, find_quantile, read_lengths
from profkit.analysis.overview import Overview, build_overview
from profkit.analysis.thinning import PartThinner
from profkit.clock import Anchor
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import PARTIAL_BATCH, SWITCHED_OFF, THINNED
from profkit.report.ledger_words import steps_of
from profkit.report.words import steps_line
from profkit.testing import synthetic_trace
from profkit.trace import RankManifest, RunManifest, Trace, verify
from profkit.trace.files import RankFiles
from profkit.trace.sampled import BLOCK, step_levels
from profkit.trace.tail import RunTail
from profkit.vocab import (
    RECENT,
    THINNED_TABLES,
    EventKind,
    Integrity,
    RunState,
    rank_folder,
)

SECOND = 1_000_000_000
STEP_NS = 100_000_000
STEPS = 4_500
HASTE = 4
"""The clock of the parts runs faster than that of the job, so that a short job has many."""

FULL = 100_000
PHASES = ("data", "forward", "backward", "optimizer")
PARTIAL_EVERY, COMPILE_EVERY, EPOCH = 500, 1_250, 1_500


class Job:
    """A job whose steps take random times, written as a recorder does it."""

    def __init__(self, seed: int, step_ns: int = STEP_NS) -> None:
        self._random = np.random.default_rng(seed)
        self._step_ns = step_ns
        self.now = SECOND

    def rows(self, step: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the rows of the next step; some phases hold a region of another phase."""
        begin = self.now
        measured = step % 12 not in (5, 6) or step < 12
        for phase in PHASES:
            start = self.now
            length = int(self._random.gamma(20, self._step_ns / 100))
            if measured and phase == "forward":
                inner = start + length // 4, start + length // 2
                yield "spans", _span(step, "h2d", 1, *inner)
            if measured:
                yield "spans", _span(step, phase, 0, start, start + length)
            self.now += length + 1_000
        if step % COMPILE_EVERY == 40:
            yield "events", compiled(self.now - 10)
        yield "samples", _sample("host", "load_ratio", self.now, 0.5)
        partial = step % PARTIAL_EVERY == PARTIAL_EVERY - 1
        yield (
            "steps",
            {
                "step": step,
                "start_ns": begin,
                "end_ns": self.now,
                "sample_count": 3 if partial else 32,
                "loss": None,
                "grad_scale": None,
                "instrumented": measured,
                "epoch": step // EPOCH,
            },
        )


def _span(step: int, phase: str, depth: int, start: int, end: int) -> dict[str, Any]:
    names = {"phase": phase, "name": phase, "thread": "MainThread"}
    return {"step": step, **names, "depth": depth, "start_ns": start, "end_ns": end}


def _sample(source: str, metric: str, time_ns: int, value: float) -> dict[str, Any]:
    names = {"device": None, "source": source, "metric": metric}
    return {**names, "time_ns": time_ns, "value": value}


def compiled(time_ns: int) -> dict[str, Any]:
    names = {"kind": EventKind.COMPILED, "name": "f", "detail": None}
    return {"step": None, "time_ns": time_ns, **names, "value": 5e6}


def record(
    folder: Path,
    *,
    thinned: bool,
    rank: int = 0,
    ranks: int = 1,
    steps: int = STEPS,
    close: bool = True,
    step_ns: int = STEP_NS,
    job_type: type[Job] | None = None,
) -> RankFiles:
    """Write a rank of the job, in flushes of 5 s."""
    folder.mkdir(exist_ok=True)
    state = RunState.COMPLETE if close else RunState.RUNNING
    RunManifest(workload="long", world_size=ranks, state=state).write(folder)
    files = RankFiles(
        folder / rank_folder(rank),
        rank,
        thinner=PartThinner if thinned else None,
        full_bytes=FULL,
    )
    manifest = RankManifest(rank, "here", 1, "cpu", Anchor(1, 2, 3), rank, ranks)
    manifest.write(files.folder)
    job, flushed = (job_type or Job)(rank, step_ns), 0
    waiting: dict[str, list[dict[str, Any]]] = {}
    for step in range(steps):
        for table, row in job.rows(step):
            waiting.setdefault(table, []).append(row)
        if job.now - flushed > 5 * SECOND or step == steps - 1:
            flushed = job.now
            for table, rows in waiting.items():
                files.write(table, {name: [row[name] for row in rows] for name in rows[0]})
            waiting.clear()
            files.thin(lambda: HASTE * job.now)
    if close:
        files.close()
    return files


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    """The same run, in full and thinned."""
    folder = tmp_path_factory.mktemp("runs")
    record(folder / "full", thinned=False)
    record(folder / "thinned", thinned=True)
    return Trace.open(folder / "full"), Trace.open(folder / "thinned")


def exact(view: Overview) -> list[float]:
    values = [view.throughput.value, view.step_ns.value]
    for part in sorted(view.phases, key=lambda part: part.name):
        values += [part.share.value, part.step_ns.value]
    return values


def check_same(full: Trace, thinned: Trace) -> None:
    expected, found = build_overview(full), build_overview(thinned)
    assert found.thinned is not None
    assert expected.thinned is None
    assert found.thinned.in_full < expected.steps_seen / 2, "nothing was thinned"
    assert [part.name for part in found.phases] == [part.name for part in expected.phases]
    assert exact(found) == pytest.approx(exact(expected), rel=1e-12)
    assert found.steps_seen == expected.steps_seen
    assert found.thinned.used == len(expected.selection.steps)
    assert found.thinned.left_out == expected.selection.left_out
    assert steps_line(found) == steps_line(expected)


def test_exact_figures_are_those_of_all_steps(runs: tuple[Trace, Trace]) -> None:
    full, thinned = runs
    check_same(full, thinned)
    throughput = build_overview(thinned).throughput
    assert throughput.low is not None
    assert throughput.high is not None
    assert throughput.low < throughput.value < throughput.high
    left_out = build_overview(full).selection.left_out
    assert left_out[SWITCHED_OFF] > 500
    assert left_out[PARTIAL_BATCH] > 5
    assert len(left_out) == 5


def test_a_killed_run_keeps_its_last_part_in_full(tmp_path: Path) -> None:
    for steps in (2_000, 2_290, 2_801):
        full, thinned = tmp_path / f"full{steps}", tmp_path / f"thinned{steps}"
        record(full, thinned=False, steps=steps, close=False)
        record(thinned, thinned=True, steps=steps, close=False)
        check_same(Trace.open(full), Trace.open(thinned))
        last = Trace.open(thinned).steps["step"].to_numpy()[-64:]
        assert last.tolist() == list(range(steps - 64, steps))
        assert verify(thinned).state is Integrity.ENDED_EARLY


def test_a_rank_that_is_killed_while_a_part_ends_counts_no_step_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed before each of the writes that end a part."""
    record(tmp_path / "full", thinned=False, steps=2_000, close=False)
    files = record(tmp_path / "run", thinned=True, steps=2_000, close=False)
    expected = exact(build_overview(Trace.open(tmp_path / "full")))
    copies: list[Path] = []

    def copy_before(path: Any, *others: Any) -> Any:
        copy = tmp_path / f"copy{len(copies)}"
        shutil.copytree(tmp_path / "run", copy)
        copies.append(copy)
        return real(path, *others)

    real = RankFiles.write
    monkeypatch.setattr(RankFiles, "write", copy_before)
    from profkit.trace import stream

    append = stream.StreamWriter._append

    def append_after_copy(self: Any, message: bytes) -> None:
        copy = tmp_path / f"copy{len(copies)}"
        shutil.copytree(tmp_path / "run", copy)
        copies.append(copy)
        append(self, message)

    monkeypatch.setattr(stream.StreamWriter, "_append", append_after_copy)
    files.thin(lambda: 10**18)
    assert len(copies) > 5
    for copy in copies:
        found = build_overview(Trace.open(copy))
        assert exact(found) == pytest.approx(expected, rel=1e-12)


def test_a_thinner_that_fails_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: PartThinner, tables: Any) -> None:
        raise ArithmeticError("too large")

    monkeypatch.setattr(PartThinner, "take", fail)
    record(tmp_path / "full", thinned=False, steps=1_500)
    record(tmp_path / "run", thinned=True, steps=1_500)
    assert "no longer thinned: too large" in caplog.text
    full, found = Trace.open(tmp_path / "full"), Trace.open(tmp_path / "run")
    for table in THINNED_TABLES:
        assert found.table(table).equals(full.table(table))
    assert verify(tmp_path / "run").state is Integrity.COMPLETE


def test_quantiles_are_within_their_stated_error(runs: tuple[Trace, Trace]) -> None:
    full, thinned = runs
    used = build_overview(full).selection.steps
    steps = full.steps.to_pydict()
    lengths = np.array(steps["end_ns"])[used] - np.array(steps["start_ns"])[used]
    view = build_overview(thinned)
    assert view.thinned is not None
    for share, found in view.thinned.quantiles.items():
        exact = np.quantile(lengths, share, method="lower")
        assert abs(found / exact - 1) <= ERROR
    assert ERROR < 0.01


def test_figures_of_steps_are_those_of_a_sample(runs: tuple[Trace, Trace]) -> None:
    _, thinned = runs
    view = build_overview(thinned)
    assert view.thinned is not None
    level = int(math.log2(view.thinned.one_in))
    assert (step_levels(view.selection.steps) >= level).all()
    assert view.selection.left_out[THINNED] > 50
    assert any("sample of one step" in notice for notice in view.quality)
    costs = frame_of(thinned).costs
    assert costs.one_in == view.thinned.one_in
    assert f"(a sample of its steps: one in {costs.one_in})" in steps_of(costs)


def test_several_ranks(tmp_path: Path) -> None:
    for name, thinned in (("full", False), ("thinned", True)):
        for rank in range(2):
            record(tmp_path / name, thinned=thinned, rank=rank, ranks=2, steps=2_000)
    check_same(Trace.open(tmp_path / "full"), Trace.open(tmp_path / "thinned"))


def test_a_whole_run_verifies_and_leaves_only_its_last_part(runs: tuple[Trace, Trace]) -> None:
    _, thinned = runs
    assert verify(thinned.path).state is Integrity.COMPLETE
    parts = {file.name[:8] for file in (thinned.ranks[0].folder / RECENT).iterdir()}
    assert parts == {f"{thinned.ranks[0].last_part + 1:08d}"}


def test_a_recent_file_that_was_changed_is_reported(tmp_path: Path) -> None:
    record(tmp_path / "run", thinned=True)
    file = next((tmp_path / "run" / "r00000" / RECENT).glob("*-steps.arrows"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert verify(tmp_path / "run").state is Integrity.TORN
    file.unlink()
    found = verify(tmp_path / "run")
    assert found.state is Integrity.TORN
    assert "its recent rows are missing" in found.reasons[0]


@pytest.mark.parametrize("has_end", [True, False])
def test_a_table_that_began_in_the_last_part_is_checked(tmp_path: Path, has_end: bool) -> None:
    """Its rows are in a file of the part alone: none of them were thinned yet."""
    files = record(tmp_path, thinned=True, close=False)
    assert not (files.folder / "collectives.arrows").exists()
    names = {"communicator": ["0"], "op": ["all_reduce"], "dtype": ["float32"]}
    numbers = {"sequence": [1], "bytes": [8], "group_size": [2], "start_ns": [1], "end_ns": [2]}
    files.write("collectives", {**names, **numbers, "backend": ["gloo"]})
    if has_end:
        files.close()
    (file,) = (files.folder / RECENT).glob("*-collectives.arrows")
    checks = {check.table: check for check in verify(tmp_path).tables}
    assert checks["collectives"].rows == 1
    assert checks["collectives"].problem == ""
    file.write_bytes(file.read_bytes()[:-40])
    checks = {check.table: check for check in verify(tmp_path).tables}
    assert checks["collectives"].problem
    file.unlink()
    found = verify(tmp_path)
    checks = {check.table: check for check in found.tables}
    assert ("collectives" in checks) == has_end
    if has_end:
        assert found.state is Integrity.TORN
        assert checks["collectives"].lost == 1


def test_a_short_run_is_written_as_before(tmp_path: Path) -> None:
    for name, thinned in (("full", False), ("thinned", True)):
        record(tmp_path / name, thinned=thinned, steps=200)
    own, other = tmp_path / "full" / "r00000", tmp_path / "thinned" / "r00000"
    names = sorted(file.name for file in own.iterdir())
    assert sorted(file.name for file in other.iterdir()) == names
    for name in names:
        if name.endswith(".arrows"):
            assert (own / name).read_bytes() == (other / name).read_bytes()


def test_excluded_steps_cost_what_they_do_in_full(runs: tuple[Trace, Trace]) -> None:
    apart = []
    for run in runs:
        apart.append({each.reason: each for each in frame_of(run).costs.apart})
    expected, found = apart
    assert found.keys() == expected.keys()
    for reason, each in expected.items():
        assert found[reason].steps == each.steps
        usual = found[SWITCHED_OFF].excess_ns - expected[SWITCHED_OFF].excess_ns
        assert found[reason].excess_ns == pytest.approx(each.excess_ns, abs=abs(usual) + 1e3)


def test_readings_keep_their_distance_and_events_are_all_kept(runs: tuple[Trace, Trace]) -> None:
    full, thinned = runs
    for trace, rare in ((full, False), (thinned, True)):
        rows = trace.samples.to_pydict()
        assert trace.events.num_rows == STEPS // COMPILE_EVERY + 1
        assert (len(rows["metric"]) < STEPS / 2) == rare


def test_sampled_blocks_are_nested_and_as_many_as_their_level_says() -> None:
    steps = np.arange(BLOCK * 2**14)
    levels = step_levels(steps)
    for level in (1, 3, 8):
        chosen = np.flatnonzero(levels >= level) // (BLOCK * 2**level)
        assert np.unique(chosen, return_counts=True)[1].tolist() == [BLOCK] * 2 ** (14 - level)
    assert (levels.reshape(-1, BLOCK) == levels[::BLOCK, None]).all()
    sides = (np.flatnonzero(levels[::BLOCK] >= 1) % 2).mean()
    assert 0.45 < sides < 0.55, "one side of the pairs is preferred"


def test_lengths_survive_damage_and_add_up() -> None:
    counts = count_lengths(np.array([100, 1_000, 1_000, 0, 10**15]))
    assert sum(counts.values()) == 5
    assert read_lengths(["3:1 x 5:2", None, "3:4 -1:9 7:"]) == {3: 5, 5: 2, 1: 9}
    assert math.isnan(find_quantile({}, 0.5))


def _thin(run: Path, copy: Path) -> Path:
    """Write a run again as a recorder that thins, in flushes of 5 s by the end of each row."""
    whole = Trace.open(run)
    copy.mkdir()
    dataclasses.replace(whole.manifest).write(copy)
    for rank in whole.ranks:
        files = RankFiles(
            copy / rank_folder(rank.rank), rank.rank, thinner=PartThinner, full_bytes=FULL
        )
        rank.manifest.write(files.folder)
        tables = {table: rank.table(table) for table in THINNED_TABLES}
        begin = min(tables["steps"]["start_ns"].to_pylist())
        end = max(tables["steps"]["end_ns"].to_pylist()) + 5 * SECOND
        for now in range(begin, end + 5 * SECOND, 5 * SECOND):
            for table, rows in tables.items():
                time_ns = rows["time_ns" if table in {"samples", "events"} else "end_ns"].to_numpy()
                due = (time_ns >= now - 5 * SECOND) & (time_ns < now)
                if now == begin:
                    due |= time_ns < now
                part = rows.filter(pa.array(due)).drop_columns("rank")
                if part.num_rows:
                    files.write(table, {name: part[name].to_pylist() for name in part.column_names})
            files.thin(lambda now=now: HASTE * now)  # type: ignore[misc]
        files.close()
    return copy


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ranks_with_an_exchange(tmp_path: Path, device: str) -> None:
    run = synthetic_trace(
        tmp_path / "full", ranks=2, steps=1_500, device=device, steps_per_epoch=500
    )
    thinned = Trace.open(_thin(run, tmp_path / "thinned"))
    expected, found = build_overview(Trace.open(run)), build_overview(thinned)
    assert found.thinned is not None
    assert found.clock is expected.clock
    assert found.throughput.value == pytest.approx(expected.throughput.value, rel=1e-12)
    assert found.step_ns.value == pytest.approx(expected.step_ns.value, rel=1e-12)
    shares = {part.name: part.share.value for part in expected.phases}
    for part in found.phases:
        assert part.share.value == pytest.approx(shares[part.name], abs=2e-5)
    assert (found.exchange is None) == (expected.exchange is None)
    assert thinned.steps.num_rows < 2 * 1_000


@pytest.mark.parametrize("flushes", [1, 3, 5])
def test_who_follows_a_run_sees_each_step_once_while_it_is_thinned(
    tmp_path: Path, flushes: int
) -> None:
    """Who looks after several flushes finds the end of a part that is not the current one."""
    RunManifest(workload="long").write(tmp_path)
    files = RankFiles(tmp_path / rank_folder(0), 0, thinner=PartThinner, full_bytes=FULL)
    RankManifest(0, "here", 1, "cpu", Anchor(1, 2, 3)).write(files.folder)
    job, tail = Job(0), RunTail(tmp_path)
    for first in range(0, 2_000, 50):
        waiting: dict[str, list[dict[str, Any]]] = {}
        for step in range(first, first + 50):
            for table, row in job.rows(step):
                waiting.setdefault(table, []).append(row)
        for table, rows in waiting.items():
            files.write(table, {name: [row[name] for row in rows] for name in rows[0]})
        files.thin(lambda: HASTE * job.now)
        if first // 50 % flushes:
            continue
        latest = tail.look()
        numbers = latest.steps["step"].to_numpy()
        assert numbers.tolist() == list(range(numbers[0], first + 50))
        phases = latest.spans["phase"].to_pylist()
        spans = latest.spans["step"].to_numpy()
        optimizers = spans[[phase == "optimizer" for phase in phases]]
        assert len(np.unique(optimizers)) == len(optimizers)
    assert (files.folder / RECENT).exists()
    assert len(numbers) >= 500
