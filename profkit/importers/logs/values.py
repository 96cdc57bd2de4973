"""Reads lines of names and values: the step, its times, and the throughput.

    [Train][Epoch 70/90][Iter: 10/312]lr: 0.1, batch_cost: 0.31s, reader_cost: 0.1, ips: 823/s
    step:10/1395 train_loss:3.2 train_time:1234ms step_avg:95.2ms

A value has a name before it or a unit behind it, or it stands alone, as `[20/1000]` does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from profkit.importers.logs.text import as_count, as_number

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3}){1,4}(?![\d,])|\d{1,15})(?:\.\d{0,15})?(?:[eE][-+]?\d{1,3})?"
_NUMBER = rf"(?:{_NUMBER}|(?:nan|inf)(?=ms|\W|$))"
_UNIT = (
    r"(?:(?:us|ms|msec|secs?|seconds?|s)(?:/[a-z]{1,10})?"
    r"|[A-Za-z]{0,12}(?:/| per )(?:sec(?:ond)?|s)(?:/[a-z]{1,8})?(?!\s{0,2}[:=]?\s{0,2}\d))(?!\w)"
)
_VALUE = re.compile(
    rf"(?<![\w.])({_NUMBER})(?:\s{{0,4}}/\s{{0,4}}(\d{{1,12}}))?['\"]?(?:\s{{0,3}}({_UNIT}))?"
)
_LONGEST_NAME = 80
MOST_NAMES = 4_096
"""Names are the same in all lines of a log, so what they mean is kept."""
_BEFORE_NAME = re.compile(r"[,;:|{}\[\]()\"'=\t]|  | - ")
_UNIT_IN_NAME = re.compile(r"\((\w{1,4})\)$")
_CLOCKS = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d(?= \d\d:)|\d{1,3}(?::\d\d){1,2}(?:[.,]\d{1,9})?"
    r"|\d{1,4} days?, "
)
_BRACKETED = re.compile(r"\(\s{0,4}[-+\d][^()]{0,60}\)")
_REWRITTEN = (
    (re.compile(r"(\d{1,9})epoch:train:\d{1,12}-(\d{1,12})batch"), r"epoch \1 step \2"),  # ESPnet
    (re.compile(r"iter_time=(.{1,40}?forward_time=.{1,400}?)train_time="), r"data=\1time="),
    (re.compile(r"TimeHistory: (.{1,80}) between steps \d{1,12} and "), r"window: \1 step "),
    (re.compile(r"(step = \d{1,12}) \((\S{1,12}) sec\)"), r"\1, window: \2 s"),
    (re.compile(r"(?<![\w.])(\d{1,12})\s{1,4}(images/sec): "), r"step \1, \2: "),
    (re.compile(r"train_step_timing in s="), "step_time="),  # NeMo
    (re.compile(r"([Bb]atch(?::| ) ?\[?)\d{1,12}[-/](?=\d)"), r"\1"),
    (re.compile(r"\"throughput\": \"?[\d.]{1,20}\"?, \"total_tokens\""), ""),  # a mean of all steps
    (re.compile(r"(?i)ela(?:ps|sp)ed(?:[ _]time)?\W{1,4}"
                r"(?:(\d{1,4}) days?, )?(\d{1,4}):(\d\d):(\d\d)"),
     lambda found: f"total_time: {_seconds_of(*found.groups())} s"),
)  # fmt: skip
"""Forms of some tools in which a step or a time has no name of its own."""


def _seconds_of(days: str | None, hours: str, minutes: str, seconds: str) -> int:
    return ((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)


_SECONDS = {"us": 1e-6, "ms": 1e-3, "msec": 1e-3}
_SECONDS |= dict.fromkeys(("s", "sec", "secs", "second", "seconds", "t"), 1.0)
STEP_NAMES = ("global_step", "step_idx", "num_updates", "iter", "iteration", "it", "iters", "step",
              "steps", "update", "up", "batch_id", "batch")  # fmt: skip
"""The names of a step, the best first: a line may have several counters."""
_NAMES = {
    "step_s": "time batch_time batch_cost iter_time iteration_time step_time dt seconds batch updt "
    "time_per_iter time_per_iteration time_per_step time_per_batch it_time ms_batch ms_step elapse",
    "data_s": "data data_time reader_cost data_cost reader dt_data data_load_time data_wait "
    "dataloader_time load_time dataloading data_loading_time",
    "total_s": "train_time walltime wall time_elapsed total_time",
    "window_s": "interval_runtime window",
    "samples": "avg_samples avg_tokens wpb",
    "loss": "loss",
    "lr": "lr learning_rate",
}
_FIGURE_OF = {name: figure for figure, names in _NAMES.items() for name in names.split()}
_TIMES = frozenset({"step_s", "data_s", "total_s", "window_s"})
_TELLING = (_TIMES - {"data_s"}) | {"steps_per_s", "rate"}
_PARTS = re.compile(r"(?:forward|backward|fwd|bwd|optim\w*|model|comm|eval|val|epoch|save)_")
"""Times of parts of a step, or of many steps, have names that begin so."""
_RATES = {"ips": "samples", "tps": "tokens", "wps": "tokens", "ups": "steps", "speed": "samples",
          "throughput": "samples"}  # fmt: skip
_STEPS = frozenset({"it", "its", "iter", "iters", "iteration", "step", "steps", "batch", "batches",
                    "update", "updates"})  # fmt: skip
_COUNTED = {"tok": "tokens", "token": "tokens", "img": "images", "image": "images", "": "samples",
            "sample": "samples", "word": "words", "instance": "samples"}  # fmt: skip
"""The words of what is counted that are no plural, or have another."""
_NO_SAMPLES = frozenset(
    {"b", "kb", "mb", "gb", "flop", "flops", "tflop", "tflops", "gflops", "req"}
)
_RATE = re.compile(r"(?:(?:^|_)([a-z]{0,12})_(?:per_)?|^)(?:s|sec|second)(?:_(?:per_)?(\w{3,8}))?$")
_CARDS = frozenset({"gpu", "device", "card", "chip", "rank"})
_RATE_NAMES = re.compile(
    r"(?:tok|token|sample|image|img|example|sequence|item|frame|word|clip|video|ins|step|it|iter"
    r"|iteration|batch|batche|update)s?_(?:per_)?s(?:ec(?:ond)?)?(?:_|$)"
)
_ROUNDED = 0.01
"""A throughput and what it is over differ by a smaller share, if they are rounded."""


class Figures(NamedTuple):
    """What a line says; times in seconds."""

    step: int | None
    epoch: int | None
    steps: int | None = None
    """The steps of the run, or of the epoch."""
    step_s: float | None = None
    data_s: float | None = None
    window_s: float | None = None
    """The time of all steps since the line before."""
    total_s: float | None = None
    """The time of all steps."""
    steps_per_s: float | None = None
    rate: float | None = None
    counted: str = ""
    """What the rate counts."""
    of_card: bool = False
    samples: float | None = None
    loss: float | None = None
    lr: float | None = None

    tells_time: bool = False
    """Whether it has a time or a rate, be it a usable one or not."""


class Pair(NamedTuple):
    """A value, its name in small letters, and its unit."""

    name: str
    value: float | None
    """Null for `nan` and what is no possible value."""
    total: str | None
    unit: str
    word: str


def find_pairs(text: str) -> Iterator[Pair]:
    """Yield the values of a text, with their names and units."""
    end = 0
    for match in _VALUE.finditer(text):
        before = text[max(end, match.start() - _LONGEST_NAME) : match.start()].rstrip(" :=\"'[\t")
        end, value, unit = match.end(), as_number(match[1].replace(",", "")), match[3] or ""
        name, unit = _find_name(before, unit)
        yield Pair(name, value, match[2], unit, match[1])


@functools.lru_cache(maxsize=MOST_NAMES)
def _find_name(before: str, unit: str) -> tuple[str, str]:
    """Return the name that a value has in the text before it, and its unit."""
    if named := _UNIT_IN_NAME.search(before):
        before, unit = before[: named.start()], unit or named[1]
    name = re.sub(r"[\W_]+", "_", _BEFORE_NAME.split(before)[-1]).lower().strip("_")
    return name, unit.lower()


def read_figures(text: str) -> Figures:
    """Return what a line says about its step; figures in brackets count if no others do."""
    for pattern, form in _REWRITTEN:
        text = pattern.sub(form, text)
    text = _CLOCKS.sub(" ", text)
    found = _classify(list(find_pairs(_BRACKETED.sub(" ", text))))
    if found.step is not None and not found.tells_time:
        more = _classify(list(find_pairs(" ".join(_BRACKETED.findall(text)))))
        found = more._replace(step=found.step, epoch=found.epoch, loss=found.loss, lr=found.lr)
    return _sharpen(found)


def _classify(pairs: list[Pair]) -> Figures:
    """Sort the values of a line by what they are."""
    steps: dict[str, tuple[int, str | None]] = {}
    less_likely: dict[str, tuple[int, str | None]] = {}
    epoch: int | None = None
    figures: dict[str, Any] = {}
    for pair in pairs:
        count = as_count(pair.word) if not pair.unit else None
        if count is None:
            _take(pair, figures)
        elif pair.name.rpartition("_")[2] in {"epoch", "ep"} or (
            pair.name.endswith("train") and pair.total and epoch is None
        ):
            epoch = count
        elif pair.name in STEP_NAMES:
            steps.setdefault(pair.name, (count, pair.total))
        elif not pair.name and pair.total:
            less_likely.setdefault("", (count, pair.total))
        elif named := _known_ending(pair.name, STEP_NAMES):
            less_likely.setdefault(named, (count, pair.total))
        else:
            _take(pair, figures)
    steps = steps or less_likely
    named = next(filter(steps.__contains__, ("", *STEP_NAMES)), None)
    figures["tells_time"] = bool(figures.keys() & _TELLING)
    if named is None:
        return Figures(None, epoch, **figures)
    return Figures(steps[named][0], epoch, as_count(steps[named][1]), **figures)


def _known_ending(name: str, known: Any) -> str | None:
    """Return the longest known ending of a name, which may have other words before it."""
    while name and name not in known:
        name = name.partition("_")[2]
    return name or None


def _take(pair: Pair, figures: dict[str, Any]) -> None:
    """Take a rate, a time or another figure; the first of each kind counts."""
    name, (per, _, of) = pair.name, pair.unit.partition("/")
    if per in _SECONDS and of in _STEPS:
        figures.setdefault("step_s", _scale(pair.value, per))
    elif rate := _counted(name, pair.unit):
        _take_rate(pair.value, *rate, figures)
    elif per in _SECONDS or not per:
        _take_time(pair, per, figures)


def _take_time(pair: Pair, per: str, figures: dict[str, Any]) -> None:
    name, suffix = pair.name, pair.name.rpartition("_")[2]
    if not per and suffix in {"ms", "s", "sec"} and suffix != name:
        name, per = name.rpartition("_")[0], suffix
    if not name and per in {"ms", "us"}:
        figures.setdefault("step_s", _scale(pair.value, per))
    ending = _known_ending(name, _FIGURE_OF)
    figure = _FIGURE_OF.get(ending or "")
    if figure is None or (ending == "batch" and not per):
        return
    if figure in _TIMES and _PARTS.search(name):
        return
    if not per and name.startswith("ms_"):
        per = "ms"
    figures.setdefault(figure, _scale(pair.value, per) if figure in _TIMES else pair.value)


def _scale(value: float | None, unit: str) -> float | None:
    if value is None:
        return None
    return value * _SECONDS.get(unit, 1.0)


@functools.lru_cache(maxsize=MOST_NAMES)
def _counted(name: str, unit: str) -> tuple[str, bool] | None:
    """Return what a rate counts, and if it is of one card; null for what is no rate."""
    if unit in {"", "s"}:
        if (known := _known_ending(name, _RATES)) and not unit:
            return _RATES[known], False
        words = name if _RATE_NAMES.search(name) else ""
    else:
        words = re.sub(r"[/ ]", "_", unit).strip("_") if "/" in unit or " per " in unit else ""
    match = _RATE.search(words) if words else None
    if match is None or (match[1] or "") in _NO_SAMPLES:
        return None
    return match[1] or "", match[2] in _CARDS


def _take_rate(value: float | None, counted: str, of_card: bool, figures: dict[str, Any]) -> None:
    if counted in _STEPS:
        figures.setdefault("steps_per_s", value)
        return
    counted = _COUNTED.get(counted, counted)
    better = figures.get("counted") == "tokens" and counted != "tokens" and not of_card
    if "rate" not in figures or better or (figures["of_card"] and not of_card):
        figures.update(rate=value, counted=counted, of_card=of_card)


def _sharpen(figures: Figures) -> Figures:
    """Return the figures with the time that the throughput is over, which has more digits.

    Some tools exclude the wait for data from the printed time and not from the throughput.
    """
    samples, rate, step_s = figures.samples, figures.rate, figures.step_s
    if rate and step_s is None and samples is None and figures.steps_per_s:
        whole = float(round(rate / figures.steps_per_s))
        if whole and abs(rate / figures.steps_per_s / whole - 1) < _ROUNDED:
            samples = whole
    if not samples or not rate:
        return figures
    computed_s, longest_s = samples / rate, (step_s or 0.0) + (figures.data_s or 0.0)
    if step_s and not (1 - _ROUNDED) * step_s <= computed_s <= (1 + _ROUNDED) * longest_s:
        return figures
    return figures._replace(step_s=computed_s, samples=samples)
