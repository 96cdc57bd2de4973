"""A small encoder-decoder in PyTorch, written as plain functions over an endless data set.

It accumulates gradients and clips them. Its sentences differ in length, so its steps do as well.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from job_parts import (
    Mishaps,
    Options,
    OwnClock,
    is_due,
    parse,
    read_options,
    wait_for_storage,
)
from torch.nn import functional as nn_functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

RANK = int(os.environ.get("RANK", "0"))
WORDS, PAD = 500, 0
LONGEST = 24


class Sentences(IterableDataset[Any]):
    """Pairs of made-up sentences without end, each parsed by Python code."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def __iter__(self) -> Iterator[tuple[list[int], list[int]]]:
        worker = get_worker_info()
        rng = np.random.default_rng([self.options.seed, RANK, worker.id if worker else 0])
        while True:
            wait_for_storage(self.options)
            raw = rng.integers(1, WORDS, rng.integers(LONGEST // 2, LONGEST)).tolist()
            source = [1 + value % (WORDS - 1) for value in parse(raw, self.options.parsing)]
            yield source, source[::-1]


def collate(samples: list[tuple[list[int], list[int]]], passes: int) -> list[torch.Tensor]:
    """Pad sentences to the same length."""
    for source, _ in samples:
        parse(source, passes)
    sides: list[torch.Tensor] = []
    for sentences in zip(*samples, strict=True):
        padded = torch.full((len(sentences), LONGEST), PAD)
        for row, sentence in zip(padded, sentences, strict=True):
            row[: len(sentence)] = torch.tensor(sentence)
        sides.append(padded[:, : max(map(len, sentences))])
    return sides


class Translator(torch.nn.Module):
    """An encoder and a decoder of a few layers."""

    def __init__(self, options: Options, mishaps: Mishaps) -> None:
        super().__init__()
        width = options.width
        layer: dict[str, Any] = {
            "d_model": width,
            "nhead": 4,
            "dim_feedforward": 2 * width,
            "batch_first": True,
        }
        self.words = torch.nn.Embedding(WORDS, width, padding_idx=PAD)
        self.places = torch.nn.Parameter(0.02 * torch.randn(LONGEST, width))
        self.encoder = torch.nn.ModuleList(
            [torch.nn.TransformerEncoderLayer(**layer) for _ in range(options.layers)]
        )
        self.decoder = torch.nn.ModuleList(
            [torch.nn.TransformerDecoderLayer(**layer) for _ in range(options.layers)]
        )
        self.head = torch.nn.Linear(width, WORDS)
        self.recompute, self.mishaps = options.recompute, mishaps

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mishaps.late("forward")
        memory, hidden = self._embed(source), self._embed(target)
        for encoder in self.encoder:
            memory = self._run(encoder, memory)
        for decoder in self.decoder:
            hidden = self._run(decoder, hidden, memory)
        result: torch.Tensor = self.head(hidden)
        return result

    def _embed(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.words(words) + self.places[: words.shape[1]]
        return found

    def _run(self, layer: torch.nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = (
            checkpoint(layer, *inputs, use_reentrant=False) if self.recompute else layer(*inputs)
        )
        return result


def loss_of(model: Any, batch: list[torch.Tensor]) -> torch.Tensor:
    source, target = batch
    scores = model(source, target[:, :-1])
    return nn_functional.cross_entropy(
        scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD
    )


def clip(options: Options, parameters: list[torch.nn.Parameter]) -> None:
    """Clip the gradients to a norm of 1 with the library, or number by number."""
    if options.clip == "library":
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        return
    squares = 0.0
    for parameter in parameters:
        if parameter.grad is not None:
            for row in parameter.grad.flatten().chunk(60):
                squares += float((row * row).sum().item())
    factor = min(1.0, 1 / (squares**0.5 + 1e-6))
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def average(averages: list[torch.Tensor], parameters: list[torch.nn.Parameter]) -> None:
    """Move each average a little towards its parameter, row by row."""
    with torch.no_grad():
        for mean, parameter in zip(averages, parameters, strict=True):
            rows = parameter.flatten().chunk(25)
            for old, new in zip(mean.flatten().chunk(25), rows, strict=True):
                old.mul_(0.99).add_(new, alpha=0.01)


def evaluate(model: Translator, options: Options) -> None:
    """Compute the loss on a few batches that no loader makes."""
    model.eval()
    sentences = iter(Sentences(options))
    with torch.no_grad():
        for _ in range(8):
            samples = [next(sentences) for _ in range(options.batch)]
            loss_of(model, collate(samples, 0)).item()
    model.train()


def save(model: Translator, optimizer: torch.optim.Optimizer, options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ballast = torch.zeros(options.checkpoint_mb * 250_000)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "more": ballast}
        torch.save(state, Path(folder, "last.pt"))


def gradients(model: Any, batches: Iterator[Any], options: Options, clock: OwnClock) -> float:
    """Accumulate the gradients of a step, and return its loss."""
    total = 0.0
    for micro in range(options.accumulate):
        with clock.time("data"):
            batch = next(batches)
        is_apart = options.no_sync and micro < options.accumulate - 1
        is_apart = is_apart and isinstance(model, DistributedDataParallel)
        with model.no_sync() if is_apart else contextlib.nullcontext():
            with clock.time("forward"):
                loss = loss_of(model, batch) / options.accumulate
            with clock.time("backward"):
                loss.backward()
        total += loss.item()
    return total


def train(options: Options, clock: OwnClock) -> None:
    mishaps = Mishaps(options, clock, RANK)
    inner = Translator(options, mishaps)
    if options.float64:
        inner = inner.double()
    model = DistributedDataParallel(inner) if "RANK" in os.environ else inner
    parameters = list(inner.parameters())
    averages = [parameter.detach().clone() for parameter in parameters]
    kind: dict[str, Any] = {"fused": options.optimizer == "fused", "foreach": False}
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, **kind)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    loader: DataLoader[Any] = DataLoader(
        Sentences(options),
        batch_size=options.batch,
        num_workers=options.workers,
        collate_fn=functools.partial(collate, passes=options.collating),
    )
    batches = iter(loader)
    for step in range(options.steps):
        mishaps.late("before_batch")
        loss = gradients(model, batches, options, clock)
        with clock.time("clip"):
            clip(options, parameters)
        with clock.time("planted"):
            for parameter in parameters[: options.reads]:
                [row.norm().item() for row in parameter.flatten().chunk(24)]
        mishaps.before_step()
        with clock.time("optimizer"):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        with clock.time("planted"):
            if options.average:
                average(averages, parameters)
            if is_due(step, options.evaluate_every):
                evaluate(inner, options)
            if is_due(step, options.checkpoint_every):
                save(inner, optimizer, options)
        mishaps.after_step(step, loss)
        clock.end_step()


def main() -> None:
    options = read_options()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    torch.autograd.set_detect_anomaly(options.anomaly)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    clock = OwnClock()
    train(options, clock)
    clock.write(RANK)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
