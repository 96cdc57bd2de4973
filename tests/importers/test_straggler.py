"""StragglerAnalysis traces: what becomes of each operation, and errors that name the row."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from profkit.analysis.exchange import match_collectives
from profkit.analysis.overview import build_overview
from profkit.analysis.timeline.clocks import AS_RECORDED, align_clocks
from profkit.analysis.views.ranks import build_ranks_view
from profkit.analysis.whatif.operations import ReplayError
from profkit.analysis.whatif.replay import prepare
from profkit.analysis.whatif.run_operations import operations_of
from profkit.analysis.whatif.slowdown import find_slowdown
from profkit.cli import main
from profkit.errors import ExitCode, UnreadableError
from profkit.explain.explained import explain, scale_runs
from profkit.importers.base import read_head
from profkit.importers.reading.plan import plan_import
from profkit.importers.straggler import IMPORTER, NO_PAUSES
from profkit.importers.straggler.table import read_operations
from profkit.plugins import IMPORTERS
from profkit.report import as_text
from profkit.report.ledger_document import explained
from profkit.testing import synthetic_trace
from profkit.text import significant
from profkit.trace import Trace, verify
from profkit.vocab import Integrity
from tests.importers.conftest import DATA, Import
from tests.pipelines import COMPUTING, PipelinePlan, run_pipeline

PUBLISHED = DATA / "straggler"
needs_jobs = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published traces (../shared/data/straggler) are not here"
)
PLANS = {
    "one stage": PipelinePlan(stages=1),
    "four stages": PipelinePlan(),
    "tensor parallel": PipelinePlan(stages=3, tensor_ranks=4),
    "one replica": PipelinePlan(stages=2, data_ranks=1),
    "exchange under the backward": PipelinePlan(stages=2, overlaps=True),
    "chunks": PipelinePlan(stages=2, chunks=2, microbatches=4),
}
PHASES = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    "optimizer": "optimizer",
    "gc": "unknown",
}
Change = Callable[[pa.Table], pa.Table]


def rows_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def imported(path: Path, import_files: Import, **options: Any) -> Trace:
    (run,) = import_files(IMPORTER, path, **options)
    return Trace.open(run.run)


def text_of(trace: Trace) -> str:
    return as_text.overview(build_overview(trace))


@pytest.mark.parametrize("name", PLANS)
def test_every_operation_is_in_the_run_once(
    name: str, tmp_path: Path, import_files: Import
) -> None:
    path = run_pipeline(PLANS[name]).write(tmp_path)
    trace = imported(path, import_files)
    starts: dict[int, float] = {}
    for row in rows_of(path):
        starts[row["step"]] = min(row["start_ts"], starts.get(row["step"], row["start_ts"]))
    expected, offset = [], {}
    for row in trace.steps.to_pylist():
        offset[row["step"]] = row["start_ns"]
    for row in rows_of(path):
        start = round((row["start_ts"] - starts[row["step"]]) * 1e9) + offset[row["step"]]
        length, phase = round(row["duration"] * 1e9), PHASES.get(row["optype"], "sent")
        expected.append((row["rank"], row["step"], phase, start, start + length))
    found = []
    for table, phases in ((trace.spans, None), (trace.collectives, "sent")):
        for row in table.to_pylist():
            if row.get("phase") != "allreduce":
                phase = phases or row["phase"]
                found.append((row["rank"], row["step"], phase, row["start_ns"], row["end_ns"]))
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("name", PLANS)
def test_a_step_is_as_long_as_the_job_took(name: str, tmp_path: Path, import_files: Import) -> None:
    made = run_pipeline(PLANS[name])
    trace = imported(made.write(tmp_path), import_files)
    for rank in trace.ranks:
        own = trace.steps.filter(pc.equal(trace.steps["rank"], rank.rank))
        lengths = pc.subtract(own["end_ns"], own["start_ns"]).to_pylist()
        assert lengths == made.step_ns
    assert verify(trace.path).state is Integrity.COMPLETE


@pytest.mark.parametrize("name", PLANS)
def test_phases_never_overlap_and_exposed_time_is_communication_alone(
    name: str, tmp_path: Path, import_files: Import
) -> None:
    path = run_pipeline(PLANS[name]).write(tmp_path)
    trace = imported(path, import_files)
    first = {row["step"]: row["start_ns"] for row in trace.steps.to_pylist()}
    for rank in trace.ranks:
        own = trace.spans.filter(pc.equal(trace.spans["rank"], rank.rank)).to_pylist()
        own.sort(key=lambda row: row["start_ns"])
        for before, after in itertools.pairwise(own):
            assert before["end_ns"] <= after["start_ns"]
        for step in first:
            exposed = 0
            for row in own:
                if row["step"] == step and row["phase"] == "allreduce":
                    exposed += row["end_ns"] - row["start_ns"]
            assert exposed == alone(path, rank.rank, step)


def alone(path: Path, rank: int, step: int) -> int:
    """The time in which a rank sends and computes nothing, by the marks where that changes."""
    marks = []
    for row in rows_of(path):
        if row["rank"] == rank and row["step"] == step:
            start = round(row["start_ts"] * 1e9)
            kind = int(row["optype"] in COMPUTING)
            marks += [(start, 1, kind), (start + round(row["duration"] * 1e9), -1, kind)]
    active, total, last = [0, 0], 0, 0
    for at, change, kind in sorted(marks):
        if active[0] and not active[1]:
            total += at - last
        active[kind] += change
        last = at
    return total


@pytest.mark.parametrize("name", PLANS)
def test_collectives_are_matched_over_their_ranks(
    name: str, tmp_path: Path, import_files: Import
) -> None:
    plan = PLANS[name]
    trace = imported(run_pipeline(plan).write(tmp_path), import_files)
    found = match_collectives(trace.collectives, np.arange(plan.steps))
    assert found.count == found.matched_count > 0
    groups: dict[tuple[str, int], set[int]] = {}
    for row in trace.collectives.to_pylist():
        groups.setdefault((row["communicator"], row["sequence"]), set()).add(row["rank"])
        kind, ranks = row["communicator"].partition(",")[0], plan.data_ranks * plan.stages
        sizes = {"grads-reduce-scatter": plan.data_ranks, "optimizer-clip-main-grad": ranks}
        sizes["embedding-grads-all-reduce"] = min(2, plan.stages)
        if " from stage " in kind:
            sizes[kind] = 2
            assert row["op"] in ("send", "recv")
            assert 0 <= row["microbatch"] < plan.microbatches
        assert row["group_size"] == sizes.get(kind, row["group_size"])
    sizes_of = {}
    for row in trace.collectives.to_pylist():
        sizes_of[row["communicator"], row["sequence"]] = row["group_size"]
    assert {key: len(ranks) for key, ranks in groups.items()} == sizes_of


def test_both_sides_of_a_message_carry_one_microbatch(tmp_path: Path, import_files: Import) -> None:
    trace = imported(run_pipeline(PLANS["chunks"]).write(tmp_path), import_files)
    sides: dict[tuple[str, int], set[int]] = {}
    for row in trace.collectives.to_pylist():
        if " from stage " in row["communicator"]:
            key = row["communicator"], row["sequence"]
            sides.setdefault(key, set()).add(row["microbatch"])
    assert sides
    assert all(len(each) == 1 for each in sides.values())


def test_the_layout_is_that_of_the_meta_file(tmp_path: Path, import_files: Import) -> None:
    plan = PLANS["tensor parallel"]
    trace = imported(run_pipeline(plan).write(tmp_path), import_files, samples_per_step=16)
    assert trace.manifest.world_size == 24
    assert trace.manifest.config["parallel"] == {"dp": 2, "pp": 3, "tp": 4}
    assert trace.sharing.data_ranks == 2
    per_step = trace.steps.group_by("step").aggregate([("sample_count", "sum")])
    assert set(per_step["sample_count_sum"].to_pylist()) == {32}
    (flag,) = [each for each in trace.manifest.flags if "of 24 ranks" in each]
    assert "no operations of 18 of 24 ranks" in flag
    assert "24 ranks (dp 2 x pp 3 x tp 4)" in text_of(trace)


def test_without_a_meta_file_the_rows_show_the_layout(tmp_path: Path, import_files: Import) -> None:
    path = run_pipeline(PLANS["tensor parallel"]).write(tmp_path)
    (tmp_path / "meta-made.yaml").unlink()
    trace = imported(path, import_files)
    assert trace.manifest.world_size == 24
    assert trace.manifest.config["parallel"] == {"dp": 2, "pp": 3, "tp": 4}
    assert any("no meta file" in flag for flag in trace.manifest.flags)


def test_times_since_the_start_of_each_step_are_placed_one_after_the_other(
    tmp_path: Path, import_files: Import
) -> None:
    trace = imported(run_pipeline(PipelinePlan()).write(tmp_path), import_files)
    first = trace.steps.filter(pc.equal(trace.steps["rank"], 0)).to_pylist()
    for before, after in itertools.pairwise(first):
        assert after["start_ns"] == before["end_ns"]
    assert NO_PAUSES in trace.manifest.flags


def test_times_of_a_clock_are_kept(tmp_path: Path, import_files: Import) -> None:
    path = run_pipeline(PipelinePlan()).write(tmp_path)

    def by_clock(table: pa.Table) -> pa.Table:
        start = pc.add(table["start_ts"], pc.add(1.7e9, pc.multiply(table["step"], 100)))
        return table.set_column(table.schema.get_field_index("start_ts"), "start_ts", start)

    rewrite(path, by_clock)
    trace = imported(path, import_files)
    first = trace.steps.filter(pc.equal(trace.steps["rank"], 0))["start_ns"].to_pylist()
    assert [each - first[0] for each in first] == pytest.approx([0, 1e11, 2e11], abs=1e3)
    assert NO_PAUSES not in trace.manifest.flags


def test_steps_from_the_middle_of_a_job_are_no_warm_up(
    tmp_path: Path, import_files: Import
) -> None:
    path = run_pipeline(PipelinePlan(steps=10, stages=2, microbatches=2)).write(tmp_path)
    assert imported(path, import_files).manifest.config["warmup"] == 2

    def later(table: pa.Table) -> pa.Table:
        step = pc.add(table["step"], 500)
        return table.set_column(table.schema.get_field_index("step"), "step", step)

    rewrite(path, later)
    trace = imported(path, import_files)
    assert trace.manifest.config["warmup"] == 0
    assert len(build_overview(trace).selection.steps) == 10


def test_a_slow_replica_is_named_with_the_phases_that_make_it_late(
    tmp_path: Path, import_files: Import
) -> None:
    plan = PipelinePlan(data_ranks=4, stages=1, steps=9, slow={(2, 0): 2.0})
    trace = imported(run_pipeline(plan).write(tmp_path), import_files)
    late = build_ranks_view(trace).late_rank
    assert late is not None
    assert late.rank == 2
    assert late.phase == "backward"


def test_both_verbs_show_the_throughput_of_ranks_that_share_samples(
    tmp_path: Path, import_files: Import
) -> None:
    """The file has one rank of each tensor-parallel group; the others train on its samples."""
    path = run_pipeline(PLANS["tensor parallel"]).write(tmp_path)
    trace = imported(path, import_files, samples_per_step=8)
    assert trace.manifest.world_size > len(trace.ranks)
    shown = significant(build_overview(trace).throughput.value, 4)
    assert as_text.document(explained(explain(trace, trace), ())).count(f"{shown} samples/s") == 2
    (row,) = scale_runs([trace])
    assert significant(row.throughput.value, 4) == shown


def test_the_waiting_of_a_pipeline_is_not_all_for_one_rank(
    tmp_path: Path, import_files: Import
) -> None:
    plan = PipelinePlan(data_ranks=2, stages=4, steps=9, slow={(1, 2): 1.2})
    trace = imported(run_pipeline(plan).write(tmp_path), import_files)
    found = match_collectives(trace.collectives, np.arange(9))
    waiting = found.end - found.start - found.transfer
    for rank, share in found.waited_for().items():
        of_rank = waiting[found.late_rank == rank].sum()
        assert share == pytest.approx(of_rank / waiting.sum())
    assert sum(found.waited_for().values()) < 0.9


@pytest.mark.parametrize("name", PLANS)
def test_a_run_has_all_that_a_replay_needs(name: str, tmp_path: Path, import_files: Import) -> None:
    path = run_pipeline(PLANS[name]).write(tmp_path)
    check_replay(path, imported(path, import_files))


def check_replay(path: Path, trace: Trace) -> None:
    """The replay of a run gives what that of its source gives."""
    of_file = find_slowdown(prepare(read_operations(path)))
    of_run = find_slowdown(prepare(operations_of(trace)))
    assert of_run.steps == of_file.steps
    for name in ("measured_ns", "replayed_ns", "ideal_ns"):
        assert getattr(of_run, name).tolist() == pytest.approx(getattr(of_file, name).tolist())
    assert of_run.by_kind == pytest.approx(of_file.by_kind)
    assert of_run.by_stage == pytest.approx(of_file.by_stage)
    assert of_run.slowest_workers == of_file.slowest_workers


def test_ranks_without_hosts_are_not_said_to_share_one(
    tmp_path: Path, import_files: Import
) -> None:
    trace = imported(run_pipeline(PipelinePlan()).write(tmp_path), import_files)
    assert align_clocks(trace)[1] == AS_RECORDED


def test_a_run_without_places_cannot_be_replayed(tmp_path: Path) -> None:
    trace = Trace.open(synthetic_trace(tmp_path / "run", ranks=2, steps=5))
    with pytest.raises(ReplayError, match="rank 0 does not say its place"):
        operations_of(trace)


# -- what is wrong with a file ---------------------------------------------------------------------


def rewrite(path: Path, change: Change) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def with_value(column: str, row: int, value: Any, kind: Any = None) -> Change:
    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[row] = value
        place = table.schema.get_field_index(column)
        return table.set_column(place, column, pa.array(values, kind or table[column].type))

    return change


def repeated(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(7, 1)])


def as_type(column: str, kind: str) -> Change:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(column)
        values = pc.cast(table[column], kind, safe=False)
        return table.set_column(place, column, values)

    return change


WRONG = {
    "a missing column": (lambda table: table.drop_columns(["stage"]), "misses the column stage"),
    "missing columns": (
        lambda table: table.drop_columns(["mc", "gmc"]), "misses the columns gmc, mc"
    ),
    "no rows": (lambda table: table.slice(0, 0), "has no rows"),
    "text as time": (as_type("duration", "string"), "column duration is of string"),
    "numbers as type": (
        lambda table: table.set_column(
            table.schema.get_field_index("optype"), "optype", table["seq_id"]
        ),
        "column optype is of int64",
    ),
    "broken ranks": (as_type("rank", "double"), "column rank is of double"),
    "not a number": (
        with_value("start_ts", 5, float("nan")), r"row 5 \(rank \d, step 0\): its start_ts is not"
    ),
    "infinite": (with_value("duration", 4, float("inf")), "row 4 .* duration is not a number"),
    "negative": (with_value("duration", 3, -0.5), "row 3 .* duration is negative"),
    "null": (with_value("optype", 2, None), "row 2 .* optype is missing"),
    "a null step": (with_value("step", 2, None), "row 2 .*step is missing"),
    "negative rank": (with_value("rank", 1, -3), "row 1: its rank is not from 0"),
    "twice": (repeated, r"row \d+ .* is in the table twice"),
    "a rank that moves": (with_value("stage", 9, 3), "row 9 .* another stage elsewhere"),
    "centuries": (with_value("start_ts", 8, 1e12), "row 8 .* longer than a century"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line_that_names_file_row_and_remedy(
    name: str, tmp_path: Path, import_files: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_pipeline(PipelinePlan(steps=1, microbatches=2)).write(tmp_path)
    change, why = WRONG[name]
    rewrite(path, change)
    with pytest.raises(UnreadableError, match=why) as raised:
        import_files(IMPORTER, path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)
    assert "; " in str(raised.value)
    assert not list((tmp_path / "traces").glob("*"))
    code = main(["import", str(path), "--format", "straggler", "-o", str(tmp_path / "out")])
    assert code == ExitCode.UNREADABLE
    assert capsys.readouterr().err.count("\n") == 1


def test_times_that_are_too_coarse_are_an_error(tmp_path: Path, import_files: Import) -> None:
    path = run_pipeline(PipelinePlan(steps=1)).write(tmp_path, kind="float32")
    import_files(IMPORTER, path)

    def shifted(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index("start_ts")
        later = pc.add(table["start_ts"].cast("float64"), 1.7e9).cast("float32", safe=False)
        return table.set_column(place, "start_ts", later)

    rewrite(path, shifted)
    with pytest.raises(UnreadableError, match="start_ts is of float and exact to 128 s only"):
        import_files(IMPORTER, path)


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_recognised_and_says_so(
    share: float, tmp_path: Path, import_files: Import
) -> None:
    path = run_pipeline(PipelinePlan(steps=1)).write(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: max(16, int(share * len(content)))])
    plan = plan_import([path], IMPORTERS.load_all()[0])
    assert list(plan.sources) == ["straggler"]
    with pytest.raises(UnreadableError, match=r"damaged or incomplete Parquet .*copy it again"):
        import_files(IMPORTER, path)


def test_flipped_bytes_give_a_run_or_one_line(tmp_path: Path, import_files: Import) -> None:
    path = run_pipeline(PipelinePlan(steps=1, stages=2, microbatches=2)).write(tmp_path)
    content, random = path.read_bytes(), np.random.default_rng(3)
    refused = 0
    for _ in range(60):
        changed = bytearray(content)
        for place in random.integers(4, len(content), 3):
            changed[place] ^= 1 << int(random.integers(8))
        path.write_bytes(bytes(changed))
        failure = ""
        try:
            (run,) = import_files(IMPORTER, path)
        except UnreadableError as error:
            failure = str(error)
        else:
            assert verify(run.run).state is Integrity.COMPLETE
        assert "\n" not in failure
        refused += bool(failure)
    assert refused


META = {
    "no number": ("dp_size: 2", "dp_size: two", "line 3: dp_size is not a whole number"),
    "zero": ("pp_size: 4", "pp_size: 0", "pp_size is not a whole number above zero"),
    "missing": ("tp_size: 1\n", "", "does not say tp_size"),
    "contradiction": ("world_size: 8", "world_size: 9", "make 8 ranks and world_size is 9"),
    "nested": ("run_id: 0", "  run_id: [0,\n 1]", "line 2 is not 'name: value'"),
    "another job": (
        "dp_size: 2\ndsp_size: 1", "dp_size: 1\ndsp_size: 2", "dp_size is 1, and the trace has"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", META)
def test_a_wrong_meta_file_is_an_error_that_names_it(
    name: str, tmp_path: Path, import_files: Import
) -> None:
    path = run_pipeline(PipelinePlan(steps=1)).write(tmp_path)
    meta, (old, new, why) = tmp_path / "meta-made.yaml", META[name]
    assert old in meta.read_text()
    meta.write_text(meta.read_text().replace(old, new))
    with pytest.raises(UnreadableError, match=why) as raised:
        import_files(IMPORTER, path)
    assert str(raised.value).startswith(str(meta))


def test_a_meta_file_in_a_folder_is_no_unknown_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_pipeline(PipelinePlan(steps=1)).write(tmp_path)
    (tmp_path / "notes.yaml").write_text("a: 1\n")
    assert main(["import", str(tmp_path), "-o", str(tmp_path / "out")]) == ExitCode.DONE
    assert "meta-made" not in (error := capsys.readouterr().err)
    assert "notes.yaml: unknown format, skipped" in error


def test_comments_and_quotes_of_a_meta_file_are_read(tmp_path: Path, import_files: Import) -> None:
    path = run_pipeline(PipelinePlan(steps=1)).write(tmp_path)
    meta = tmp_path / "meta-made.yaml"
    text = meta.read_text().replace("trial_name: made", 'trial_name: "My job"  # the first')
    meta.write_text(f"---\n# a job\n\n{text}")
    assert imported(path, import_files).manifest.workload == "My job"


def test_operations_of_unknown_types_are_kept_out_of_the_figures_and_counted(
    tmp_path: Path, import_files: Import
) -> None:
    path = run_pipeline(PipelinePlan(steps=1)).write(tmp_path)
    rows = [row for row in rows_of(path) if row["optype"] == "gc"]

    def more(table: pa.Table) -> pa.Table:
        added = [{**row, "optype": "expert-all-to-all"} for row in rows]
        return pa.concat_tables([table, pa.Table.from_pylist(added, table.schema)])

    rewrite(path, more)
    trace = imported(path, import_files)
    assert any(f"({len(rows)} expert-all-to-all)" in flag for flag in trace.manifest.flags)
    names = trace.spans.filter(pc.equal(trace.spans["phase"], "unknown"))["name"].to_pylist()
    assert names.count("expert-all-to-all") == names.count("gc") == len(rows)


def test_messages_that_do_not_match_are_reported_and_wait_for_nobody(
    tmp_path: Path, import_files: Import
) -> None:
    path = run_pipeline(PipelinePlan(steps=2)).write(tmp_path)

    def fewer(table: pa.Table) -> pa.Table:
        gone = pc.and_(pc.equal(table["optype"], "forward-send"), pc.equal(table["stage"], 1))
        gone = pc.and_(gone, pc.greater(table["seq_id"], 3))
        return table.filter(pc.invert(gone))

    rewrite(path, fewer)
    trace = imported(path, import_files)
    assert any("were not matched: stage 1 has 4" in flag for flag in trace.manifest.flags)
    sent = trace.collectives.filter(pc.is_in(trace.collectives["op"], pa.array(["send", "recv"])))
    assert set(sent["group_size"].to_pylist()) == {1}


def test_messages_match_although_ranks_collect_garbage_at_other_times(
    tmp_path: Path, import_files: Import
) -> None:
    path = run_pipeline(PipelinePlan(stages=2)).write(tmp_path)

    def without_most(table: pa.Table) -> pa.Table:
        elsewhere = pc.and_(pc.equal(table["optype"], "gc"), pc.not_equal(table["dp_rank"], 1))
        return table.filter(pc.invert(elsewhere))

    rewrite(path, without_most)
    (run,) = import_files(IMPORTER, path)
    assert not any("not matched" in flag for flag in run.flags)


def test_other_parquet_files_are_not_recognised(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"step": [1], "rank": [0], "value": [1.0]}), path)
    assert IMPORTER.recognises(read_head(path), path) == 0


# -- the published jobs ----------------------------------------------------------------------------


@needs_jobs
@pytest.mark.parametrize(("job", "ranks", "world"), [("ST", 8, 8), ("AR", 16, 64)])
def test_a_published_job_has_its_published_step_times(
    job: str, ranks: int, world: int, import_files: Import
) -> None:
    trace = imported(PUBLISHED / f"trace-{job}.parquet", import_files)
    expected = json.loads((PUBLISHED / f"result-{job}.json").read_text())["step_t_base"]
    view = build_overview(trace)
    assert (view.ranks_seen, view.world_size) == (ranks, world)
    assert len(view.selection.steps) == len(expected)
    mean_ns = 1e9 * sum(expected.values()) / len(expected)
    assert view.step_ns.value == pytest.approx(mean_ns, rel=1e-6)
    for row in trace.steps.to_pylist():
        length = (row["end_ns"] - row["start_ns"]) / 1e9
        assert length == pytest.approx(expected[str(row["step"])], rel=1e-6)


@needs_jobs
@pytest.mark.parametrize("job", ["ST", "AR"])
def test_a_published_job_can_be_replayed_from_its_run(job: str, import_files: Import) -> None:
    path = PUBLISHED / f"trace-{job}.parquet"
    check_replay(path, imported(path, import_files))


@needs_jobs
def test_a_job_of_120000_operations_is_imported_quickly(
    tmp_path: Path, import_files: Import
) -> None:
    operations = read_operations(PUBLISHED / "trace-AR.parquet")
    assert len(operations.kind) == 117_216
    begin = time.perf_counter()
    import_files(IMPORTER, PUBLISHED / "trace-AR.parquet")
    assert time.perf_counter() - begin < 3
