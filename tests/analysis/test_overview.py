"""Planted figures come out of a run, and its problems are reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from profkit.analysis.overview import Overview, build_overview
from profkit.errors import UnreadableError
from profkit.frame.estimate import FEWEST_STEPS
from profkit.frame.phases import UNKNOWN
from profkit.frame.selection import EPOCH_START, PARTIAL_BATCH, SPANS_LOST, WARM_UP
from profkit.hangs.incidents import ALARM, SEEN, append_event
from profkit.hangs.status import FOLDER
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from tests.documents import report_text

MS = 1_000_000
PHASE_NS = {
    "data": 6 * MS,
    "h2d": 1 * MS,
    "forward": 20 * MS,
    "backward": 40 * MS,
    "allreduce": 5 * MS,
    "optimizer": 8 * MS,
}
ALONE_NS = {phase: ns for phase, ns in PHASE_NS.items() if phase != "allreduce"}
BATCH = 32


def _view(run: Path) -> Overview:
    return build_overview(Trace.open(run))


def _shares(view: Overview) -> dict[str, float]:
    return {part.name: part.share.value for part in view.phases}


def _edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_trace(
        tmp_path_factory.mktemp("whole") / "run", ranks=2, steps=60, phase_ns=PHASE_NS
    )


@pytest.fixture
def run(whole_run: Path, tmp_path: Path) -> Path:
    """A copy of a whole run of two ranks, to be damaged."""
    return Path(shutil.copytree(whole_run, tmp_path / "run"))


def test_the_planted_throughput_lies_within_its_interval(tmp_path: Path) -> None:
    planted = BATCH / (sum(ALONE_NS.values()) * 1.005 / 1e9)
    held = 0
    for seed in range(20):
        found = _view(
            synthetic_trace(tmp_path / str(seed), steps=120, phase_ns=PHASE_NS, seed=seed)
        ).throughput
        assert found.value == pytest.approx(planted, rel=0.05)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= planted <= found.high
    assert held >= 17


def test_the_planted_shares_come_out_within_a_point(tmp_path: Path) -> None:
    view = _view(synthetic_trace(tmp_path / "run", steps=200, phase_ns=PHASE_NS))
    whole = sum(ALONE_NS.values()) * 1.005
    assert _shares(view) == pytest.approx(
        {**{phase: ns / whole for phase, ns in ALONE_NS.items()}, UNKNOWN: 0.005 / 1.005}, abs=0.01
    )
    assert sum(_shares(view).values()) == pytest.approx(1, abs=1e-12)


def test_waiting_for_a_late_rank_is_in_the_all_reduce_of_the_others(tmp_path: Path) -> None:
    late = {2: {"forward": PHASE_NS["forward"] + 12 * MS}}
    view = _view(
        synthetic_trace(
            tmp_path / "run", ranks=4, steps=60, phase_ns=PHASE_NS, rank_phase_ns=late, jitter=0
        )
    )
    step_ns = {part.name: part.step_ns.value for part in view.phases}
    assert step_ns["forward"] == pytest.approx(PHASE_NS["forward"] + 12 * MS / 4, rel=0.01)
    assert step_ns["allreduce"] == pytest.approx(PHASE_NS["allreduce"] + 12 * MS * 3 / 4, rel=0.01)
    assert view.throughput.value == pytest.approx(4 * BATCH / view.step_ns.value * 1e9)


def test_slow_first_steps_epoch_starts_and_partial_batches_are_told_and_not_used(
    tmp_path: Path,
) -> None:
    run = synthetic_trace(
        tmp_path / "run",
        steps=100,
        phase_ns=PHASE_NS,
        steps_per_epoch=25,
        last_batch_size=7,
        jitter=0,
    )
    view = _view(run)
    assert view.selection.left_out == {WARM_UP: 10, EPOCH_START: 3, PARTIAL_BATCH: 4}
    assert (
        len(view.selection.steps) + sum(view.selection.left_out.values()) == view.steps_seen == 100
    )
    assert view.step_ns.value == pytest.approx(sum(ALONE_NS.values()) * 1.005, rel=1e-6)


def test_the_warm_up_is_the_one_that_the_run_was_started_with(tmp_path: Path) -> None:
    assert (
        _view(synthetic_trace(tmp_path / "run", steps=40, config={"warmup": 4})).selection.left_out[
            WARM_UP
        ]
        == 4
    )


@pytest.mark.parametrize(
    ("said", "used"), [(10**30, 0), (-5, 40), (True, 32), ("many", 32), (None, 32)]
)
def test_a_warm_up_that_makes_no_sense_is_no_error(tmp_path: Path, said: object, used: int) -> None:
    run = synthetic_trace(tmp_path / "run", steps=40)
    _edit_json(run / "run.json", config={"warmup": said})
    assert len(_view(run).selection.steps) == used


def test_losses_are_those_of_the_first_and_the_last_step(run: Path) -> None:
    losses = Trace.open(run).ranks[0].table("steps")["loss"].to_pylist()
    view = _view(run)
    assert (view.first_loss, view.last_loss) == (losses[0], losses[-1])


def test_the_own_cost_is_the_price_of_the_regions_and_the_writers_time(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", steps=100, phase_ns=PHASE_NS)
    manifest = Trace.open(run).manifest
    assert manifest.ended_ns is not None
    ticks = (manifest.ended_ns - manifest.created_ns) // 250_000_000
    cost = _view(run).own_cost
    assert cost.hooks_ns == pytest.approx(450 * len(ALONE_NS))
    assert cost.writer_ns == pytest.approx(120_000 * ticks / 100)
    assert cost.total_ns == pytest.approx(450 * len(ALONE_NS) + 1_200 * ticks)


def test_an_own_cost_that_was_not_measured_is_not_zero(run: Path) -> None:
    for folder in run.glob("r0*"):
        (folder / "samples.arrows").unlink()
    cost = _view(run).own_cost
    assert (cost.hooks_ns, cost.writer_ns, cost.total_ns) == (None, None, None)


def test_a_whole_run_has_nothing_to_be_warned_of(run: Path) -> None:
    assert _view(run).quality == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"state": "aborted", "why": "RuntimeError: out of memory"},
            "the run was aborted: RuntimeError: out of memory",
        ),
        ({"state": "running"}, "the run has no end: it still runs, or it was killed"),
        ({"world_size": 3}, "no files of 1 of 3 ranks"),
    ],
)
def test_what_the_run_says_of_itself_is_told(
    run: Path, changes: Mapping[str, object], told: str
) -> None:
    _edit_json(run / "run.json", **changes)
    assert told in _view(run).quality


def test_a_job_that_hung_until_it_was_killed_is_told(run: Path) -> None:
    verdict: dict[str, Any] = {"class": "never entered", "level": ALARM, "text": "rank 1 is late"}
    verdict |= {"ranks": [1], "places": {}, "missing": []}
    (run / FOLDER).mkdir(exist_ok=True)
    append_event(run, "host", {"event": SEEN, "time_ns": 0, "verdict": verdict})
    told = "the job stood still: 'profkit why' names the rank and the line"
    assert told not in _view(run).quality  # it went on, and ended well
    _edit_json(run / "run.json", state="running")
    assert told in _view(run).quality


def test_rows_that_were_dropped_are_told(run: Path) -> None:
    end = run / "r00001" / "end.json"
    tables = json.loads(end.read_text())["tables"]
    tables["spans"]["dropped"] = 1_234
    _edit_json(end, tables=tables)
    assert _view(run).quality == ("1,234 rows were dropped while recording",)


def test_a_rank_without_files_is_told_and_leaves_the_jobs_throughput_unknown(run: Path) -> None:
    shutil.rmtree(run / "r00001")
    view = _view(run)
    assert view.quality == ("no files of 1 of 2 ranks",)
    assert (view.world_size, view.ranks_seen, view.silent_ranks) == (2, 1, 1)
    assert not view.judged


def test_a_rank_that_ended_early_is_told_where_the_run_does_not_say_so(run: Path) -> None:
    _edit_json(run / "r00001" / "end.json", reason="No space left on device while writing spans")
    assert _view(run).quality == (
        "rank 1 stopped early: No space left on device while writing spans",
    )
    (run / "r00000" / "end.json").unlink()
    assert _view(run).quality == ("rank 0 stopped early: it wrote no end record (and 1 more rank)",)


def test_a_damaged_stream_costs_its_rows_and_is_told(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", steps=40)
    path = run / "r00000" / "spans.arrows"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    view = _view(run)
    assert any(
        notice.startswith("rank 0, spans: ") and notice.endswith("rows after that place are lost")
        for notice in view.quality
    )
    assert _shares(view) == {}
    assert view.throughput.judged
    assert UNKNOWN not in report_text(view)


def test_steps_whose_spans_are_lost_have_no_phases(tmp_path: Path) -> None:
    """The first half of the spans was written: the steps after it would be all unknown."""
    run = synthetic_trace(tmp_path / "run", steps=80, phase_ns=PHASE_NS)
    whole = _view(run)
    path = run / "r00000" / "spans.arrows"
    with pa.ipc.open_stream(path) as stream:
        batch = pa.concat_tables([pa.Table.from_batches(list(stream))]).combine_chunks()
    end = json.loads((run / "r00000" / "end.json").read_text())
    with pa.ipc.new_stream(path, batch.schema) as rewritten:
        rewritten.write_table(batch.slice(0, batch.num_rows // 2))
    view = _view(run)
    assert end["tables"]["spans"]["rows"] == batch.num_rows
    assert view.selection.left_out[SPANS_LOST] == pytest.approx(40, abs=2)
    assert _shares(view).keys() == _shares(whole).keys()
    assert _shares(view)["forward"] == pytest.approx(_shares(whole)["forward"], abs=0.02)
    assert "without spans" in report_text(view)


def test_a_damaged_end_record_is_told_and_the_figures_stay(run: Path) -> None:
    before = _view(run).throughput
    (run / "r00000" / "end.json").write_text('{"tables": 3}')
    view = _view(run)
    assert view.throughput == before
    assert any("end.json" in notice and "damaged" in notice for notice in view.quality)


def test_a_run_without_steps_is_unreadable_and_says_what_to_do(run: Path) -> None:
    for folder in run.glob("r0*"):
        (folder / "steps.arrows").unlink()
    with pytest.raises(UnreadableError, match=r"holds no steps.*profkit verify"):
        _view(run)


def test_too_few_steps_are_not_judged_and_it_is_said_how_many_are_missing(tmp_path: Path) -> None:
    view = _view(synthetic_trace(tmp_path / "run", steps=3))
    assert not view.judged
    assert view.steps_needed == FEWEST_STEPS - 3
    assert view.throughput.value > 0


def test_a_run_that_is_all_warm_up_has_no_figures_and_is_no_error(tmp_path: Path) -> None:
    view = _view(synthetic_trace(tmp_path / "run", steps=5, config={"warmup": 9}))
    assert (view.judged, view.phases, view.steps_needed) == (False, (), FEWEST_STEPS)


def test_what_kept_lines_from_being_read_is_said(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", steps=12)
    assert not any("lines" in words for words in build_overview(Trace.open(run)).quality)
    (run / "eye").mkdir()
    for process, why in ((1, ""), (2, "the system forbids it"), (3, "the system forbids it")):
        (run / "eye" / f"{process}.answer").write_text(why)
    (run / "r00000" / "eye").mkdir()
    assert [words for words in build_overview(Trace.open(run)).quality if "lines" in words] == [
        "lines were looked at by a thread of the job, twice per second: the system forbids it",
        "the process that samples lines was killed, or still writes: lines may end early",
    ]
