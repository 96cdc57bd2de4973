"""Snapshots of PyTorch's memory: ledgers that close to the byte, and files that are refused."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.memory.classify import Row
from profkit.analysis.memory.ledger import (
    MEMORY_FILE,
    NO_MODULE,
    REMEDY,
    MemoryLedger,
    build_ledger,
)
from profkit.analysis.memory.predict import Sizes, find_sizes, predict_peak
from profkit.analysis.memory.snapshot import read_snapshot
from profkit.cli import main
from profkit.errors import ExitCode
from tests.importers.conftest import DATA
from tests.memory_snapshots import BACKWARD, MB, MODULE, TORCH, Allocator, train

REAL = sorted(DATA.glob("memory/*.pickle"))
PARAMETERS = [3 * MB, 700_000, 4_100_000, 2_048, 9 * MB + 12, 700_000]


def ledger_of(content: Any) -> MemoryLedger:
    """Return the ledger of a snapshot's only device, which has to close to the byte."""
    (memory,) = read_snapshot(content)
    ledger = build_ledger(memory)
    assert sum(each.bytes for each in ledger.rows) == ledger.reserved
    assert sum(each.bytes for each in ledger.modules) == ledger.bytes_of(Row.ACTIVATIONS)
    assert all(each.how for each in ledger.modules)
    assert (ledger.misfits, ledger.unlike) == (0, 0)
    return ledger


def held(ledger: MemoryLedger) -> dict[str, int]:
    return {each.row.name.lower(): each.bytes for each in ledger.rows if each.bytes}


def trained(steps: int = 2, factor: int = 1) -> Allocator:
    allocator = Allocator()
    train(allocator, [factor * size for size in PARAMETERS], steps)
    return allocator


@pytest.mark.skipif(not REAL, reason="no snapshots in ../shared/data/memory")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_a_real_snapshot_closes_to_the_byte(path: Path) -> None:
    content = pickle.loads(path.read_bytes())
    ledger = ledger_of(content)
    rows = held(ledger)
    # 24 layers of width 1,024 with 10,000 words, in fp32 (CS 336, "medium").
    model = 4 * (24 * (4 * 1_024**2 + 3 * 4_096 * 1_024 + 2 * 1_024) + 2 * 10_000 * 1_024 + 1_024)
    if "inference" in path.stem:
        assert rows["older"] == pytest.approx(model, rel=0.01)
        assert "parameters" not in rows
    else:
        assert rows["parameters"] == pytest.approx(model, rel=0.01)
        replaced = 84_869_120 * ("128" in path.stem)  # two tensors, while a step replaces them
        assert rows["optimizer"] - replaced == pytest.approx(2 * model, rel=0.01)
        assert rows["older"] + rows["other"] < 0.001 * ledger.reserved
    if "512_training" in path.stem:
        # Each layer's softmax keeps one matrix of 16 heads, 512 x 512, for each of 4 sequences.
        lines = {each.line: each.bytes for each in ledger.lines}
        softmax = 24 * 4 * 16 * 512**2 * 4
        assert lines["cs336_basics/nn_utils.py:6 softmax"] == softmax
        largest = ledger.modules[0]
        place = "cs336_basics/model.py:{} forward"
        assert (largest.line, largest.outer) == (place.format(520), place.format(382))
        assert largest.bytes > softmax  # of attention's forward, which calls it


def test_a_module_is_the_innermost_forward_that_a_module_called() -> None:
    """Not one inside torch's modules, unless there are only these, nor a function's forward."""
    call, job = (f"{TORCH}nn/modules/module.py", "_call_impl"), "/home/alice/job/net.py"
    linear = [(f"{TORCH}nn/modules/linear.py", "forward"), call]
    own: list[Any] = [
        (job, "Scale.forward"),
        *linear,
        (job, "Block.forward", 8),
        call,
        (job, "main"),
    ]
    cases: list[tuple[Any, str, str]] = [
        (own, "job/net.py:8 Block.forward", ""),
        ([*linear, call, (job, "Net.forward", 9), call], "job/net.py:9 Net.forward", ""),
        (
            [*own[:-1], (job, "Net.forward", 9), call],
            "job/net.py:8 Block.forward",
            "job/net.py:9 Net.forward",
        ),
        ([*linear, (job, "main")], "modules/linear.py:7 forward", ""),
        ([(job, "softmax"), (job, "main")], NO_MODULE, ""),
    ]
    for frames, module, inside in cases:
        allocator = Allocator()
        at = allocator.malloc(5 * MB, "", frames)
        allocator.release(allocator.malloc(MB, "", BACKWARD), BACKWARD)
        allocator.release(at, BACKWARD)
        (found,) = ledger_of(allocator.snapshot()).modules
        assert (found.line, found.outer) == (module, inside)


