"""The job of `midrun.py`, written by somebody who had not seen the rules.

    python benchmarks/midrun_job.py --change finite --at 130
    torchrun --nproc-per-node 2 benchmarks/midrun_job.py --change edges

It trains one of three models, each with a loop of its own style: a U-Net with a gradient scaler, a
language model in a class with callbacks, or an autoencoder in a generator.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import random
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from midrun_job_parts import (
    PICTURES,
    ROWS,
    TEXTS,
    Buckets,
    Denoiser,
    Language,
    Pad,
    Pictures,
    Run,
    Stream,
    Texts,
    UNet,
    Windows,
    banded_mask,
    cached_annotations,
    dice,
    parse_log,
    restoring_loss,
    rounds,
    squeezed,
)
from torch import distributed, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

MODELS: Mapping[str, type[nn.Module]] = {"pictures": UNet, "texts": Language, "rows": Denoiser}
CHANGES = {
    "none": "pictures",
    "finite": "pictures",
    "decode": "pictures",
    "guard": "pictures",
    "compiler": "pictures",
    "edges": "pictures",
    "mask": "texts",
    "perplexity": "texts",
    "padding": "texts",
    "validation": "texts",
    "median": "texts",
    "longer": "texts",
    "restored": "texts",
    "journal": "texts",
    "watch": "rows",
    "cached": "rows",
    "snapshot": "rows",
    "outage": "rows",
    "parser": "rows",
    "twice": "rows",
    "squeeze": "rows",
}
"""The model that each change is in."""

VALIDATE_EVERY, SAVE_EVERY = 9, 7
NEIGHBOUR = ["timeout", "90", "sh", "-c", "while :; do :; done"]
TOP = 3


def fit_pictures(run: Run, model: nn.Module, loader: Any) -> None:
    """Train with a gradient scaler, as scripts for mixed precision do."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    annotations: list[Any] = []
    neighbours: list[subprocess.Popen[bytes]] = []
    for pictures, masks in loader:
        if run.step == run.at and run.change == "guard":
            annotations = cached_annotations()
        if run.step == run.at and run.change == "compiler":
            for _ in range(3 * (os.cpu_count() or 1)):
                neighbours.append(subprocess.Popen(NEIGHBOUR, start_new_session=True))
        optimizer.zero_grad()
        logits = model(pictures)
        loss = dice(run, logits, masks) + binary_cross_entropy_with_logits(logits, masks)
        if annotations:
            gc.collect()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        run.step += 1
    for neighbour in neighbours:
        neighbour.terminate()
        neighbour.wait()


