"""MLPerf's logs: windows between marks, what the log states of them, and the system beside them."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.analysis.repeats import group_repeats
from profkit.cli import main
from profkit.explain.explained import explain
from profkit.importers.base import Target
from profkit.importers.logs.assemble import parse_log
from profkit.importers.logs.parsed import ParsedLog
from profkit.importers.training_log import IMPORTER
from profkit.trace import Trace
from tests.importers.logs.samples import BATCH, SAMPLES, STEP_S, mark

TEXT = SAMPLES["mlperf"].text
SYSTEM = {
    "number_of_nodes": "2",
    "accelerators_per_node": "8",
    "accelerator_model_name": "NVIDIA B200",
    "host_networking": "8x 400Gb/s",
    "other_software_stack": {"nccl_version": "2.28.3"},
}


def only(lines: list[str]) -> ParsedLog:
    (log,) = parse_log(lambda: ["\n".join(lines).encode() + b"\n"], "result_0.txt")
    return log


def head(batch: int = BATCH, **counts: object) -> list[str]:
    facts = [mark(0.5, name, value) for name, value in counts.items()]
    return [mark(0.5, "global_batch_size", batch), *facts, mark(1000, "run_start")]


def test_the_run_is_closed() -> None:
    (log,) = parse_log(lambda: [TEXT.encode()], "result_0.txt")
    stated = {each.what: each.value for each in log.stated}
    assert stated["time of training"] == pytest.approx(200 * STEP_S, abs=0.1)
    assert stated["time of evaluations"] == pytest.approx(60)
    assert stated["time of neither"] == pytest.approx(0, abs=0.01)
    assert stated["time of the run"] == pytest.approx(200 * STEP_S + 60, abs=0.1)


def test_an_evaluation_beside_training_is_counted_once() -> None:
    lines = [*head(train_samples=1000), mark(1000, "epoch_start", epoch_num=1)]
    lines += [mark(1010, "epoch_stop", epoch_num=1), mark(1010, "eval_start", epoch_num=1)]
    lines += [mark(1012, "epoch_start", epoch_num=2), mark(1015, "eval_stop", epoch_num=1)]
    lines += [mark(1022, "epoch_stop", epoch_num=2), mark(1023, "run_stop")]
    log = only(lines)
    stated = {each.what: each for each in log.stated}
    assert stated["time of training"].value == 20
    assert stated["time of evaluations"].value == 5
    assert "3 s of it ran beside training" in stated["time of evaluations"].how
    assert stated["time of neither"].value == 1
    assert log.mean_throughput == pytest.approx(100)


def test_a_stated_throughput_counts_rather_than_the_clock() -> None:
    lines = head()
    for start in (1000, 1020):
        lines += [mark(start, "block_start"), mark(start + 10, "tracked_stats", {"throughput": 81})]
        done = 800 * (1 + (start > 1000))
        lines += [mark(start + 10, "eval_start", samples_count=done), mark(start + 15, "eval_stop")]
    log = only(lines)
    assert log.mean_throughput == pytest.approx(81)
    assert [each.steps for each in log.records] == [20, 20]


def test_evaluations_in_a_stated_throughput_are_another_part_of_the_steps() -> None:
    lines = [*head(train_samples=8000), mark(1000, "epoch_start", epoch_num=0)]
    for place in (1, 2, 3):
        lines.append(mark(998 + place * 12, "eval_start", epoch_num=place / 10))
        lines.append(mark(1000 + place * 12, "eval_stop", epoch_num=place / 10))
    lines.append(mark(1036, "run_stop", epoch_num=0.3))
    log = only([*lines, mark(1036, "tracked_stats", {"throughput": 2400 / 36})])
    assert log.mean_throughput == pytest.approx(2400 / 36)
    assert sum((each.other_s or 0) * each.steps for each in log.records) == pytest.approx(6)


def test_mean_step_times_count_their_steps_and_not_their_samples() -> None:
    steps = head(64) + [
        mark(1000 + 10 * place, "tracked_stats", {"train_step_time": 0.5}, step=20.0 * place - 1)
        for place in (1, 2, 3)
    ]
    assert [each.steps for each in only(steps).records] == [20, 20, 20]
    samples = head(64) + [
        mark(1000 + 0.5 * place, "tracked_stats", {"train_step_time": 0.5}, step=64.0 * place)
        for place in (1, 2, 3)
    ]
    assert [each.steps for each in only(samples).records] == [1, 1, 1]


def test_the_oldest_marks_are_read() -> None:
    lines = [":::MLPv0.5.0 resnet 1541710000.0 (a.py:1) preproc_num_train_examples: 1000"]
    lines.append(":::MLPv0.5.0 resnet 1541710000.0 (a.py:1) input_batch_size: 10")
    lines.append(":::MLPv0.5.0 resnet 1541710001.0 (a.py:1) run_start")
    for epoch in range(4):
        lines.append(
            f":::MLPv0.5.0 resnet {1541710010 + 20 * epoch}.0 (a.py:1) train_epoch: {epoch}"
        )
    log = only(lines)
    assert log.mean_throughput == pytest.approx(50)
    assert [each.steps for each in log.records] == [100, 100, 100]


def test_ranks_that_split_a_model_share_its_samples() -> None:
    (log,) = parse_log(lambda: [TEXT.encode()], "result_0.txt", cards=80)
    assert (log.metadata.world_size, log.metadata.data_ranks) == (80, BATCH)


def make_results(folder: Path, count: int) -> list[Path]:
    """Write a folder of repeats as the results of MLPerf have it, one of them compressed."""
    (folder / "systems").mkdir(parents=True)
    (folder / "systems" / "2xB200.json").write_text(json.dumps(SYSTEM))
    bench = folder / "results" / "2xB200" / "bert"
    bench.mkdir(parents=True)
    (bench / "result_0.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    for place in range(1, count):
        (bench / f"result_{place}.txt").write_text(TEXT)
    return sorted(bench.iterdir())


def test_the_system_beside_the_log_is_the_runs_environment(tmp_path: Path) -> None:
    logs = make_results(tmp_path / "results", 2)
    made = [Trace.open(each.run) for each in IMPORTER.read(logs, Target(tmp_path / "traces"))]
    environment = made[0].manifest.environment
    assert environment["gpu_models"] == ["NVIDIA B200"]
    assert environment["network"] == "8x 400Gb/s"
    assert environment["versions"] == {"nccl_version": "2.28.3"}
    assert made[0].manifest.world_size == 16
    view = build_overview(made[0])
    assert view.throughput.value == pytest.approx(BATCH / STEP_S, rel=1e-3)


def test_two_systems_differ_in_their_devices_first(tmp_path: Path) -> None:
    sides = []
    for name in ("B200", "H100"):
        (log,) = make_results(tmp_path / name, 1)
        system = {**SYSTEM, "accelerator_model_name": name, "host_processor_model_name": name}
        (tmp_path / name / "systems" / "2xB200.json").write_text(json.dumps(system))
        (made,) = IMPORTER.read([log], Target(tmp_path / "traces"))
        sides.append(Trace.open(made.run))
    found = explain(sides[0], sides[1])
    assert not any("states its device" in caveat for caveat in found.caveats)
    assert [each.name for each in found.ledger.differences][:1] == ["gpu_models"]


def test_a_folder_of_repeats_is_a_group_of_repeats(tmp_path: Path) -> None:
    logs = make_results(tmp_path / "results", 3)
    made = [Trace.open(each.run) for each in IMPORTER.read(logs, Target(tmp_path / "traces"))]
    assert [len(group) for group in group_repeats(made)] == [3]


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_log_is_one_line_or_a_run(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    dice, data = random.Random(seed), bytearray(TEXT.encode())
    for _ in range(dice.choice((1, 30, 3000))):
        place = dice.randrange(len(data))
        kind = dice.randrange(3)
        if kind == 0:
            data[place] = dice.randrange(256)
        elif kind == 1:
            del data[place : place + dice.randrange(200)]
        else:
            data[place:place] = dice.choice((b"[" * 300, b"1e999", b"-", b'"', b"\0", b"9" * 400))
    path = tmp_path / "result_0.txt"
    path.write_bytes(data[: dice.randrange(len(data))] if seed % 2 else data)
    code = main(["import", str(path), "-o", str(tmp_path / "traces")])
    shown = capsys.readouterr()
    assert code in (0, 3)
    assert shown.err.count("\n") == (code == 3)


def cut(text: str, word: str) -> str:
    return "\n".join(line for line in text.splitlines() if word not in line) + "\n"


REFUSED, READ = 3, 0
DAMAGED = {
    "empty": (b"", REFUSED, ""),
    "an empty archive": (gzip.compress(b""), REFUSED, ""),
    "half an archive": (gzip.compress(TEXT.encode())[:-30], READ, ""),
    "a broken archive": (b"\x1f\x8b\x08" + b"\xff" * 90, REFUSED, "damaged gzip"),
    "another coding": (TEXT.encode("utf-16"), REFUSED, ""),
    "no run_start": (cut(TEXT, '"run_start"').encode(), REFUSED, "MLPerf"),
    "no batch": (cut(TEXT, "global_batch_size").encode(), REFUSED, "MLPerf"),
    "no run_stop": (cut(TEXT, '"run_stop"').encode(), READ, ""),
    "no evaluations": (cut(TEXT, '"eval_').encode(), REFUSED, "a figure needs two"),
    "no ends of evaluations": (cut(TEXT, '"eval_stop"').encode(), READ, ""),
    "half of the lines": ("\n".join(TEXT.splitlines()[::2]).encode(), REFUSED, ""),
    "cut in a mark": (TEXT.encode()[: len(TEXT) // 2], READ, ""),
    "marks without ends": (TEXT.replace("}\n", "\n").encode(), REFUSED, ""),
    "no times": (TEXT.replace("time_ms", "time").encode(), REFUSED, ""),
    "times as text": (TEXT.replace('"time_ms": ', '"time_ms": "x').encode(), REFUSED, ""),
    "times that are infinite": (
        re.sub(r'"time_ms": \d+', '"time_ms": 1e999', TEXT).encode(),
        REFUSED,
        "",
    ),
    "one time for all": (
        re.sub(r'"time_ms": \d+', '"time_ms": 1700000000000', TEXT).encode(),
        REFUSED,
        "",
    ),
    "in reverse": ("\n".join(TEXT.splitlines()[::-1]).encode(), REFUSED, ""),
    "twice": ((TEXT + TEXT).encode(), READ, ""),
    "ends of lines of Windows": (TEXT.replace("\n", "\r\n").encode(), READ, ""),
    "zeros between": (TEXT.replace("\n", "\n\0\0\0").encode(), READ, ""),
    "a batch of nothing": (
        re.sub(
            r'"global_batch_size", "value": \d+', '"global_batch_size", "value": 0', TEXT
        ).encode(),
        REFUSED,
        "",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_each_damage_is_one_line_and_its_exit_code(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content, code, words = DAMAGED[name]
    path = tmp_path / "result_0.txt"
    path.write_bytes(content)
    assert main(["import", str(path), "-o", str(tmp_path / "traces")]) == code
    shown = capsys.readouterr().err
    assert shown.count("\n") == (code == REFUSED)
    assert words in shown
