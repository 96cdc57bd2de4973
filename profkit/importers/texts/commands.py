"""Finds what a command asks for: cards, batch and precision.

A block of commands is read as one: variables are exported on one line and used on another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from profkit.importers.texts.markdown import TextLine
from profkit.importers.texts.values import FULL, MIXED, Of, Value, What

_COMMENT = re.compile(r"(?:^|\s)#.*$")
_LIST_MARKS = re.compile(r"',? '|\['|'\]")
_FULL_NAMES = frozenset({"fp32", "float32", "tf32", "false", "0", "o0", "no"})
_MIXED_NAMES = frozenset(
    {"fp16", "float16", "bf16", "bfloat16", "amp", "true", "1", "o1", "o2", "o3", "mixed"}
)


def _listed(words: str) -> int:
    """Return the number of devices in a list, or 0 if it can be a list of something else."""
    numbers = [int(word) for word in words.split(",")]
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return len(numbers)
    return 0


_VISIBLE = re.compile(r"(?<!\w)CUDA_VISIBLE_DEVICES=[\"']?(\d{1,3}(?:,\d{1,3}){0,63})(?![\d,])")
_LAUNCHED: tuple[tuple[re.Pattern[str], Callable[[str], int]], ...] = (
    (re.compile(r"--nproc[_-]per[_-]node[= ](\d{1,4})(?!\d)"), int),
    (re.compile(r"--(?:gpus|devices|selected_gpus)[= ][\"']?(\d{1,3}(?:,\d{1,3}){1,63})"), _listed),
    (re.compile(r"--(?:num[_-]gpus|gpu[_-]num|world[_-]size)[= ](\d{1,5})(?!\d)"), int),
    (re.compile(r"(?:horovodrun|mpirun|mpiexec)\b.{0,80}?\s-np?\s(\d{1,5})(?!\d)"), int),
)
"""Options of launchers, which are surer than the devices that a process can see."""
_NODES = re.compile(r"--nnodes[= ](\d{1,4})(?![\d:])")
_SCRIPT = re.compile(r"run_benchmark\.sh\s{1,3}(sp|mp)\s{1,3}(\d{1,7})\s{1,3}(\w{2,8})")
"""The script of the published benchmarks: mode, batch and precision."""
_BATCH = re.compile(
    r"(?<!\S)(?:--?)?(?P<name>[\w.-]{0,80}?(?:batch[_-]?size|samples_per_gpu)|b|bs)"
    r"[= ](\d{1,7})(?![\d.]|\s+\d)",
    re.IGNORECASE,
)
_NOT_TRAINED = re.compile(r"eval|val|test|infer", re.IGNORECASE)
_PRECISION = re.compile(
    r"(?<!\S)(?:--?)?(?:[\w.]{0,80}\.)?"
    r"(?P<option>precision|dtype|fp_item|use_amp|amp|fp16|bf16|opt_level)"
    r"(?:[= ](?P<value>[A-Za-z0-9]{1,10}))?(?=\s|$)",
    re.IGNORECASE,
)


def join_commands(lines: Sequence[TextLine]) -> Iterator[TextLine]:
    """Yield commands without comments; a line that ends in a backslash goes on."""
    held: list[str] = []
    first = 0
    for line in lines:
        text = _COMMENT.sub("", line.text).strip()
        if not text:
            continue
        first = first or line.number
        held.append(text.removesuffix("\\"))
        if not text.endswith("\\"):
            yield TextLine(first, " ".join(held))
            held, first = [], 0
    if held:
        yield TextLine(first, " ".join(held))


def find_requests(lines: Sequence[TextLine], file: str) -> Iterator[Value]:
    """Yield what the commands of a block ask for."""
    commands = []
    for line in join_commands(lines):
        commands.append(TextLine(line.number, _LIST_MARKS.sub(" ", line.text)))
    yield from _find_cards(commands, file)
    for line in commands:
        script = _SCRIPT.search(line.text)
        if script:
            yield Value(What.BATCH, int(script[2]), file, line.number, script[0])
            yield from _precision(script[3], file, line.number, script[0])
        else:
            yield from _find_batches(line, file)
            for found in _PRECISION.finditer(line.text):
                # An option without a value counts if it is a flag.
                is_flag = found["option"].lower() in {"use_amp", "amp", "fp16", "bf16"}
                if found["value"] and found["value"].lower() in _FULL_NAMES | _MIXED_NAMES:
                    yield from _precision(found["value"], file, line.number, found[0])
                elif is_flag and found[0].startswith("-"):
                    yield Value(What.PRECISION, MIXED, file, line.number, found[0].split()[0])


def _find_batches(line: TextLine, file: str) -> Iterator[Value]:
    for found in _BATCH.finditer(line.text):
        name = found["name"].lower()
        is_short = name in {"b", "bs"}
        if _NOT_TRAINED.search(name) or (is_short and "-" not in found[0]):
            continue
        of = Of.UNSAID
        if name.endswith("samples_per_gpu"):
            of = Of.CARD
        elif "global" in name or "total" in name:
            of = Of.ALL
        yield Value(What.BATCH, int(found[2]), file, line.number, found[0], of)


def _find_cards(commands: Sequence[TextLine], file: str) -> Iterator[Value]:
    """Yield the cards that launchers start; without any, those that the process can see."""
    launched: list[Value] = []
    for line in commands:
        nodes = _NODES.search(line.text)
        for pattern, read in _LAUNCHED:
            if found := pattern.search(line.text):
                count = read(found[1])
                if nodes:
                    count *= int(nodes[1])
                if not count:
                    continue
                launched.append(Value(What.CARDS, count, file, line.number, found[0]))
                break
    yield from launched
    for line in commands:
        visible = _VISIBLE.search(line.text)
        if visible and not launched:
            count = visible[1].count(",") + 1
            yield Value(What.CARDS, count, file, line.number, visible[0])


def _precision(word: str, file: str, line: int, words: str) -> Iterator[Value]:
    if word.lower() in _MIXED_NAMES:
        yield Value(What.PRECISION, MIXED, file, line, words)
    elif word.lower() in _FULL_NAMES:
        yield Value(What.PRECISION, FULL, file, line, words)