class Perplexity:
    """Counts the words that were among the most likely ones."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.hits = 0

    def on_step_end(self, logits: torch.Tensor, words: torch.Tensor) -> None:
        likely = logits.flatten(0, 1).topk(TOP).indices.tolist()
        targets = words.flatten().tolist()
        for _ in rounds(self.run.extra("perplexity")):
            for word, best in zip(targets, likely, strict=True):
                self.hits += word in best


class Median:
    """Keeps the median loss of all words so far."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.losses: list[float] = []
        self.middle = 0.0

    def on_step_end(self, logits: torch.Tensor, words: torch.Tensor) -> None:
        if self.run.has("median"):
            losses = cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="none")
            self.losses += losses.tolist()
            self.middle = sorted(self.losses)[len(self.losses) // 2]


class Journal:
    """Writes each step to a file, on the first rank."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.path = Path(tempfile.mkdtemp(prefix="midrun-")) / "journal"

    def on_step_end(self, logits: torch.Tensor, words: torch.Tensor) -> None:
        if self.run.rank == 0 and self.run.has("journal"):
            with self.path.open("w") as file:
                for _ in rounds(self.run.extra_ms):
                    file.write(json.dumps({"step": self.run.step, "words": words[0].tolist()}))
                file.flush()
                os.fsync(file.fileno())


class Trainer:
    """Trains and validates a language model, with callbacks."""

    def __init__(self, run: Run, model: nn.Module, callbacks: Sequence[Any]) -> None:
        self.run, self.model, self.callbacks = run, model, callbacks
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, 1e-3, total_steps=run.steps + 1
        )
        self.masks: dict[int, torch.Tensor] = {}

    def mask(self, length: int) -> torch.Tensor:
        """Return the mask of a length; the change forgets the earlier ones."""
        if length not in self.masks or self.run.has("mask"):
            self.masks[length] = torch.tensor(banded_mask(length, self.run.extra("mask")))
        return self.masks[length]

    def predict(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(words[:, :-1], self.mask(words.shape[1] - 1))
        return logits, cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())

    def fit(self, loader: Any, validation: Any) -> None:
        run = self.run
        for words in loader:
            if run.step == run.at and run.change == "restored":
                self.restore()
            self.optimizer.zero_grad(set_to_none=True)
            logits, loss = self.predict(words)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            for callback in self.callbacks:
                callback.on_step_end(logits.detach(), words[:, 1:])
            run.step += 1
            if run.has("validation") and (run.step - run.at) % VALIDATE_EVERY == 0:
                self.validate(validation)

    def restore(self) -> None:
        """Load what another script saved, which did not know the quicker update."""
        state = self.optimizer.state_dict()
        for group in state["param_groups"]:
            group["fused"] = False
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        self.optimizer.load_state_dict(torch.load(file))

    @torch.no_grad()
    def validate(self, validation: Any) -> float:
        self.model.eval()
        total = 0.0
        for words in validation:
            total += float(self.predict(words)[1])
        self.model.train()
        return total


def save_snapshot(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Keep the last and the best state, as a real script does."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "average": torch.zeros(2_000_000),
    }
    for name in ("last.pt", "best.pt"):
        with (folder / name).open("wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())


def restored_rows(run: Run, model: nn.Module, loader: Any) -> Iterator[float]:
    """Train a step each time that somebody asks for a loss."""
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.steps)
    folder = Path(tempfile.mkdtemp(prefix="midrun-"))
    for rows in loader:
        if run.step == run.at and run.change == "parser":
            threading.Thread(target=parse_log, daemon=True).start()
        loss = restoring_loss(run, model, rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if run.has("snapshot") and (run.step - run.at) % SAVE_EVERY == 0:
            save_snapshot(folder, model, optimizer)
        yield float(loss)
        run.step += 1


def train(run: Run, task: str, model: nn.Module) -> None:
    """Make the loader of a task, and run its loop."""
    if task == "pictures":
        pictures = DataLoader(Pictures(run), PICTURES, sampler=Windows(run), num_workers=2)
        fit_pictures(run, model, pictures)
    elif task == "texts":
        callbacks = [Perplexity(run), Median(run), Journal(run)]
        texts = DataLoader(Texts(), batch_sampler=Buckets(run), collate_fn=Pad(run))
        held_out = DataLoader(Texts(), batch_sampler=[[30] * TEXTS] * 4, collate_fn=Pad(run))
        Trainer(run, model, callbacks).fit(texts, held_out)
    else:
        losses = deque(restored_rows(run, model, DataLoader(Stream(run), ROWS)), maxlen=50)
        print(f"last losses: {sum(losses) / len(losses):.3f}")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--change", choices=tuple(CHANGES), default="none")
    options.add_argument("--task", choices=tuple(MODELS), default=None)
    options.add_argument("--at", type=int, default=130)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--extra-ms", type=float, default=9.0)
    args = options.parse_args()
    run, task = Run(args), args.task or CHANGES[args.change]
    torch.manual_seed(2)
    random.seed(2)
    torch.set_num_threads(1)
    model: nn.Module = MODELS[task](run)
    if "WORLD_SIZE" in os.environ:
        distributed.init_process_group("gloo")
        parallel = DistributedDataParallel(model)
        if run.change == "squeeze":
            parallel.register_comm_hook(run, squeezed)
        model = parallel
    train(run, task, model)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
