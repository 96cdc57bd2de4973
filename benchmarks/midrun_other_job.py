"""The held-out job of `midrun.py`: other models, loops and changes than `midrun_job.py`.

    python benchmarks/midrun_other_job.py --change encoder --at 120
    torchrun --nproc-per-node 2 benchmarks/midrun_other_job.py --change shard

It was written before any rule was changed for what `midrun_job.py` shows.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WORDS, CHANNELS, CLASSES, LENGTH = 1_000, 48, 10, 24
NODES, READS = 120_000, 8


def busy(ms: float) -> None:
    """Compute for a while, as slow Python code does."""
    end = time.perf_counter() + ms / 1e3
    crc = 0
    while time.perf_counter() < end:
        crc = zlib.crc32(b"tokens", crc)


class State:
    """How far the job is."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.change, self.at, self.extra_ms = options.change, options.at, options.extra_ms
        self.steps, self.batch = options.steps, options.batch
        self.done = 0
        self.rank = int(os.environ.get("RANK", "0"))

    def now(self, change: str) -> bool:
        return bool(self.change == change and self.done >= self.at)

    @property
    def way(self) -> float:
        """The share of the time after the change that has gone by."""
        return float(max(0.0, (self.done - self.at) / (self.steps - self.at)))


class Mixer(nn.Module):
    """Mixes the positions of a sequence."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self.gru = nn.GRU(CHANNELS, CHANNELS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.state.now("encoder"):
            busy(self.state.extra_ms)
        found: torch.Tensor = self.gru(x)[0]
        if found.requires_grad:
            found.register_hook(self.hook)
        return found

    def hook(self, gradient: torch.Tensor) -> None:
        if self.state.now("gradient"):
            busy(self.state.extra_ms)


class Classifier(nn.Module):
    """Embedding, a mixer and a head."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self.embed = nn.Embedding(WORDS, CHANNELS)
        self.mixer = Mixer(state)
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.mixer(self.embed(tokens))
        time.sleep(0.0006 * tokens.shape[1])
        if self.state.change == "kernel" and not self.state.now("kernel"):
            time.sleep(self.state.extra_ms / 1e3)
        answer: torch.Tensor = self.head(x.mean(1))
        return answer