@pytest.mark.parametrize("seed", range(12))
def test_sizes_and_the_peak_are_those_of_the_allocator(seed: int) -> None:
    """Also if the oldest events are lost, as in a ring buffer."""
    chance = random.Random(seed)
    allocator = Allocator(history=chance.choice([150, 400, 10**9]))
    blocks: list[int] = []
    for _ in range(300):
        if blocks and chance.random() < 0.47:
            allocator.release(blocks.pop(chance.randrange(len(blocks))))
        else:
            blocks.append(allocator.malloc(int(2 ** chance.uniform(3, 25)), "any"))
        if chance.random() < 0.02:
            allocator.empty_cache()
    ledger, truth = ledger_of(allocator.snapshot()), allocator.peak()
    assert ledger.allocated <= truth.purposes["any"] <= ledger.allocated + ledger.doubt
    if allocator.history > 1_000:
        rows = held(ledger)
        assert (ledger.allocated, ledger.reserved) == (truth.purposes["any"], truth.reserved)
        assert (rows.get("holes", 0), rows.get("free", 0)) == (truth.holes, truth.free)


@pytest.mark.parametrize("cpp", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_training_is_divided_as_it_took_its_memory(steps: int, cpp: bool) -> None:
    """With stacks of C++, and without: then the engine's thread has none."""
    allocator = Allocator()
    for size in PARAMETERS:  # the average of the weights is no state of the optimizer
        allocator.malloc(size, "other", [("/home/alice/job/train.py", "average")])
    train(allocator, PARAMETERS, steps, cpp=cpp)
    truth = allocator.peak()
    expected = truth.purposes + Counter(holes=truth.holes, free=truth.free)
    assert held(ledger_of(allocator.snapshot())) == expected


def test_blocks_from_before_the_recording_are_told_by_the_gradients_sizes() -> None:
    allocator = trained(3)
    whole = ledger_of(allocator.snapshot())
    allocator.history = len(allocator.events) * 2 // 3 - 60
    ledger = ledger_of(allocator.snapshot())
    assert held(ledger).keys() == held(whole).keys()
    for name, count in held(whole).items():  # tensors of one size may have blocks of two
        assert held(ledger)[name] == pytest.approx(count, rel=0.01)
    assert (ledger.allocated, ledger.reserved) == (whole.allocated, whole.reserved)
    assert [each.how for each in ledger.rows if each.row.name == "PARAMETERS"] == ["sizes"]


def test_without_gradients_nothing_old_is_called_parameters() -> None:
    allocator = Allocator()
    for size in PARAMETERS:
        allocator.malloc(size, "older")
    allocator.events.clear()
    for size in PARAMETERS:
        allocator.release(allocator.malloc(size, "forward", MODULE), MODULE)
    assert held(ledger_of(allocator.snapshot())).keys() == {"older", "forward", "holes", "free"}
    allocator.events.clear()
    assert held(ledger_of(allocator.snapshot()))["older"] >= sum(PARAMETERS)


def test_a_failed_allocation_shows_what_was_held_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allocator = trained()
    allocator.malloc(5 * MB, "activations", MODULE)
    allocator.malloc(6 * MB, "unfinished", BACKWARD)
    allocator.fail(2_000_000_000, 123_000_000, BACKWARD)
    rows = held(ledger_of(allocator.snapshot()))
    assert (rows["unfinished"], rows["activations"]) == (6 * MB, 5 * MB)
    run = bring_in(tmp_path, "failed", allocator.snapshot())
    assert main(["report", run]) == ExitCode.DONE
    text = " ".join(capsys.readouterr().out.split())
    assert "when 2.00 GB more failed" in text
    assert "The device had 123 MB free." in text


@pytest.mark.parametrize("lengths", [(1, 2), (2, 1), (2, 4), (1, 4)])
def test_the_peak_of_another_size_is_predicted(lengths: tuple[int, int]) -> None:
    """Also if the peak of one is in the optimizer's step, and the next in the backward pass."""
    asked = 2 * max(lengths)
    memories, peaks = [], []
    for length in (*lengths, asked):
        allocator = Allocator()
        train(allocator, PARAMETERS, 2, length=length)
        memories += read_snapshot(allocator.snapshot())
        peaks.append(build_ledger(memories[-1]).allocated)
    found = predict_peak(memories[0], memories[1], Sizes(*lengths, asked))
    assert found == pytest.approx(peaks[2], rel=0.05)
    assert peaks[2] > 1.3 * max(peaks[:2])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("8x64, 8", "16x64, 16", Sizes(8, 16, 32, "32x64")),
        ("8x512, 8", "8x128, 8", Sizes(512, 128, 1024, "8x1024")),
        ("8x3x32x32, 8", "8x3x64x64, 8", None),
        ("8x64, 8", "16x32, 16", None),
        ("8x64, 8", "8x64, 8", None),
        ("8x64, 8", "8x64", None),
        ("", "", None),
    ],
)
def test_sizes_are_known_if_one_differs(before: str, after: str, expected: Sizes | None) -> None:
    fixed = dict.fromkeys(["parameters_fingerprint", "precision", "optimizer"], "x")
    configs: list[dict[str, Any]] = []
    for shapes in (before, after):
        configs.append({**fixed, "batch_shapes": shapes, "batch_shapes_distinct": 1})
    assert find_sizes(*configs) == expected
    configs[1]["precision"] = "y"
    assert find_sizes(*configs) is None


