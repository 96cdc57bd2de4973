"""Runs without steps: what `report` shows of them, and the command that `import` advises."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.hangs.status import FOLDER
from profkit.importers.reading.collective_rows import NO_STEPS
from profkit.trace import Trace
from tests.importers.conftest import two_steps, write_trace
from tests.importers.logs.samples import SAMPLES
from tests.importers.test_collectives import dump_of_gloo, entry, line, write_lines


def bring_in(path: Path) -> int:
    return main(["import", str(path), "-o", str(path.parent / "traces")])


def write_marks(path: Path) -> None:
    path.write_bytes(b"AI-Rank-log 1621335959.198982 avg_ips:76.19images/sec\n")


def write_finished(path: Path) -> None:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    made = {"version": "2.10", "pg_config": groups, "entries": [entry(0), entry(1)]}
    path.write_text(json.dumps(made))


SMALLEST: dict[str, tuple[str, Callable[[Path], object]]] = {
    "kineto": ("rank0.json", lambda path: write_trace(path, two_steps())),
    "training_log": ("job.log", lambda path: path.write_bytes(SAMPLES["mmcv"].data)),
    "marks alone": ("marks.log", write_marks),
    "nccl_inspector": ("host-pid7.log", lambda path: write_lines(path, [line(0, 0, 5.0)])),
    "flight_recorder": ("nccl_trace_rank_0", write_finished),
    "gloo": ("gloo_rank_0", lambda p: p.write_text(json.dumps(dump_of_gloo(3, retired=True)))),
}


@pytest.mark.parametrize("name", SMALLEST)
def test_the_advised_command_works(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, write = SMALLEST[name]
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / file)
    assert bring_in(tmp_path / "in" / file) == ExitCode.DONE
    (advised,) = [
        text.split("profkit ", 1)[1]
        for text in capsys.readouterr().out.splitlines()
        if text.startswith("  next ")
    ]
    assert main(shlex.split(advised)) == ExitCode.DONE
    (run,) = (tmp_path / "in" / "traces").iterdir()
    for form in ([], ["--json"], ["--format", "markdown"], ["--format", "html"]):
        assert main(["report", str(run), *form]) == ExitCode.DONE
    assert advised.startswith("why" if (run / FOLDER).is_dir() else "report")


def test_a_report_without_steps_shows_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "host-pid7.log"
    write_lines(path, [line(rank, number, 5.0) for rank in range(2) for number in range(3)])
    assert bring_in(path) == ExitCode.DONE
    run = tmp_path / "traces" / "host-pid7"
    capsys.readouterr()
    assert main(["report", str(run), "--json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    (collective,) = found["collective_calls"]
    assert (collective["op"], collective["ranks"], collective["calls"]) == ("all_reduce", 2, 6)
    assert (collective["bytes_per_call"], found["verdict"]) == (65536, "cannot judge")
    assert main(["report", str(run)]) == ExitCode.DONE
    text = " ".join(capsys.readouterr().out.split())
    assert "no steps: the source has collectives and no steps" in text
    assert "0x7f all_reduce nccl 2 of 2 6" in text
    assert " ".join(NO_STEPS.split()) in text


def test_results_of_a_log_without_steps_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_marks(tmp_path / "marks.log")
    assert bring_in(tmp_path / "marks.log") == ExitCode.DONE
    assert main(["report", str(tmp_path / "traces" / "marks")]) == ExitCode.DONE
    text = capsys.readouterr().out
    assert "no steps: the source has results and no steps" in " ".join(text.split())
    assert "76.19" in text


def test_steps_that_are_lost_are_no_steps_that_never_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(tmp_path / "rank0.json", two_steps())
    assert bring_in(tmp_path / "rank0.json") == ExitCode.DONE
    (run,) = (tmp_path / "traces").iterdir()
    (run / "r00000" / "steps.arrows").unlink()
    assert not Trace.open(run).steps.num_rows
    assert main(["report", str(run)]) == ExitCode.UNREADABLE
    assert "profkit verify" in capsys.readouterr().err


def test_calls_of_inspector_have_times_and_a_bandwidth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A newer version states the algorithm and the protocol as well."""
    more = {"coll_algo": "RING", "coll_proto": "LL128"}
    lines = [line(rank, number, 40.0 + 20 * rank, **more) for number in (1, 2) for rank in (0, 1)]
    write_lines(tmp_path / "host-pid7.log", lines)
    assert bring_in(tmp_path / "host-pid7.log") == ExitCode.DONE
    (run,) = (tmp_path / "traces").iterdir()
    capsys.readouterr()
    assert main(["report", str(run), "--json"]) == ExitCode.DONE
    (calls,) = json.loads(capsys.readouterr().out)["collective_calls"]
    assert calls["ns_per_call"] == 50_000
    assert calls["bus_bytes_per_s"] == pytest.approx(65536 / 50e-6)


def test_times_that_nobody_measured_are_none_of_the_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_finished(tmp_path / "nccl_trace_rank_0")
    assert bring_in(tmp_path / "nccl_trace_rank_0") == ExitCode.DONE
    (run,) = (tmp_path / "traces").iterdir()
    measured = not Trace.open(run).manifest.config.get("unmeasured_calls")
    capsys.readouterr()
    assert main(["report", str(run), "--json"]) == ExitCode.DONE
    for calls in json.loads(capsys.readouterr().out)["collective_calls"]:
        assert (calls["ns_per_call"] is not None) == measured