class Sentences(Dataset):  # type: ignore[type-arg]  # of pairs
    """Sentences of one length, which may grow."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.folder = Path(tempfile.mkdtemp(prefix="midrun-"))
        (self.folder / "text").write_bytes(b"words " * 50_000)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        state = self.state
        is_first = number % state.batch == 0
        length = LENGTH
        if state.change == "curriculum":
            length += int(LENGTH * state.way)
        if is_first and state.now("files"):
            for _ in range(READS):
                zlib.compress((self.folder / "text").read_bytes(), 1)
        if is_first and state.now("stall") and state.done < state.at + 30:
            time.sleep(state.extra_ms / 1e3)
        if is_first and state.now("shard") and state.rank == 0:
            time.sleep(state.extra_ms / 1e3)
        if state.change == "uncached" and is_first and state.done < state.at:
            time.sleep(state.extra_ms / 1e3)
        return torch.randint(WORDS, (length,)), number % CLASSES


class Stack:
    """Collates samples, in a worker."""

    def __init__(self, state: State) -> None:
        self.state, self.count = state, 0

    def __call__(self, rows: list[Any]) -> Any:
        time.sleep(0.02)
        self.count += 1
        if self.state.change == "collate" and 2 * self.count >= self.state.at:
            time.sleep(3 * self.state.extra_ms / 1e3)
        return torch.utils.data.default_collate(rows)


class Pages:
    """The numbers of the samples of each batch."""

    def __init__(self, state: State) -> None:
        self.state = state

    def __iter__(self) -> Any:
        first = 0
        for step in range(self.state.steps):
            size = self.state.batch
            if self.state.change == "smaller" and step >= self.state.at:
                size = size * 5 // 8
            yield list(range(first, first + size))
            first += self.state.batch


def compress_logs() -> None:
    count = 0
    while True:
        for place in range(50_000):
            count ^= place


def late_hook(state: State, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    if state.now("network") and state.rank == 1:
        time.sleep(state.extra_ms / 1e3)
    sent = distributed.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
    return sent.then(lambda future: future.value()[0])


late_hook.__annotations__.clear()  # DDP takes types there, and these are strings


class Trainer:
    """The loop, with what happens around a step."""

    def __init__(self, state: State, model: nn.Module, loader: Any) -> None:
        self.state, self.model, self.loader = state, model, loader
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.optimizer.register_step_post_hook(self.average)
        self.folder = Path(tempfile.mkdtemp(prefix="midrun-"))
        self.tree: list[Any] = []
        self.history: list[float] = []
        self.others: list[subprocess.Popen[bytes]] = []

    def average(self, *_: Any) -> None:
        if self.state.now("average"):
            busy(self.state.extra_ms)

    def begin(self) -> None:
        change = self.state.change
        if change == "thread":
            threading.Thread(target=compress_logs, daemon=True).start()
        elif change == "cycles":
            for _ in range(NODES):
                self.tree.append([self.tree])
        elif change == "neighbours":
            code = "x = 1\nwhile True: x = x * 3 % 1000003"
            for _ in range(2 * (os.cpu_count() or 1)):
                self.others.append(subprocess.Popen([sys.executable, "-c", code]))

    def part(self, tokens: torch.Tensor, labels: torch.Tensor) -> float:
        loss = cross_entropy(self.model(tokens), labels)
        if self.state.now("history"):
            time.sleep(2 * self.state.extra_ms / 1e3 * self.state.way)
        loss.backward()
        return float(loss)

    def run(self) -> None:
        state = self.state
        for tokens, labels in self.loader:
            if state.done == state.at:
                self.begin()
            self.optimizer.zero_grad(set_to_none=True)
            value = self.part(tokens, labels)
            if state.now("accumulate"):
                value += self.part(tokens, labels)
            if state.now("norms"):
                time.sleep(state.extra_ms / 1e3)
            self.optimizer.step()
            self.after(value, tokens)
            state.done += 1
        for other in self.others:
            other.kill()
            other.wait()

    def after(self, value: float, tokens: torch.Tensor) -> None:
        """Log, save and validate."""
        state = self.state
        self.history.append(value)
        if state.now("metrics"):
            busy(state.extra_ms)
        if self.tree:
            gc.collect()
        gone = state.done - state.at
        if state.now("validation") and gone % 12 == 0:
            self.model.eval()
            with torch.inference_mode():
                for _ in range(5):
                    self.model(tokens)
            self.model.train()
        if state.now("saving") and gone % 6 == 0:
            for _ in range(8):
                torch.save({"x": torch.zeros(1_500_000)}, self.folder / "last.pt")
        if state.now("rotation") and gone % 15 == 0:
            with (self.folder / "log").open("a") as file:
                file.write(f"{value}\n")
                os.fsync(file.fileno())
            time.sleep(6 * state.extra_ms / 1e3)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--change", default="none")
    options.add_argument("--at", type=int, default=120)
    options.add_argument("--steps", type=int, default=280)
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--extra-ms", type=float, default=9.0)
    state = State(options.parse_args())
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model: nn.Module = Classifier(state)
    if "WORLD_SIZE" in os.environ:
        distributed.init_process_group("gloo")
        parallel = DistributedDataParallel(model)
        if state.change == "network":
            parallel.register_comm_hook(state, late_hook)
        model = parallel
    workers = 2 if state.change == "collate" else 0
    loader: DataLoader[Any] = DataLoader(
        Sentences(state),
        batch_sampler=Pages(state),
        num_workers=workers,
        collate_fn=Stack(state) if workers else None,
    )
    Trainer(state, model, loader).run()
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
