"""Train a small transformer with a trainer class, with one of twelve slow lines.

python held_out.py PLANT STEPS      PLANT is `none` or the name behind `# planted:`
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import threading
import time
from collections import Counter
from typing import Any

import torch
from cost import Cost
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

COST = Cost()
DIM, LENGTH, BATCH = 64, 16, 16


class Tokens(IterableDataset[list[int]]):
    def __iter__(self) -> Any:
        number = 0
        while True:
            yield [(number * 7 + place) % 50 for place in range(LENGTH)]
            number += 1


class Pad:
    """A collate function with a state, as tokenizers have."""

    def __init__(self, plant: str) -> None:
        self.plant = plant

    def __call__(self, rows: list[list[int]]) -> torch.Tensor:
        if self.plant == "collate":
            with COST:
                for row in rows:
                    Counter(str(row * 40))  # planted: collate
        return torch.tensor(rows)


class Model(nn.Module):
    def __init__(self, plant: str) -> None:
        super().__init__()
        self.plant = plant
        self.embed = nn.Embedding(50, DIM)
        self.block = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, batch_first=True, dropout=0.0)
        self.head = nn.Linear(DIM, 50)

    def forward(self, tokens: torch.Tensor) -> Any:
        hidden = self.block(self.embed(tokens))
        if self.plant == "sleep":
            with COST:
                time.sleep(0.02)  # planted: sleep
        if self.plant == "recompute":
            with COST, torch.no_grad():
                for _ in range(12):
                    self.block(hidden)  # planted: recompute
        if self.plant == "sync":
            weights = torch.cat([p.flatten() for p in self.parameters()] * 12)
            with COST:
                assert weights.sort().values.isfinite().all().item()  # planted: sync
        return self.head(hidden)


class Checkpointer:
    """A callback that is called with the trainer at the end of each step."""

    def __call__(self, trainer: Trainer) -> None:
        with COST:
            for _ in range(8):
                trainer.kept = copy.deepcopy(trainer.optimizer.state_dict())  # planted: callback


class Trainer:
    def __init__(self, plant: str) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)
        self.plant = plant
        self.model = Model(plant)
        self.average = [p.detach().clone() for p in self.model.parameters()]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.callbacks = [Checkpointer()] if plant == "callback" else []
        self.queue_lock = threading.Condition()
        self.kept: Any = None
        self.extras = {
            "average": self.smooth,
            "lock": self.wait_for_other,
            "busy": self.hash_prefixes,
            "import": self.import_server,
        }
        handler = logging.FileHandler("train.log")
        self.log = logging.getLogger("trainer")
        self.log.addHandler(handler)
        self.file: Any = handler.stream

    def hash_prefixes(self) -> None:
        text = ",".join(map(str, range(3000)))
        with COST:
            found = [hash(text[:end]) for end in range(0, len(text), 2)]  # planted: busy
        del found

    def import_server(self) -> None:
        for name in [name for name in sys.modules if name.startswith(("xml", "http", "html"))]:
            del sys.modules[name]
        with COST:
            import http.server  # noqa: F401  # planted: import

    def log_step(self, number: int) -> None:
        self.log.warning("step %d", number)
        with COST:
            for _ in range(8):
                os.fsync(self.file.write("x" * 9000) and self.file)  # planted: fsync

    def smooth(self) -> None:
        pairs = list(zip(self.average, self.model.parameters(), strict=True)) * 40
        with COST:
            for old, new in pairs:
                old.lerp_(new.detach(), 0.01)  # planted: average

    def measure(self, output: torch.Tensor, tokens: torch.Tensor) -> dict[int, int]:
        confusion: dict[int, int] = {}
        cells = (50 * output.argmax(-1) + tokens).flatten().tolist() * 250
        with COST:
            for cell in cells:
                confusion[cell] = confusion.get(cell, 0) + 1  # planted: metric
        return confusion

    def clip(self) -> None:
        for gradient in [p.grad for p in self.model.parameters() if p.grad is not None]:
            flat = gradient.view(-1)
            with COST:
                for place in range(0, len(flat), 12):
                    flat[place : place + 12].clamp_(-1, 1)  # planted: clip

    def wait_for_other(self) -> None:
        timer = threading.Timer(0.014, self.wake)
        with self.queue_lock, COST:
            timer.start()  # while the lock is held, so that it cannot wake us too early
            self.queue_lock.wait()  # planted: lock

    def wake(self) -> None:
        with self.queue_lock:
            self.queue_lock.notify_all()

    def fit(self, steps: int) -> None:
        loader = DataLoader(Tokens(), batch_size=BATCH, collate_fn=Pad(self.plant))
        for number, tokens in enumerate(loader):
            output = self.model(tokens)
            loss = nn.functional.cross_entropy(output.flatten(0, 1), tokens.flatten())
            if self.plant == "metric":
                self.measure(output, tokens)
            loss.backward()
            if self.plant == "clip":
                self.clip()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.plant == "fsync":
                self.log_step(number)
            self.extras.get(self.plant, time.monotonic)()
            for callback in self.callbacks:
                callback(self)
            COST.end_step()
            if number == steps:
                break
        print(float(loss).hex())
        COST.write()


Trainer(sys.argv[1]).fit(int(sys.argv[2]))
