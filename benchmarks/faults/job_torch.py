"""A small training job in PyTorch: one process, or ranks under torchrun."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from job_parts import CLASSES, Garbage, Options, OwnClock, Pictures, own_core, place_worker
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional as nn_functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

Batch = tuple[torch.Tensor, torch.Tensor]
RANK = int(os.environ.get("RANK", "0"))


class Data(Dataset[Any]):
    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Any:
        return self.pictures.load(index)


def collate(samples: list[Any]) -> Batch:
    """Drop truncated images, as many jobs do."""
    whole = [sample for sample in samples if sample is not None]
    pictures, labels = zip(*whole, strict=True)
    return torch.stack([torch.from_numpy(picture) for picture in pictures]), torch.tensor(labels)


class Model(torch.nn.Module):
    """A small convolutional network.

    Its middle can be cut into many operators, or copied between layouts.
    """

    def __init__(self, options: Options, clock: OwnClock) -> None:
        super().__init__()
        self.options, self.clock = options, clock
        width = options.width
        self.stem = torch.nn.Conv2d(3, width, 3, padding=1)
        self.middle = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.deep = torch.nn.ModuleList(
            [torch.nn.Conv2d(width, width, 3, padding=1) for _ in range(3)]
        )
        self.head = torch.nn.Linear(width, CLASSES)
        self.wide = torch.nn.Linear(width, 40 * width)
        self.narrow = torch.nn.Linear(40 * width, width)
        self.extra = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros(16)) for _ in range(options.tensors)]
        )
        self.late = ""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        options = self.options
        if self.late == "forward":
            self.clock.plant(options.late_ms)
        hidden = torch.relu(self.stem(pictures))
        hidden = nn_functional.max_pool2d(hidden, 2)
        hidden = torch.relu(self._cut(hidden) if options.slices > 1 else self.middle(hidden))
        for layer in self.deep:
            hidden = torch.relu(layer(self._copied(hidden)))
        if self.late == "backward" and hidden.requires_grad:
            hidden.register_hook(lambda gradient: self.clock.plant(options.late_ms))
        pooled = hidden.mean((2, 3))
        pooled = pooled + self.narrow(torch.relu(self.wide(pooled)))
        extra = sum((parameter.sum() for parameter in self.extra), torch.zeros(()))
        result: torch.Tensor = self.head(pooled) + extra
        for _ in range(options.item_syncs):
            result.sum().item()
        return result

    def _cut(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the same activations with many small operators, like element-wise code."""
        rows = self.middle(hidden).flatten(2).chunk(self.options.slices, dim=2)
        return torch.cat([(row * 1.0 + 0.0).clamp(min=-1e6) for row in rows], dim=2).view_as(hidden)

    def _copied(self, hidden: torch.Tensor) -> torch.Tensor:
        for _ in range(self.options.round_trips):
            hidden = hidden.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).contiguous()
        return hidden


class Link:
    """A link with its own bandwidth and delay. Buckets pass one after the other."""

    def __init__(self, options: Options, clock: OwnClock) -> None:
        self._options, self._clock = options, clock
        self._waiting: queue.SimpleQueue[
            tuple[torch.futures.Future[torch.Tensor], torch.Tensor, float]
        ] = queue.SimpleQueue()
        threading.Thread(target=self._carry, daemon=True).start()

    def exchange(self, state: object, bucket: Any) -> Any:
        size_mb = bucket.buffer().numel() * bucket.buffer().element_size() / 1e6
        seconds = self._options.delay_ms / 1e3 + (
            size_mb / self._options.link_mb_s if self._options.link_mb_s else 0.0
        )
        passed: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def arrived(done: Any) -> torch.Tensor:
            self._waiting.put((passed, done.value(), seconds))
            result: torch.Tensor = done.value()
            return result

        # The type of torch's default group includes None.
        allreduce_hook(dist.group.WORLD, bucket).then(arrived)  # type: ignore[arg-type]
        return passed

    def _carry(self) -> None:
        while True:
            passed, value, seconds = self._waiting.get()
            time.sleep(seconds)
            passed.set_result(value)


Link.exchange.__annotations__ = {}  # DDP expects classes here, but annotations are text


