"""Finds facts about the job in the log's lines and in the file's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from profkit.importers.logs.grammar import Found
from profkit.importers.logs.text import Line, as_count

MAX_CARDS = 100_000
_LARGEST_BATCH = 10_000_000
_AMP, _FP32, _FP16, _BF16 = "amp", "fp32", "fp16", "bf16"
_PRECISIONS = {
    **dict.fromkeys(("true", "fp16", "float16", "amp", "o1", "o2", "o3", "bf16"), _AMP),
    **dict.fromkeys(("false", "fp32", "float32", "o0"), _FP32),
}
_DATA_TYPES = {"float16": _FP16, "fp16": _FP16, "bfloat16": _BF16, "float32": _FP32}


def _cards(word: str | int) -> int | None:
    return as_count(str(word), MAX_CARDS) or None


def _listed(words: str) -> int:
    return words.count(",") + 1


def _precision(word: str) -> str | None:
    return _PRECISIONS.get(word.lower())


def _data_type(word: str) -> str | None:
    return _DATA_TYPES.get(word.lower())


def _batch(word: str) -> int | None:
    return as_count(word, _LARGEST_BATCH) or None


def _batch_in(pattern: str, name: str) -> int | None:
    found = re.search(pattern, name)
    if found:
        return _batch(found[1])
    return None


def _amp(word: str) -> str:
    return _AMP


_IS = r"'?(?: : |: |=|, '| )'?"
"""The ways in which logs put a value behind an option: in text, Python's syntax, and lists."""

