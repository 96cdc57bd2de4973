"""Logs of jobs whose model is split among ranks: figures per rank, and of the whole job."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow.compute as pc
import pytest

from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain
from profkit.frame.run_frame import frame_of
from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from profkit.report.ledger_document import explained
from profkit.show import text as show_text
from profkit.trace import Trace
from tests.documents import report_text
from tests.importers.logs.samples import BATCH, SAMPLES, STEP_S

SPLIT = "using world size: 8, data-parallel size: 2"
WHOLE = "using world size: 8, data-parallel size: 8"


@pytest.fixture
def split(tmp_path: Path) -> Trace:
    return imported(tmp_path, "split", SAMPLES["megatron"].text)


def imported(folder: Path, name: str, text: str) -> Trace:
    path = folder / f"{name}.log"
    path.write_text(text)
    (made,) = IMPORTER.read([path], Target(folder / "traces"))
    return Trace.open(made.run)


def test_the_throughput_is_that_of_all_ranks(split: Trace) -> None:
    view = build_overview(split)
    assert view.throughput.value == pytest.approx(BATCH / STEP_S, rel=1e-3)
    text = report_text(view)
    assert "80.00 samples/s" in text
    assert "of all 8 ranks" in text
    assert "10.00 samples/s" in text  # of one rank
    assert "8 ranks (dp 2 x tp 2 x pp 2)" in text
    assert "the log is of one rank; it has only the timers of the other 7" in text


def test_costs_are_those_of_the_ranks_that_share_a_sample(split: Trace) -> None:
    costs = frame_of(split).costs
    assert costs.ranks == 4
    per_rank = costs.wall_ns.sum() / costs.steps / costs.ranks
    assert per_rank == pytest.approx(STEP_S * 1e9, rel=1e-3)
    assert costs.wall_ns.sum() / costs.samples.sum() == pytest.approx(
        8 * STEP_S * 1e9 / BATCH, rel=1e-3
    )


def test_another_split_of_the_same_job_takes_as_long_per_sample(
    split: Trace, tmp_path: Path
) -> None:
    text = SAMPLES["megatron"].text
    assert SPLIT in text
    whole = imported(tmp_path, "whole", text.replace(SPLIT, WHOLE))
    view = explain(split, whole)
    assert view.ledger.change.value == pytest.approx(0, abs=1e-3)
    document = " ".join(show_text.document(explained(view, ())).split())
    assert document.count("80.00 samples/s") == 2
    assert "took no time" not in document
    assert "too few lines of a log state different times" in document


def test_nested_timers_are_in_no_row(split: Trace) -> None:
    assert split.spans.num_rows == 0
    text = report_text(build_overview(split))
    assert "timer forward-backward 599 ms (the slowest rank, 380.1 the fastest" in text
    assert "timers may contain each other" in text


def test_the_launchers_number_of_ranks_is_that_of_the_job(tmp_path: Path) -> None:
    """DeepSpeed's configuration states the data-parallel ranks as `world_size`."""
    launched = "[2026-01-01 12:00:00,000] [INFO] [launch.py:164:main] dist_world_size=8\n"
    trace = imported(tmp_path, "launched", launched + SAMPLES["deepspeed"].text)
    config = trace.manifest.config
    assert (trace.manifest.world_size, config["rows_speak_for_ranks"]) == (8, 4)
    assert config["parallel"] == {"dp": 4}
    text = report_text(build_overview(trace))
    assert "of all 8 ranks" in text
    assert "or more" not in text


def test_a_log_that_states_the_data_parallel_ranks_alone_does_not_state_all(
    tmp_path: Path,
) -> None:
    trace = imported(tmp_path, "configured", SAMPLES["deepspeed"].text)
    assert trace.manifest.config["rows_speak_for_ranks"] == 4
    text = report_text(build_overview(trace))
    assert "of all 4 or more ranks" in " ".join(text.split())
    assert "the log counts all ranks" not in text  # the figure of one rank
    flags = trace.manifest.flags
    assert any(flag.startswith("the log states 4 data-parallel ranks") for flag in flags)
    launched = "[2026-01-01 12:00:00,000] [INFO] [launch.py:164:main] dist_world_size=8\n"
    whole = imported(tmp_path, "launched", launched + SAMPLES["deepspeed"].text)
    document = show_text.document(explained(explain(whole, trace), ()))
    assert "configured does not state its number of ranks" in document


@pytest.mark.parametrize("hierarchical", ["None", "[2, 4]", "None, "])
def test_the_dimensions_are_read_without_a_comma(tmp_path: Path, hierarchical: str) -> None:
    """Some releases of Megatron forget one between two sizes."""
    world = (
        "using world size: 8, data-parallel size: 2, context-parallel size: 1, hierarchical "
        f"context-parallel sizes: {hierarchical}tensor-model-parallel size: 4, "
        "encoder-tensor-model-parallel size: 0, pipeline-model-parallel size: 1, "
        "encoder-pipeline-model-parallel size: 0"
    )
    lines = SAMPLES["megatron"].text.splitlines()
    trace = imported(tmp_path, "world", "\n".join([world, *lines[1:]]))
    assert trace.manifest.config["parallel"] == {"dp": 2, "tp": 4, "pp": 1}