class Trainer:
    """The loop, with the job's own clock around each of its parts."""

    def __init__(self, options: Options) -> None:
        torch.manual_seed(options.seed)
        torch.set_num_threads(options.threads)
        self.options, self.clock = options, OwnClock()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.inner = Model(options, self.clock).to(self.device)
        self.model: Any = self._parallel() if "RANK" in os.environ else self.inner
        self.optimizer = _optimizer(options, self.inner)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=options.scaler)
        self.garbage = Garbage(options)
        self.ballast = (
            torch.zeros(options.checkpoint_mb * 250_000) if options.checkpoint_every else None
        )
        self.late = options.late_phase if options.late_rank == RANK else ""

    def _parallel(self) -> Any:
        dist.init_process_group("gloo")
        options = self.options
        caps: dict[str, Any] = {"bucket_cap_mb": options.bucket_mb}
        parallel = DistributedDataParallel(self.inner, **caps)
        if options.delay_ms or options.link_mb_s:
            parallel.register_comm_hook(None, Link(options, self.clock).exchange)
        return parallel

    def train(self) -> None:
        loader = self._loader()
        with own_core(RANK, placed=self.options.placed) as place:
            self._train(loader, place)
        self.clock.write(RANK)

    def _train(self, loader: DataLoader[Any], place: Callable[[int], None]) -> None:
        step = 0
        while step < self.options.steps:
            batches = self._batches(loader)
            for number in range(min(self.options.epoch_steps, self.options.steps - step)):
                place(step)
                self._step(batches, step)
                self._beside(step)
                self.clock.end_step(starts_epoch=number == 0)
                step += 1

    def _loader(self) -> DataLoader[Any]:
        options = self.options
        workers = options.workers
        return DataLoader(
            Data(Pictures(options, self._late_input)),
            batch_size=options.batch,
            num_workers=workers,
            persistent_workers=options.persistent and workers > 0,
            collate_fn=collate,
            worker_init_fn=functools.partial(place_worker, RANK) if options.placed else None,
            pin_memory=options.pin and self.device.type == "cuda",
        )

    def _late_input(self) -> None:
        if self.late == "input":
            self.clock.plant(self.options.late_ms)

    def _batches(self, loader: Iterable[Any]) -> Iterator[Batch]:
        with self.clock.time("data"):
            return iter(loader)

    def _step(self, batches: Iterator[Batch], step: int) -> None:
        options, clock = self.options, self.clock
        for micro in range(options.accumulate):
            with clock.time("data"):
                pictures, labels = next(batches)
                pictures, labels = pictures.to(self.device), labels.to(self.device)
            clock.add("samples", len(labels))
            with self._synced(last=micro == options.accumulate - 1):
                self._gradients(pictures, labels, step)
        with clock.time("optimizer"):
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()

    def _synced(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        apart = (
            self.options.no_sync and not last and isinstance(self.model, DistributedDataParallel)
        )
        return self.model.no_sync() if apart else contextlib.nullcontext()

    def _gradients(self, pictures: torch.Tensor, labels: torch.Tensor, step: int) -> None:
        clock = self.clock
        self.inner.late = self.late
        with (
            clock.time("forward"),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.autocast),
        ):
            loss = nn_functional.cross_entropy(self.model(pictures).float(), labels)
            self._drift(step)
        if self.options.overflow_every and step % self.options.overflow_every == 0:
            loss = loss * float("inf")
        with clock.time("backward"):
            self.scaler.scale(loss).backward()

    def _drift(self, step: int) -> None:
        """Make each step longer than the last, as a growing list does that every step traverses."""
        if self.options.drift_ms:
            with self.clock.time("planted"):
                until = time.perf_counter() + step * self.options.drift_ms / 1e3
                while time.perf_counter() < until:
                    torch.zeros(64).sum()

    def _beside(self, step: int) -> None:
        options, clock = self.options, self.clock
        self.garbage.after_step(step, clock)
        if (
            options.checkpoint_every
            and step % options.checkpoint_every == options.checkpoint_every - 1
        ):
            self._save()
        if options.evaluate_every and step % options.evaluate_every == options.evaluate_every - 1:
            with clock.time("planted"):
                self._evaluate()

    def _save(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "checkpoint.pt")
            state = {
                "model": self.inner.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "ballast": self.ballast,
            }
            with self.clock.time("planted"):
                torch.save(state, path)

    def _evaluate(self) -> None:
        options = self.options
        self.inner.eval()
        self.inner.late = ""
        with torch.no_grad():
            for pictures, labels in DataLoader(
                torch.utils.data.Subset(
                    Data(Pictures(options)), range(options.batch * options.evaluate_batches)
                ),
                options.batch,
                collate_fn=collate,
            ):
                nn_functional.cross_entropy(
                    self.inner(pictures.to(self.device)), labels.to(self.device)
                )
        self.inner.train()


def _optimizer(options: Options, model: torch.nn.Module) -> torch.optim.Optimizer:
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "fused": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True),
        "loop": lambda parameters: torch.optim.Adam(
            parameters, lr=1e-3, foreach=False, fused=False
        ),
    }
    return kinds[options.optimizer](model.parameters())


def main() -> None:
    Trainer(Options.from_environment()).train()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