_PATTERNS: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = (
    ("WORLD_SIZE", r"(?<!\w)WORLD_SIZE\s{0,9}[:=]\s{0,9}(\d{1,6})", "world_size", _cards),
    ("world_size", r"(?<!\w)world_size\s{0,9}[:=]\s{0,9}(\d{1,6})", "world_size", _cards),
    ("dist_world_size=", r"(?<!\w)dist_world_size=(\d{1,6})(?!\d)", "world_size", _cards),
    ("PADDLE_TRAINERS_NUM", r"PADDLE_TRAINERS_NUM\s{1,60}(\d{1,6})", "world_size", _cards),
    ("gpu_ids", r"gpu_ids = range\(0, (\d{1,6})\)", "world_size", _cards),
    ("training on", r"training on (\d{1,6}) GPUs", "world_size", _cards),
    ("nranks", r" nranks (\d{1,6})", "world_size", _cards),
    ("gpu_count", r"gpu_count : (\d{1,6})", "world_size", _cards),
    ("Num GPUs", r"(?<!\w)Num GPUs:? (\d{1,6})(?!\d)", "world_size", _cards),
    ("num_shards: ", r"(?<!\w)num_shards: (\d{1,6}), num_gpus", "world_size", _cards),
    ("horovodrun", r"horovodrun -np (\d{1,6})", "world_size", _cards),
    ("nproc_per_node=", r"nproc_per_node=(\d{1,6})", "cards_per_node", _cards),
    ("num_gpus=", r"(?<!\w)num_gpus=(\d{1,6})(?!\d)", "cards_per_node", _cards),
    ("GPUs used:", r"GPUs used: (\d{1,6})", "cards_per_node", _cards),
    (
        "devices: ",
        r"(?:^|\d )devices: (\d{1,3}(?:,\d{1,3}){0,63})(?![\d,])",
        "cards_per_node",
        _listed,
    ),
    ("gpus: ", r"(?<!\w)gpus: (\d{1,3}(?:,\d{1,3}){0,63})(?![\d,])", "cards_per_node", _listed),
    ("gpus : [", r"(?<!\w)gpus : \[(\d{1,3}(?:, \d{1,3}){0,63})\]", "cards_per_node", _listed),
    ("nnodes: ", r"(?<!\w)nnodes: (\d{1,5})(?!\d)", "nodes", _cards),
    ("--nnodes", r"--nnodes[= ](\d{1,5})(?![\d:])", "nodes", _cards),
    ("samples_per_gpu", r"samples_per_gpu=(\d{1,8})", "batch_size", _batch),
    ("amp : ", r"(?<![\w.])amp : (True|False)", "autocast", _precision),
    ("amp=", r"(?<![\w.])amp=(True|False)", "autocast", _precision),
    ("amp", rf"(?<![\w.])use_(?:tf_)?amp{_IS}(True|False)", "autocast", _precision),
    ("use amp to train", r"(use amp) to train", "autocast", _amp),
    ("TF AMP is activated", r"(TF AMP) is activated", "autocast", _amp),
    ("current scale is", r"(Found inf or nan), current scale is", "autocast", _amp),
    ("level : O", r"(?<!\w)level : (O[0-3])(?!\w)", "amp_level", _precision),
    ("dtype", r"(?<![\w.])dtype(?: : |=')(float16|float32|bfloat16)", "data_type", _data_type),
    ("--dtype", r"--dtype[ =](float16|float32|bfloat16)", "data_type", _data_type),
    ("use_pure_fp16", rf"(?<![\w.])use_pure_fp16{_IS}(True|False)", "precision", _precision),
    ("fp16: ", r"^fp16: (true|false)", "precision", _precision),
    ("fp16 : True", r"(?<!\w)fp16 : (True)", "precision", _precision),
    ("recision", r"(?<!\w)[Pp]recision(?:=| [:=] )(fp16|fp32|bf16|amp)", "precision", _precision),
    ("DTYPE: ", r"(?<!\w)DTYPE: (float16|float32)", "precision", _precision),
    ("16-bits training", r"16-bits training: (True|False)", "precision", _precision),
    ("Fp16OptimizerHook", r"(Fp16)OptimizerHook", "precision", _amp),
    ("fp16 = dict", r"^(fp16) = dict", "precision", _amp),
    ("arch", r"(?<!\w)arch(?: : |=')(\w{1,60})", "model", str),
    ("type='", r"^\s{4}backbone=dict\(\s{0,9}type='(\w{1,60})'", "model", str),
    (
        "GPU",
        r"GPU[\s\d,]{0,400}: ((?:Tesla|NVIDIA|GeForce|A100|H100|V100)[\w .-]{0,40}?)(?:'|\s{2}|$)",
        "device",
        str.strip,
    ),
    ("run_benchmark.sh", r"run_benchmark\.sh (?:sp|mp) (\d{1,7})", "command_batch", _batch),
    (
        "run_benchmark.sh",
        r"run_benchmark\.sh (?:sp|mp) \d{1,7} (fp32|fp16|amp)",
        "command_precision",
        _precision,
    ),
    (" iters", r"max: (\d{1,12}) iters", "last_step", as_count),
)
"""Text that each matching line contains, a pattern, the fact in its first group, and its reader."""
_COMPILED = [(marker, re.compile(words), fact, read) for marker, words, fact, read in _PATTERNS]

_COMMAND = re.compile(r"\.(?:py|sh)[\s']|training_script_args: \[")
"""The end of a script's name: options after it are those of a command, and not words about them."""
_LIST_MARKS = re.compile(r"', '|\['|'\]")
"""The marks of a command that a launcher prints as a list."""
_OPTIONS = (
    (re.compile(r"--batch[_-]size[ =](\d{1,7})(?!\d)"), "command_batch", _batch),
    (
        re.compile(r"(?<!\S)(--(?:use_)?amp|--fp16)(?![\w=-]| (?:False|false|0))"),
        "command_precision",
        _amp,
    ),
)

_VERSION = re.compile(
    r"^(PaddlePaddle|PaddleSeg|PyTorch|TorchVision|MMCV|MMSegmentation|OpenCV|cudnn|NVCC|GCC|Python"
    r"|NCCL version|Container nvidia build =):?\s{1,4}(\S.{0,78})"
)


