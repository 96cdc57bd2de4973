"""Reads MLPerf's marks, which stand between any trainer's lines, into windows of training.

    :::MLLOG {"time_ms": 1715849352664, "key": "eval_start", "metadata": {"samples_count": 1920}}
    :::MLPv0.6.0 resnet 1557273395.481 (train.py:12) eval_start: {"epoch_num": 4}

A window is what was trained between two marks that tell the samples so far. Its time is that
between the marks without the evaluations that began in it. An evaluation that began before it ran
beside it. What the run takes from start to stop is then closed: training, evaluations, and neither.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from profkit.importers.logs.grammar import Found
from profkit.importers.logs.knobs import PREFIX
from profkit.importers.logs.text import Line, as_number

WINDOWS = "mlperf"
"""The grammar that takes the windows between marks as lines about training."""
_EVENT = re.compile(
    r":::MLLOG (\{.{1,60000}\})|:::MLPv0\.\d\.\d \w{1,40} (1\d{9}\.\d{1,9}) "
    r"\(.{1,300}?\) (\w{1,60})(?:: (.{1,2000}))?$"
)
_SYSTEM = re.compile(r"^:::SYSJSON (\{.{1,60000}\})$")
_OLD_KEYS = {"input_batch_size": "global_batch_size", "preproc_num_train_examples": "train_samples"}
_KNOBS = {"gradient_accumulation_steps": "accumulation", "seed": "seed",
          "max_sequence_length": "sequence_length"}  # fmt: skip
_COUNTS = ("global_batch_size", "train_samples", "local_batch_size", "gradient_accumulation_steps")
_MOST_EPOCHS = 1_000
"""A larger number of an epoch counts samples."""
NO_RANKS = (
    "the log does not say how many ranks it has; keep the system's description beside it "
    "(systems/NAME.json, with NAME a folder above the log)"
)
MOST_CARDS = 1_000_000


@dataclass
class Window:
    """Training between two marks: when, how long without evaluations, and on how many samples."""

    line: int
    end_s: float
    seconds: float
    samples: float
    evaluation_s: float
    """Evaluations since the window before, which `seconds` excludes."""


@dataclass
class Marks:
    """What the marks say so far; `windows` and what follows are of the latest run."""

    counts: dict[str, float] = field(default_factory=dict)
    starts: int = 0
    """The processes that say that they start."""
    began_s: float = 0.0
    window_s: float | None = None
    done: float = 0.0
    """Samples up to the last window."""
    epochs: int = 0
    planned: float | None = None
    """Samples at the end of the block that is going on."""
    eval_s: float | None = None
    eval_trained_s: float = 0.0
    """The training up to the beginning of the evaluation."""
    evals: int = 0
    evaluation_s: float = 0.0
    beside_s: float = 0.0
    """Evaluation while a later window trained."""
    inside_s: float = 0.0
    """Evaluation in the window that is going on."""
    since_s: float = 0.0
    """Evaluation since the last window."""
    trained_s: float = 0.0
    windows: list[Window] = field(default_factory=list)
    stopped: bool = False

    @property
    def epoch_samples(self) -> float | None:
        """The samples of an epoch: some tools state its batches, and say their size."""
        samples, batch = self.counts.get("train_samples"), self.counts.get("global_batch_size")
        if samples and batch and "local_batch_size" in self.counts:
            return samples * batch
        return samples

    def begin(self, time_s: float) -> None:
        """Begin a run."""
        fresh = Marks(self.counts, self.starts, time_s, time_s)
        self.__dict__.update(fresh.__dict__)

    def open(self, time_s: float) -> None:
        """Begin to train."""
        self.window_s, self.inside_s = time_s, 0.0

    def close(self, line: int, time_s: float, samples: float | None) -> None:
        """End a window at which so many samples were trained, if these are more than before."""
        begin = self.window_s
        if begin is None or not samples or samples <= self.done or time_s <= begin:
            return
        trained, seconds = samples - self.done, time_s - begin - self.inside_s
        self.done = samples
        if seconds > 0:
            self.windows.append(Window(line, time_s, seconds, trained, self.since_s))
            self.trained_s += seconds
            self.since_s = 0.0
            self.open(time_s)

    def end_evaluation(self, time_s: float) -> None:
        """Count an evaluation, and what of it passed in a window or beside one."""
        start, window_s = self.eval_s, self.window_s
        if start is None or time_s < start:
            return
        passed = time_s - start
        self.beside_s += self.trained_s - self.eval_trained_s
        if window_s is not None and window_s > start:
            self.beside_s += time_s - window_s
        else:
            self.inside_s += passed
        self.eval_s, self.evals = None, self.evals + 1
        self.evaluation_s += passed
        self.since_s += passed

    def plan(self, epochs: float | None) -> None:
        """Note what a block of so many epochs, or of so many samples, will have trained."""
        whole, self.planned = self.epoch_samples, None
        if epochs and whole:
            self.planned = self.done + (epochs if epochs >= whole else epochs * whole)

    def position(self, more: dict[str, Any]) -> float | None:
        """Return the samples so far of an epoch's number: a share of epochs, or samples."""
        epochs, whole = number(more, "epoch_num"), self.epoch_samples
        if epochs and epochs > _MOST_EPOCHS:
            return epochs
        if epochs and whole and epochs != int(epochs):
            return epochs * whole
        return None


