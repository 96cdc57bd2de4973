"""Every documented command of a reference system has steps to train, on every rank.

The commands are read from the pages and from the help texts. For each, the real sampler is asked
for the batches of every rank of one epoch. No GPU is needed for that.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.commands import bench, trace
from profkit.commands._bench_options import LARGEST
from profkit.plugins import WORKLOADS
from profkit.rank import Rank
from profkit.workloads.base import Build, Settings
from profkit.workloads.training.samples import BadSamples
from profkit.workloads.training.sampling import MIN_EPOCH_STEPS, Batches, run_length
from profkit.workloads.training.settings import Seat, final_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
COMMAND = re.compile(r"(?:^|\s|`)profkit (trace|bench) ([a-z][\w ]*(?: |$).*)")
VERBS = {"trace": trace, "bench": bench}
WORLDS = (1, 8, 32)


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of code blocks, and the code within lines."""
    for block in re.findall(r"```[^\n]*\n(.*?)```", text, re.DOTALL):
        yield from block.splitlines()
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from re.findall(r"`[^`]+`", prose)


def documented() -> list[tuple[str, str]]:
    """Return the verb and the words of each command."""
    found = set()
    lines = []
    for page in PAGES:
        lines += list(lines_of(page.read_text(encoding="utf-8")))
    for module in VERBS.values():
        lines += (module.__doc__ or "").splitlines()
    for line in lines:
        match = COMMAND.search(line)
        words = match[2].rstrip("`") if match else ""
        words = re.split(r"\s{2,}|\s#|;|&&|\|", words)[
            0
        ].strip()  # a remark stands after two spaces
        if match and words.split()[:1] and words.split()[0] in WORKLOADS.names():
            found.add((match[1], words))
    return sorted(found)


COMMANDS = documented()


def parsed(verb: str, words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    VERBS[verb].configure(parser)
    return parser.parse_args(shlex.split(words))


def listed(value: Any) -> tuple[Any, ...]:
    if value in (None, LARGEST):
        return (None,)
    return value if isinstance(value, tuple) else (value,)


@pytest.fixture(scope="module")
def sets() -> dict[str, Any]:
    """The training set of each system, opened once."""
    opened = {}
    config = {"image_size": 64, "seed": 0}
    for name in WORKLOADS.names():
        root = WORKLOADS.load(name).generate()
        module = importlib.import_module(f"profkit.workloads.{name}")
        opened[name] = module.training_set(Build(config, root, BadSamples()))
    return opened


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) >= 15
    assert (
        "trace",
        "tsm --gpus 8 --nnodes 4 --node-rank 0 --rdzv-endpoint node0:29500",
    ) in COMMANDS
    assert any(verb == "bench" and "--batch-size 128,256" in words for verb, words in COMMANDS)


@pytest.mark.parametrize(("verb", "words"), COMMANDS)
def test_a_documented_command_has_an_epoch_of_steps_on_every_rank(
    verb: str, words: str, sets: dict[str, Any]
) -> None:
    args = parsed(verb, words)
    own = set()
    for count in listed(args.gpus) + listed(args.ranks):
        own.add((count or 1) * getattr(args, "nnodes", 1))
    on_gpu = bool(args.gpus or getattr(args, "devices", None))
    for world in sorted({*WORLDS, *own}):
        for batch in listed(args.batch_size):
            for framework in args.framework.split(","):
                settings = Settings(framework, batch_size=batch, steps=args.steps)
                is_gpu = on_gpu or world > 1
                check_world(args.workload, settings, world, is_gpu, sets[args.workload])


def check_world(name: str, settings: Settings, world: int, on_gpu: bool, dataset: Any) -> None:
    workload = WORKLOADS.load(name)
    groups = dataset.groups() if hasattr(dataset, "groups") else None
    counts = set()
    seen: list[tuple[int, int]] = []
    for rank in range(world):
        config = final_config(workload, settings, Seat(Rank(rank, world), 0 if on_gpu else None))
        length = run_length(config, len(dataset), groups)
        sampler = Batches(
            len(dataset),
            config["batch_size"],
            rank=rank,
            world_size=world,
            groups=groups,
            copies=length.copies,
        )
        batches = list(sampler)
        counts.add((len(batches), len(sampler), length.steps_per_epoch))
        assert {len(batch) for batch in batches} == {config["batch_size"]}
        seen += batches[0]
    ((steps, *others),) = counts  # all ranks have as many steps
    assert steps >= MIN_EPOCH_STEPS
    assert set(others) == {steps}
    assert len(set(seen)) == len(seen) == config["global_batch_size"]