def settle_precision(facts: Mapping[str, Any]) -> str | None:
    """Return the precision of a run from all that its log states about it.

    A 16-bit data type decides, then any option that turns mixed precision on. An option that is off
    rules only itself out: NVIDIA's MXNet has `dtype : float16` next to `amp : False`. PaddleClas
    prints a level of mixed precision that counts only if nothing switches it off.
    """
    if facts.get("data_type") in {_FP16, _BF16}:
        return str(facts["data_type"])
    names = ["precision", "autocast", "data_type"]
    if not facts.get("autocast"):
        names.append("amp_level")
    stated = []
    for name in names:
        if facts.get(name):
            stated.append(facts[name])
    if not stated:
        return None
    if _AMP in stated:
        return _AMP
    return _FP32


def read_facts(line: Line, found: Found) -> None:
    """Take what this line says about the job."""
    text = line.text
    for marker, pattern, fact, read in _COMPILED:
        if marker in text and (match := pattern.search(text)):
            found.add_facts(**{fact: read(match[1])})
    if "--" in text and (command := _COMMAND.search(text)):
        options = _LIST_MARKS.sub(" ", text[command.end() - 1 :])
        for pattern, fact, read in _OPTIONS:
            if option := pattern.search(options):
                found.add_facts(**{fact: read(option[1])})
    if match := _VERSION.match(text):
        package = match[1].removesuffix(" version").removesuffix(" =")
        found.versions.setdefault(package, match[2].strip())


@dataclass(frozen=True)
class NameHints:
    """Facts that a file's name states; several numbers of cards if it names several runs."""

    world_sizes: tuple[int, ...] = ()
    batch_size: int | None = None
    global_batch_size: int | None = None
    precision: str | None = None

    @property
    def world_size(self) -> int | None:
        if len(self.world_sizes) == 1:
            return self.world_sizes[0]
        return None


_CARDS_IN_NAME = (
    re.compile(r"gpu[xs]?(\d{1,5})", re.IGNORECASE),
    re.compile(r"(?<![a-zA-Z\d])(\d{1,5})gpus?(?![a-z\d])", re.IGNORECASE),
)
_NODES_IN_NAME = re.compile(r"(?<![a-zA-Z])N(\d{1,4})C(\d{1,4})")
_SHORT_CARDS_IN_NAME = re.compile(r"[_-](?:c|N)(\d{1,4})(?![a-zA-Z\d])")


def read_name(name: str) -> NameHints:
    """Read a file's name in the spellings of benchmark logs.

    They are `gpu8`, `GPUx8`, `8gpus`, `N1C8`, `_c8_` and `-N8` for cards, `bs96` and `gbs768` for
    batch sizes, `fp16`, `amp`, `fp32` and so on for precisions.
    """
    words: list[str | int] = []
    for pattern in _CARDS_IN_NAME:
        words += pattern.findall(name)
    if nodes := _NODES_IN_NAME.search(name):
        words = [int(nodes[1]) * int(nodes[2])]
    counts = dict.fromkeys(filter(None, map(_cards, words)))
    if not counts and (short := _SHORT_CARDS_IN_NAME.search(name)):
        counts = dict.fromkeys(filter(None, [_cards(short[1])]))
    small = name.lower()
    mixed = re.search(r"(?<![a-z])(?:amp|fp16|bf16)(?![a-z])", small)
    plain = re.search(r"(?<![a-z])(?:fp32|tf32)(?![a-z])", small)
    precision = None
    if mixed and not plain:
        precision = _AMP
    elif plain and not mixed:
        precision = _FP32
    return NameHints(
        world_sizes=tuple(counts),
        batch_size=_batch_in(r"(?<![a-z])bs(\d{1,7})", small),
        global_batch_size=_batch_in(r"gbs(\d{1,8})", small),
        precision=precision,
    )
