"""What the job was: from the lines that a log has before its records, and from the file's name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from profkit.importers.logs.grammar import Found
from profkit.importers.logs.text import Line, as_count

MOST_CARDS = 100_000
_LARGEST_BATCH = 10_000_000
_AMP, _FP32 = "amp", "fp32"


def _cards(word: str) -> int | None:
    return as_count(word, MOST_CARDS) or None


def _listed(words: str) -> int:
    return words.count(",") + 1


def _precision(word: str) -> str | None:
    small = word.lower()
    if small in {"true", "fp16", "float16", "amp", "o1", "o2", "bf16"}:
        return _AMP
    return _FP32 if small in {"false", "fp32", "float32"} else None


def _batch(word: str) -> int | None:
    return as_count(word, _LARGEST_BATCH) or None


@dataclass(frozen=True)
class Hint:
    """A fact that a line may tell: text that it then has, the pattern, the fact, and its value by the pattern's group."""

    marker: str
    pattern: re.Pattern[str]
    fact: str
    value: Callable[[str], Any]


def _hint(marker: str, pattern: str, fact: str, value: Callable[[str], Any]) -> Hint:
    return Hint(marker, re.compile(pattern), fact, value)


_HINTS = (
    _hint("world_size", r"(?<!\w)world_size\s{0,9}[:=]\s{0,9}(\d{1,6})", "world_size", _cards),
    _hint("PADDLE_TRAINERS_NUM", r"PADDLE_TRAINERS_NUM\s{1,60}(\d{1,6})", "world_size", _cards),
    _hint("gpu_ids", r"gpu_ids = range\(0, (\d{1,6})\)", "world_size", _cards),
    _hint("training on", r"training on (\d{1,6}) GPUs", "world_size", _cards),
    _hint("nranks", r" nranks (\d{1,6})", "world_size", _cards),
    _hint("gpu_count", r"gpu_count : (\d{1,6})", "world_size", _cards),
    _hint("horovodrun", r"horovodrun -np (\d{1,6})", "world_size", _cards),
    _hint("nproc_per_node=", r"nproc_per_node=(\d{1,6})", "cards_a_node", _cards),
    _hint("num_gpus=", r"(?<!\w)num_gpus=(\d{1,6})(?!\d)", "cards_a_node", _cards),
    _hint("GPUs used:", r"GPUs used: (\d{1,6})", "cards_a_node", _cards),
    _hint(
        "devices: ",
        r"(?<!\w)devices: (\d{1,3}(?:,\d{1,3}){0,63})(?![\d,])",
        "cards_a_node",
        _listed,
    ),
    _hint("gpus: ", r"(?<!\w)gpus: (\d{1,3}(?:,\d{1,3}){0,63})(?![\d,])", "cards_a_node", _listed),
    _hint("gpus : [", r"(?<!\w)gpus : \[(\d{1,3}(?:, \d{1,3}){0,63})\]", "cards_a_node", _listed),
    _hint("nnodes: ", r"(?<!\w)nnodes: (\d{1,5})(?!\d)", "nodes", _cards),
    _hint("samples_per_gpu", r"samples_per_gpu=(\d{1,8})", "batch_size", _batch),
    _hint("amp : ", r"(?<![\w.])amp : (True|False)", "precision", _precision),
    _hint("amp=", r"(?<![\w.])amp=(True|False)", "precision", _precision),
    _hint("use_amp", r"'use_amp': (True)", "precision", _precision),
    _hint("use_pure_fp16", r"'use_pure_fp16': (True)", "precision", _precision),
    _hint("precision=", r"(?<!\w)precision=(fp16|fp32|amp)", "precision", _precision),
    _hint("DTYPE: ", r"(?<!\w)DTYPE: (float16|float32)", "precision", _precision),
    _hint("16-bits training", r"16-bits training: (True|False)", "precision", _precision),
    _hint("Fp16OptimizerHook", r"(Fp16)OptimizerHook", "precision", lambda _: _AMP),
    _hint("fp16 = dict", r"^(fp16) = dict", "precision", lambda _: _AMP),
    _hint("arch", r"(?<!\w)arch(?: : |=')(\w{1,60})", "model", str),
    _hint("type='", r"^\s{4}backbone=dict\(\s{0,9}type='(\w{1,60})'", "model", str),
    _hint(
        "GPU",
        r"GPU[\s\d,]{0,400}: ((?:Tesla|NVIDIA|GeForce|A100|H100|V100)[\w .-]{0,40}?)(?:'|\s{2}|$)",
        "device",
        str.strip,
    ),
    _hint(" iters", r"max: (\d{1,12}) iters", "last_step", as_count),
)

_VERSION = re.compile(
    r"^(PaddlePaddle|PaddleSeg|PyTorch|TorchVision|MMCV|MMSegmentation|OpenCV|cudnn|NVCC|GCC|Python|NCCL version|Container nvidia build =)"
    r":?\s{1,4}(\S.{0,78})"
)


def read_facts(line: Line, found: Found) -> None:
    """Take what this line tells of the job."""
    text = line.text
    for hint in _HINTS:
        if hint.marker in text and (match := hint.pattern.search(text)):
            found.tell(**{hint.fact: hint.value(match[1])})
    if match := _VERSION.match(text):
        found.versions.setdefault(
            match[1].removesuffix(" version").removesuffix(" ="), match[2].strip()
        )


@dataclass(frozen=True)
class NameHints:
    """What a file's name says; several GPU counts where it names several runs."""

    world_sizes: tuple[int, ...] = ()
    batch_size: int | None = None
    global_batch_size: int | None = None
    precision: str | None = None

    @property
    def world_size(self) -> int | None:
        return self.world_sizes[0] if len(self.world_sizes) == 1 else None


_WORLD = (
    re.compile(r"gpu[xs]?(\d{1,5})", re.IGNORECASE),
    re.compile(r"(?<![a-zA-Z\d])(\d{1,5})gpus?(?![a-z\d])", re.IGNORECASE),
)
_NODES = re.compile(r"(?<![a-zA-Z])N(\d{1,4})C(\d{1,4})")
_SHORT_WORLD = re.compile(r"[_-](?:c|N)(\d{1,4})(?![a-zA-Z\d])")


def read_name(name: str) -> NameHints:
    """What the name says in the spellings that benchmark logs have: `gpu8`, `GPUx8`, `N1C8`, `_c8_`, `-N8`, `bs96`, `fp16`, `amp`."""
    worlds = tuple(
        dict.fromkeys(
            count for pattern in _WORLD for word in pattern.findall(name) if (count := _cards(word))
        )
    )
    if nodes := _NODES.search(name):
        worlds = tuple(filter(None, [_cards(str(int(nodes[1]) * int(nodes[2])))]))
    if not worlds and (short := _SHORT_WORLD.search(name)):
        worlds = tuple(filter(None, [_cards(short[1])]))
    small = name.lower()
    batch = re.search(r"(?<![a-z])bs(\d{1,7})", small)
    total = re.search(r"gbs(\d{1,8})", small)
    mixed = re.search(r"(?<![a-z])(?:amp|fp16|bf16)(?![a-z])", small)
    plain = re.search(r"(?<![a-z])(?:fp32|tf32)(?![a-z])", small)
    precision = None if bool(mixed) == bool(plain) else _AMP if mixed else _FP32
    return NameHints(
        worlds, _batch(batch[1]) if batch else None, _batch(total[1]) if total else None, precision
    )