def test_the_dimensions_are_read_from_the_arguments(tmp_path: Path) -> None:
    arguments = (
        SPLIT,
        "  tensor_model_parallel_size ...................... 2",
        "  pipeline_model_parallel_size .................... 2",
    )
    lines = SAMPLES["megatron"].text.splitlines()
    trace = imported(tmp_path, "arguments", "\n".join([*arguments, *lines[1:]]))
    assert trace.manifest.config["parallel"] == {"dp": 2, "tp": 2, "pp": 2}


def test_the_longest_times_of_all_ranks_are_of_other_ranks_as_well(tmp_path: Path) -> None:
    """With `--timing-log-option max`, Megatron prints the slowest rank's time alone."""
    text = SAMPLES["megatron"].text.replace("(min, max) time", "max time")
    text = re.sub(r"\([\d.]+, ([\d.]+)\)$", r"\1", text, flags=re.MULTILINE)
    shown = report_text(build_overview(imported(tmp_path, "longest", text)))
    assert "timer forward-backward 599 ms (the slowest rank; the last line" in shown
    assert "it has only the timers of the other 7" in shown


@pytest.mark.parametrize(
    ("stated", "dimension"),
    [
        ("context-parallel size: 2, hierarchical context-parallel sizes: None", "cp"),
        ("sequence-parallel size: 2", "sp"),
    ],
)
def test_ranks_that_split_a_sequence_are_a_dimension(
    stated: str, dimension: str, tmp_path: Path
) -> None:
    """Without it the sizes of the others do not make the number of ranks, and none is shown."""
    world = (
        f"using world size: 16, data-parallel size: 2, {stated}, tensor-model-parallel size: 2, "
        "pipeline-model-parallel size: 2"
    )
    lines = SAMPLES["megatron"].text.splitlines()
    trace = imported(tmp_path, "sequence", "\n".join([world, *lines[1:]]))
    assert trace.manifest.config["parallel"] == {"dp": 2, dimension: 2, "tp": 2, "pp": 2}
    text = report_text(build_overview(trace))
    assert f"16 ranks (dp 2 x {dimension} 2 x tp 2 x pp 2)" in text


def test_a_checkpoint_counts_as_other_if_the_log_has_no_wait_for_data(tmp_path: Path) -> None:
    """A line of DeepSpeed includes what passed since the line before, so a checkpoint as well."""
    lines, late = [], 0.0
    begin = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    for step in range(10, 310, 10):
        late += 20.0 if step == 160 else 0.0
        when = begin + timedelta(seconds=step * 0.5 + late)
        stamp = f"[{when:%Y-%m-%d %H:%M:%S},000] [INFO] [logging.py:96:log_dist] [Rank 0]"
        lines.append(f"{stamp} step={step}, skipped=0, lr=[0.001], mom=[(0.9, 0.95)]")
        if step == 150:
            lines.append(f"{stamp} Saving model checkpoint: out/model_states.pt")
    trace = imported(tmp_path, "saves", "\n".join(lines) + "\n")
    others = trace.spans.filter(pc.equal(trace.spans["phase"], "other"))
    total = pc.sum(pc.subtract(others["end_ns"], others["start_ns"])).as_py()
    assert total == pytest.approx(20e9, rel=0.01)
    assert "other" in {each.name for each in build_overview(trace).phases}


def timers(count: int, *, before: str = "") -> str:
    """Return Megatron's log with more timers, the longest of which come first."""
    lines = []
    for line in SAMPLES["megatron"].text.splitlines():
        lines.append(line)
        if "across ranks" in line:
            lines.append(before)
            for number in range(count - 3):
                lines.append(f"    inner-{number} ......: ({300 - number}.00, {350 - number}.00)")
    return "\n".join(lines)


def test_every_timer_is_kept_and_the_longest_are_shown(tmp_path: Path) -> None:
    """Megatron prints more than 20 of them, and the one that contains the others first."""
    trace = imported(tmp_path, "timed", timers(24))
    stated = [each["what"] for each in trace.manifest.config["stated"]]
    assert len(stated) == len(set(stated)) == 24
    assert "timer forward-backward" in stated
    text = report_text(build_overview(trace))
    assert "timer forward-backward 599 ms" in text
    assert "timer inner-0 350 ms" in text
    assert "timer optimizer" not in text
    assert "20 more results in --json" in text


def test_timers_and_results_that_are_not_kept_are_counted(tmp_path: Path) -> None:
    trace = imported(tmp_path, "many", timers(70))
    assert len(trace.manifest.config["stated"]) == 60
    assert any("a timer beyond the first 60" in flag for flag in trace.manifest.flags)
    speeds = SAMPLES["deepspeed"].text
    trace = imported(tmp_path, "speeds", speeds)
    config = trace.manifest.config
    kept = [each["what"] for each in config["stated"]]
    assert "timer fwd" in kept
    left = speeds.count("RunningAvgSamplesPerSec") - 20
    if left > 0:
        assert kept.count("throughput") == 20
        assert f"{left:,} results that the log states before the last 20" in trace.manifest.notes
