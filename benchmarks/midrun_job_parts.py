"""Models, data and helpers of the job of `midrun.py`; none of them knows a profiler."""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.functional import interpolate, max_pool2d, mse_loss, pad
from torch.utils.data import Dataset, IterableDataset, Sampler

SIDE, PICTURES, CHANNELS = 32, 12, 8
WORDS, TEXTS, WIDTH, LAYERS = 400, 12, 32, 6
FIELDS, ROWS, HIDDEN = 256, 64, 512
OUTAGE_S = 2.2
LONGER = 1.8


class Run:
    """Which step is under way, and what changes at which step."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.change, self.at, self.steps = options.change, options.at, options.steps
        self.extra_ms = options.extra_ms
        self.rank = int(os.environ.get("RANK", "0"))
        self.step = 0

    def has(self, change: str) -> bool:
        return bool(self.change == change and self.step >= self.at)

    def extra(self, change: str) -> float:
        """Return the added milliseconds of a change: none before it, or in another one."""
        return float(self.extra_ms * self.has(change))


def wait(ms: float) -> None:
    """Wait for something that is not this processor's work."""
    if ms > 0:
        time.sleep(ms / 1e3)


def rounds(ms: float) -> Iterator[None]:
    """Yield until that time has passed, so that a loop takes as long on each machine."""
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        yield


def banded_mask(length: int, ms: float) -> list[list[float]]:
    """Return which word sees which, as lists; at least once, and for that time."""
    mask: list[list[float]] = []
    for _ in chain([None], rounds(ms)):
        mask = []
        for row in range(length):
            line = [float("-inf")] * length
            for column in range(max(0, row - length // 2), row + 1):
                line[column] = 0.0
            mask.append(line)
    return mask


def block(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


class UNet(nn.Module):
    """Segments pictures."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.down = block(1, CHANNELS)
        self.deep = block(CHANNELS, 2 * CHANNELS)
        self.up = block(3 * CHANNELS, CHANNELS)
        self.head = nn.Conv2d(CHANNELS, 1, 1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        wide = self.down(pictures)
        deep = self.deep(max_pool2d(wide, 2))
        wait(16.0)
        for _ in rounds(self.run.extra("finite")):
            if not torch.isfinite(deep).all():
                raise FloatingPointError
        back = interpolate(deep, scale_factor=2.0)
        logits: torch.Tensor = self.head(self.up(torch.cat([wide, back], 1)))
        return logits


class Language(nn.Module):
    """Predicts the next word."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.embed(words), mask=mask)
        wait(0.4 * words.shape[1])
        logits: torch.Tensor = self.head(x)
        return logits


class Denoiser(nn.Module):
    """An autoencoder of rows to which noise is added."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        first = nn.Linear(FIELDS, HIDDEN)
        first.weight.register_post_accumulate_grad_hook(self.watch)
        self.encoder = nn.Sequential(first, nn.ReLU(), nn.Linear(HIDDEN, 32))
        self.decoder = nn.Sequential(nn.Linear(32, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, FIELDS))
        self.scales = torch.linspace(0.01, 0.1, FIELDS)

    def watch(self, weight: torch.Tensor) -> None:
        """Take the histogram of a gradient as soon as it is there."""
        gradient = weight.grad
        assert gradient is not None
        for _ in rounds(self.run.extra("watch")):
            torch.histc(gradient, 64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        run = self.run
        if run.change == "cached" and run.step < run.at:
            for _ in rounds(run.extra_ms):
                self.scales = torch.linspace(0.01, 0.1, FIELDS).sort().values
        wait(18.0)
        noisy = rows + self.scales * torch.randn_like(rows)
        restored: torch.Tensor = self.decoder(self.encoder(noisy))
        return restored


def dice(run: Run, logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Return a loss of overlap, with the distance to the edges on one rank."""
    found = logits.sigmoid()
    for _ in rounds(run.extra("edges") * (run.rank == 1)):
        max_pool2d(masks, 3, 1, 1).sub(masks).sum()
    return 1 - (2 * (found * masks).sum() + 1) / (found.sum() + masks.sum() + 1)


def restoring_loss(run: Run, model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Return the error, and later also how far apart two passes are."""
    restored = model(rows)
    loss = mse_loss(restored, rows)
    if run.has("twice"):
        loss = loss + 0.1 * mse_loss(model(rows), restored.detach())
    return loss


def squeezed(run: Run, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Make the gradients smaller on one rank before both exchange them."""
    gradients = bucket.buffer()
    if bucket.is_last() and run.rank == 1:
        for _ in rounds(run.extra("squeeze")):
            gradients.abs().kthvalue(len(gradients) // 2)
    sent = distributed.all_reduce(gradients.div_(2), async_op=True).get_future()
    return sent.then(lambda future: future.value()[0])


squeezed.__annotations__.clear()  # DDP takes types there, and these are strings


class Pictures(Dataset):  # type: ignore[type-arg]  # of pairs
    """Pictures with masks; a worker knows the step by the number."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __len__(self) -> int:
        return int(self.run.steps) * PICTURES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        wait(1.0)
        if self.run.change == "decode" and number // PICTURES >= self.run.at:
            wait(self.run.extra_ms)
        picture = torch.rand(1, SIDE, SIDE)
        return picture, (picture > 0.5).float()


class Windows(Sampler[int]):
    """Shuffles within each batch, as for a file that is read from its begin to its end."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __len__(self) -> int:
        return int(self.run.steps) * PICTURES

    def __iter__(self) -> Iterator[int]:
        for first in range(0, len(self), PICTURES):
            window = list(range(first, first + PICTURES))
            random.shuffle(window)
            yield from window


class Buckets(Sampler[list[int]]):
    """Batches of texts of about one length; the number of a text is its length."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __len__(self) -> int:
        return int(self.run.steps)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            longest = random.randint(28, 36)
            if self.run.has("longer"):
                longest = int(LONGER * longest)
            yield [longest, *random.choices(range(longest - 6, longest), k=TEXTS - 1)]


class Texts(Dataset):  # type: ignore[type-arg]  # of tensors
    def __getitem__(self, length: int) -> torch.Tensor:
        return torch.randint(1, WORDS, (length,))


class Pad:
    """Collates texts of several lengths."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, texts: list[torch.Tensor]) -> torch.Tensor:
        longest = max(map(len, texts))
        for _ in rounds(self.run.extra("padding")):
            for text in texts:
                text.tolist().extend([0] * (longest - len(text)))
        return torch.stack([pad(text, (0, longest - len(text))) for text in texts])


class Stream(IterableDataset):  # type: ignore[type-arg]  # of tensors
    """Rows from a server, which answers late for a while."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.since = 0.0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.run.steps * ROWS):
            if number % ROWS == 0 and self.run.has("outage"):
                self.since = self.since or time.monotonic()
                if time.monotonic() - self.since < OUTAGE_S:
                    wait(self.run.extra_ms)
            yield torch.rand(FIELDS)


def parse_log() -> None:
    """Read a log again and again, as a thread beside the training does."""
    text = "step=1 loss=0.5 rate=0.01 " * 40
    while True:
        for _ in rounds(8.0):
            dict(pair.split("=") for pair in text.split())
        wait(6.0)


def cached_annotations() -> list[dict[str, Any]]:
    """Return many small objects that stay."""
    kept: list[dict[str, Any]] = []
    for number in range(60_000):
        kept.append({"number": number, "boxes": [number, [number]]})
    return kept