def bring_in(folder: Path, name: str, content: Any, protocol: int = 4) -> str:
    """Import a snapshot; return its run."""
    path = folder / f"{name}.pickle"
    path.write_bytes(pickle.dumps(content, protocol))
    assert main(["import", str(path), "-o", str(folder / "traces")]) == ExitCode.DONE
    return str(folder / "traces" / name)


def test_report_and_explain_show_rows_that_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = bring_in(tmp_path, "small", trained().snapshot(), 2)
    large = bring_in(tmp_path, "large", trained(factor=2).snapshot(), 5)
    assert f"next      profkit report {small}" in capsys.readouterr().out
    for form in ([], ["--format", "markdown"], ["--format", "html"], ["--all"]):
        assert main(["report", small, *form]) == main(["explain", small, large, *form]) == 0
        out = capsys.readouterr().out
        assert "alice" not in out
        assert "net.py:7 forward" in out
    assert main(["report", small, "--json"]) == ExitCode.DONE
    shown = json.loads(capsys.readouterr().out)
    assert sum(row["bytes"] for row in shown["rows"]) == shown["reserved_bytes"]
    assert len(shown["headline"].split()) <= 30
    assert main(["explain", small, large, "--json"]) == ExitCode.DONE
    shown = json.loads(capsys.readouterr().out)
    before, after = (run["reserved_bytes"] for run in shown["runs"])
    assert sum(row["change_bytes"] for row in shown["rows"]) == after - before > 0
    assert len(shown["headline"].split()) <= 30
    assert main(["explain", small, large, "--gate", "3%"]) == ExitCode.USAGE
    Path(small, MEMORY_FILE).write_text('{"devices in version 1": [{}]}')
    assert main(["report", small]) == ExitCode.UNREADABLE


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/profkit-was-here",)


def plain(segments: Any, events: Any = ()) -> bytes:
    return pickle.dumps({"segments": segments, "device_traces": list(events)})[2:]


CALLING = (
    *(pickle.dumps({"segments": [Hostile()]}, protocol)[2:] for protocol in (2, 4)),
    *(b"cos\nsystem\n.", b"\x8c\x02os\x8c\x06system\x93.", b"(ios\nsystem\n."),  # GLOBAL, INST
    *(b"(\x8c\x02os\x8c\x06systemo.", b"))\x81.", b"))}\x92.", b"}}b."),  # OBJ, NEWOBJ, BUILD
    *(b"\x82\x01.", b"\x84\x01\0\0\0.", b"Pfile\n.", b"Q.", b"\x97."),  # EXT, PERSID, BUFFER
)
LARGE = (
    *(b"\x96\0\0\0\0\0\0\0\x10.", b"\x8d\0\0\0\0\0\0\0\x10.", b"X\xff\xff\xff\xff."),
    *(b"]r\xff\xff\xff\xff.", b"\x8a\xff" + b"\x01" * 255 + b".", b"\x8b\xff\xff\xff\x7f."),
    b"]" * 200_000 + b"a" * 199_999 + b".",
    b"}K\x01" + b"\x85" * 200_000 + b"K\x01s.",  # a key of nested tuples
    b"}" * 1_000_000 + b".",
    b"]\x94" + b"](h\x00h\x00e\x94" * 60 + b".",  # lists that double
)
DAMAGED = (
    *(b"", b"00000.", b"ssss.", b"]\x94h\x00a.", plain([{}] * 99)[:-9], plain([]), plain(None)),
    plain([{"address": -1, "total_size": 5, "blocks": []}]),
    plain([{"address": 4, "total_size": 5, "blocks": []}]),
    plain([], [[{"action": "alloc", "addr": "x", "size": 1}]]),
)
WHY = {CALLING: "it asks to run code", LARGE: "", DAMAGED: ""}
BAD = [(content, why) for contents, why in WHY.items() for content in contents]


@pytest.mark.parametrize(("content", "why"), BAD, ids=itertools.count())
def test_a_hostile_or_damaged_file_ends_with_one_line(
    content: bytes, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.pickle"
    path.write_bytes(b"\x80\x04" + content)
    arguments = ["import", str(path), "--format", "memory_snapshot", "-o", str(tmp_path / "t")]
    assert main(arguments) == ExitCode.UNREADABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"profkit: {path}: {why}")
    assert line.endswith(f"; {REMEDY}")
    assert not Path("/tmp/profkit-was-here").exists()
    assert not list(tmp_path.glob("t/*"))


def test_no_damage_of_a_snapshot_raises_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(5)
    good = pickle.dumps(trained(1).snapshot())
    for number in range(60):
        bad = bytearray(good)
        place = chance.randrange(len(bad))
        bad[place] ^= 1 << chance.randrange(8)
        if number % 2:
            del bad[place:]
        (tmp_path / "bad.pickle").write_bytes(bytes(bad))
        code = main(["import", str(tmp_path / "bad.pickle"), "-o", str(tmp_path / "t")])
        assert code in (ExitCode.DONE, ExitCode.UNREADABLE)
        assert len(capsys.readouterr().err.splitlines()) <= 1
