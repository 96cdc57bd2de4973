"""Logs of everyday training: Hugging Face, LLaMA-Factory, NeMo, and TensorBoard's events."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.cli import main
from profkit.importers.base import Target
from profkit.importers.logs.assemble import parse_log
from profkit.importers.logs.parsed import ParsedLog
from profkit.importers.training_log import IMPORTER
from profkit.trace import Trace

ENTRY = "{{'loss': {loss}, 'grad_norm': 1.0, 'learning_rate': 7.2e-06, 'epoch': {epoch}}}"


def only(lines: list[str]) -> ParsedLog:
    (log,) = parse_log(lambda: ["\n".join(lines).encode() + b"\n"], "train.log")
    return log


def bar(step: int, total: int, clock: str) -> str:
    return f" 10%|█         | {step}/{total} [{clock}<05:24,  6.07s/it]"


def test_a_progress_bar_gives_the_losses_of_hugging_face_their_steps_and_times() -> None:
    """Its evaluations are stated, so they are in no step; their own bar is no training."""
    lines = ["  Total train batch size (w. parallel, distributed & accumulation) = 8"]
    for step, clock in ((6, "00:36"), (12, "01:12")):
        lines.append(bar(step, 60, clock) + ENTRY.format(loss=2.9, epoch=0.1))
    lines += [bar(10, 10, "00:12"), "{'eval_loss': 2.4, 'eval_runtime': 12.0, 'epoch': 0.2}"]
    for step, clock in ((18, "02:00"), (24, "01:02:36")):
        lines += [bar(step, 60, clock), ENTRY.format(loss=2.8, epoch=0.3)]
    log = only(lines)
    assert log.grammar == "huggingface"
    assert [each.steps for each in log.records] == [6, 6, 6, 6]
    assert [each.step_s for each in log.records] == [6.0, 6.0, 6.0, (3756 - 120) / 6]
    assert {each.samples for each in log.records} == {8}


def state(*entries: Mapping[str, object]) -> str:
    history = [{"epoch": 0.1, "learning_rate": 1e-5, "loss": 2.0, "step": 500}, *entries]
    return json.dumps({"best_metric": None, "log_history": history, "max_steps": 1000}, indent=2)


def test_the_state_of_a_trainer_has_the_mean_of_its_steps_and_no_interval(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    whole = {"train_runtime": 262.0, "train_samples_per_second": 8000 / 262, "train_loss": 1.9}
    evaluation = {"eval_loss": 1.0, "eval_runtime": 12.0, "step": 1000}
    path.write_text(state(evaluation, {"epoch": 1.0, "step": 1000, **whole}))
    (made,) = IMPORTER.read([path], Target(tmp_path / "runs"))
    view = build_overview(Trace.open(made.run))
    assert view.step_ns.value == pytest.approx(0.25e9)
    assert view.step_ns.low is None
    assert view.throughput.value == pytest.approx(32)
    assert view.throughput.low is None


def test_a_state_without_times_says_what_to_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(state({"eval_loss": 1.0, "eval_runtime": 12.0, "step": 1000}))
    assert main(["import", str(path), "-o", str(tmp_path / "runs")]) == 3
    assert "import TensorBoard's events of the job" in capsys.readouterr().err


def test_the_elapsed_time_of_llama_factory_counts_where_its_clock_moves() -> None:
    lines = []
    for step, clock in ((5, "0:00:02"), (10, "0:00:02"), (15, "0:00:06"), (20, "1 day, 0:00:06")):
        lines.append(
            f'{{"current_steps": {step}, "total_steps": 20, "loss": 2.3, "eval_loss": null, '
            '"learning_rate": 1e-05, "epoch": 0.1, "percentage": 0.2, '
            f'"elapsed_time": "{clock}", "remaining_time": "0:00:09", "throughput": "812.10", '
            '"total_tokens": 5120}'
        )
    log = only(lines)
    assert log.grammar == "llama_factory"
    assert [(each.step, each.step_s) for each in log.records[1:]] == [(15, 0.4), (20, 86400 / 5)]


def test_a_step_of_nemo_is_in_its_progress_bar() -> None:
    lines = [
        f"Epoch 0: :  7%|▋ | {step}/100 [06:19<07:13, reduced_train_loss=11.50, "
        f"global_step={step - 1}.000, consumed_samples=12288.0, train_step_timing in s=4.50]"
        for step in range(7, 11)
    ]
    assert {each.step_s for each in only(lines).records} == {4.5}


def test_a_throughput_without_a_batch_asks_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, command = tmp_path / "train.log", ["import", "", "-o", str(tmp_path / "runs")]
    lines = [f"Epoch[0] Batch [{step}]\tSpeed: 16.0 samples/sec\tA=1" for step in (20, 40, 60)]
    path.write_text("\n".join(lines) + "\n")
    command[1] = str(path)
    assert main(command) == 3
    assert "give --samples-per-step" in capsys.readouterr().err
    assert main([*command, "--samples-per-step", "32"]) == 0


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def part(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def event(time_s: float, step: int, tag: str, value: float) -> bytes:
    scalar = part(1, part(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
    return b"\x09" + struct.pack("<d", time_s) + b"\x10" + varint(step) + part(5, scalar)


def event_file(*events: bytes) -> bytes:
    head = b"\x09" + struct.pack("<d", 1.7e9) + part(3, b"brain.Event:2")
    return b"".join(
        struct.pack("<Q", len(each)) + b"crc1" + each + b"crc2" for each in (head, *events)
    )


def test_events_of_tensorboard_are_steps_with_times(tmp_path: Path) -> None:
    """Epochs and evaluations have other steps; damage at the end costs the end alone."""
    events, time_s = [], 1.7e9
    for step in range(10, 210, 10):
        time_s += 5.0 if step % 50 else 8.0
        events.append(event(time_s, step, "train/loss", 2.0))
        events.append(event(time_s + 0.1, step, "train/learning_rate", 1e-5))
        if not step % 50:
            events.append(event(time_s + 0.2, step // 50, "eval/loss", 2.0))
            events.append(event(time_s + 0.2, step // 50, "epoch", 1.0))
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(event_file(*events) + b"\x40\0\0\0\0\0\0\0crc1\x09cut")
    (made,) = IMPORTER.read([path], Target(tmp_path / "runs"))
    trace = Trace.open(made.run)
    assert trace.manifest.config["log_grammar"] == "tensorboard"
    steps = trace.steps.select(["start_ns", "end_ns"]).to_pylist()
    assert len(steps) == 190
    assert (steps[-1]["end_ns"] - steps[0]["start_ns"]) / 1e9 == pytest.approx(19 * 5 + 4 * 3)


def test_events_without_a_training_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(event_file(event(1.7e9, 1, "eval/loss", 2.0)))
    assert main(["import", str(path), "-o", str(tmp_path / "runs")]) == 3
    assert "TensorBoard's events without numbers of a training" in capsys.readouterr().err


def test_a_bar_of_a_test_is_no_training() -> None:
    lines = [f"Step 0 - TTA Loss: 0.65━━━━━━━ {place}/203 0:00:00 • 0.50it/s" for place in range(9)]
    lines += [
        f"Weights: tensor([[0.4]]) {place}/203 0:00:04 • 0:01:59 1.66it/s" for place in range(9)
    ]
    assert not parse_log(lambda: ["\n".join(lines).encode()], "output.log")


def test_a_step_and_a_loss_with_the_time_of_day_are_enough() -> None:
    """Whole seconds: lines of one moment are one record, about the steps of all of them."""
    lines = []
    for step, clock in ((10, "10:00:00"), (20, "10:00:02"), (30, "10:00:02"), (40, "10:00:08")):
        lines.append(f"2024-03-05 {clock} - INFO - iter {step}, loss: 0.5607, lr: 1e-4")
        lines.append(f"2024-03-05 {clock} - INFO - val iter {step}, loss: 0.6")
    log = only(lines)
    assert log.grammar == "timestamps"
    assert [(each.step, each.steps, each.step_s) for each in log.records] == [
        (20, 10, 0.2),
        (40, 20, 0.3),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_damaged_events_are_one_line_or_a_run(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = random.Random(seed)
    whole = event_file(*(event(1.7e9 + 5 * step, step, "loss", 2.0) for step in range(40)))
    data = bytearray(whole)
    for _ in range(dice.choice((1, 5, 200))):
        data[dice.randrange(50, len(data))] = dice.randrange(256)
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(data[: dice.randrange(60, len(data))] if seed % 2 else data)
    code = main(["import", str(path), "-o", str(tmp_path / "runs")])
    assert code in (0, 3)
    assert capsys.readouterr().err.count("\n") == (code == 3)