def read_event(line: Line, found: Found) -> tuple[Marks, str, Any, dict[str, Any]] | None:
    """Take a mark, if the line has one, and return it with all that the marks say so far."""
    if ":::" not in line.text:
        return None
    if match := _SYSTEM.search(line.text):
        found.add_facts(world_size=count_cards(_load(match[1])))
    marks: Marks = found.memory.setdefault("marks", Marks())
    match = _EVENT.search(line.text)
    event = _parse(match) if match else {}
    time_ms, key, value = as_number(str(event.get("time_ms"))), event.get("key"), event.get("value")
    if time_ms is None or not isinstance(key, str):
        if ":::MLL" in line.text:
            found.warn("a mark that cannot be read", line.number)
        return None
    more = event.get("metadata")
    more = more if isinstance(more, dict) else {}
    _read_fact(key, value, marks, found)
    if key == "run_start":
        found.header_lines.append(line.number)
        marks.begin(time_ms / 1000)
        _read_ranks(marks, found)
    elif marks.began_s and not marks.stopped:
        _read_mark(line, found, marks, key, time_ms / 1000, more)
    return marks, key, value, {**more, "time_s": time_ms / 1000}


def _load(text: str) -> dict[str, Any]:
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {"value": loaded}


def _parse(match: re.Match[str]) -> dict[str, Any]:
    """Return the fields of a mark in either form."""
    if match[1]:
        return _load(match[1])
    value = _load(match[4] or "null")
    key = _OLD_KEYS.get(match[3], match[3])
    return {"time_ms": float(match[2]) * 1000, "key": key, "value": value.get("value", value),
            "metadata": value}  # fmt: skip


def number(values: dict[str, Any], name: str) -> float | None:
    """Return a number of a mark, or null."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return as_number(repr(value))


def count_cards(system: dict[str, Any]) -> int | None:
    """Return the accelerators of a system's description."""
    sizes = [str(system.get(name)) for name in ("number_of_nodes", "accelerators_per_node")]
    if all(size.isdecimal() and len(size) <= 6 for size in sizes):
        cards = math.prod(map(int, sizes))
        return cards if 0 < cards <= MOST_CARDS else None
    return None


def _read_fact(key: str, value: Any, marks: Marks, found: Found) -> None:
    if key == "init_start" and not marks.began_s:
        marks.starts += 1
    elif key == "submission_benchmark" and isinstance(value, str):
        found.add_facts(model=value[:60])
    elif (size := number({key: value}, key)) and key in _COUNTS:
        marks.counts[key] = size
        if key == "global_batch_size":
            found.add_facts(global_batch_size=round(size))
    if key in _KNOBS and number({key: value}, key) is not None:
        found.add_facts(**{PREFIX + _KNOBS[key]: f"{value:.10g}"})


def _read_ranks(marks: Marks, found: Found) -> None:
    """Take the ranks that started, and those with samples of their own, which a model shares.

    A step has no more of those than it has micro batches at once.
    """
    if marks.starts > 1:
        found.add_facts(world_size=found.fact("world_size") or marks.starts)
    world, batch = found.fact("world_size"), marks.counts.get("global_batch_size")
    if world is None:
        found.warn(NO_RANKS, found.line_number)
    elif batch:
        at_once = round(batch / marks.counts.get("gradient_accumulation_steps", 1))
        if at_once % world:
            found.add_facts(world_size=world, data_ranks=math.gcd(at_once, world))


def _read_mark(
    line: Line, found: Found, marks: Marks, key: str, time_s: float, more: dict[str, Any]
) -> None:
    """Follow the training from mark to mark."""
    whole, samples = marks.epoch_samples, number(more, "samples_count") or marks.position(more)
    if key == "epoch_start":
        marks.open(time_s)
    elif key == "block_start":
        marks.open(time_s)
        marks.plan(number(more, "epoch_count"))
    elif key == "epoch_stop":
        marks.epochs += 1
        marks.close(line.number, time_s, marks.position(more) or (whole and marks.epochs * whole))
    elif key == "train_epoch":  # it begins one and ends the one before
        marks.close(line.number, time_s, whole and marks.epochs * whole)
        marks.epochs += 1
        marks.window_s = marks.window_s if marks.windows else time_s
    elif key == "block_stop":
        marks.close(line.number, time_s, marks.planned)
    elif key == "eval_stop":
        marks.end_evaluation(time_s)
    elif key in {"eval_start", "run_stop"}:
        marks.close(line.number, time_s, samples)
        if key == "run_stop":
            marks.stopped = True
            _state_parts(line, found, marks, time_s)
        else:
            marks.eval_s, marks.eval_trained_s = time_s, marks.trained_s
            found.evaluation_lines.append(line.number)


def _state_parts(line: Line, found: Found, marks: Marks, time_s: float) -> None:
    """State what the run took, and what of it is training and evaluation."""
    run_s = time_s - marks.began_s
    found.add_result(line.number, "time of the run", run_s, "s", "from run_start to run_stop")
    if marks.evals:
        how = f"{marks.evals} of them"
        if marks.beside_s:
            how += f"; {marks.beside_s:.4g} s of it ran beside training"
        found.add_result(line.number, "time of evaluations", marks.evaluation_s, "s", how)
    if marks.windows:
        rest = run_s - marks.trained_s - marks.evaluation_s + marks.beside_s
        how = "between the marks"
        found.add_result(line.number, "time of training", marks.trained_s, "s", how)
        found.add_result(line.number, "time of neither", rest, "s", "the rest of the run")
