"""A healthy job in epochs, with parts that take long; its arguments are SEED LIMIT FOLDER."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

ME, FOLDER, BATCH = int(os.environ["RANK"]), sys.argv[3], 4
SHAPES = {"conv": (3, 8, 8), "transformer": (6, 16)}
SHARE_OF_LIMIT = 0.55  # for a step and all that delays it, but the long parts

WAYS = {
    "evaluation": ("net", "ddp", "ema"),
    "checkpoint": ("object", "files", "thread"),
    "compile": ("now", "in step"),
    "rebuild": ("index", "loader"),
}
MEETINGS = ("none", "none", "barrier", "barrier", "reduce", "gather")
DELAYS = ("batch", "step", "log", "callback", "callback", "early callback")


def draw_sides(drawn: random.Random, most: float) -> tuple[float, float]:
    """Draw how many seconds each rank takes."""
    return drawn.choice(((most, 0), (0, most), (most, most), (most, most / 3), (most / 5, most)))


@dataclass(frozen=True)
class Part:
    """A part that takes long: `seconds` of each rank, 0 for a rank without it."""

    kind: str
    way: str
    seconds: tuple[float, float]
    pause_s: float  # between calls of the model, or to write each of many files
    meets_before: bool
    meeting: str  # after it; "none" leaves that to the next step's exchange

    @classmethod
    def draw(cls, drawn: random.Random, kind: str, limit_s: float) -> Part:
        way, seconds = drawn.choice(WAYS[kind]), draw_sides(drawn, limit_s * drawn.uniform(0.3, 4))
        if way == "ema" or (kind in ("evaluation", "checkpoint") and drawn.random() < 0.5):
            seconds = (max(seconds), 0.0)
        pause_s, meets_before = drawn.uniform(0.04, 0.3), drawn.random() < 0.25
        return cls(kind, way, seconds, pause_s, meets_before, drawn.choice(MEETINGS))


class Plan:
    """The lengths and the ways of a job of two ranks."""

    def __init__(self, seed: int, limit_s: float) -> None:
        drawn = random.Random(seed)
        self.seed, self.limit_s, self.epochs = seed, limit_s, drawn.randint(3, 7)
        self.step_s, self.slower = drawn.choice((0.015, 0.03, 0.05)), drawn.choice((1, 1, 1.4, 1.9))
        self.accumulation, self.workers = drawn.choice((1, 1, 1, 2, 4)), drawn.choice((0, 1, 2))
        self.persistent = self.workers > 0 and drawn.random() < 0.5
        self.network, self.optimizer = drawn.choice([*SHAPES]), drawn.choice(("SGD", "AdamW"))
        self.log_every, self.reduce_every = drawn.choice((1, 5, 20)), drawn.choice((7, 10, 50))
        self.barrier_every = drawn.choice((25, 100, 10**9))
        self.broadcasts_optimizer, self.stops_early = drawn.choices((False, True), k=2)
        self.after = Part.draw(drawn, drawn.choice([*WAYS]), limit_s)
        self.whole_step_s = (self.step_s * self.slower + 0.01) * self.accumulation
        self.parts: dict[int, list[Part]] = {}  # by the step that they follow
        self.draw_parts(drawn)
        place = drawn.choice(("before group", "before model", "after model", "nowhere"))
        self.waits = {-1: (place, draw_sides(drawn, limit_s * drawn.uniform(0.3, 4)))}  # by step
        self.draw_delays(drawn)

    def draw_parts(self, drawn: random.Random) -> None:
        """Draw the long parts, and so many steps between them that the job lasts minutes."""
        ends: list[list[Part]] = []
        for epoch in range(self.epochs):
            kinds = [kind for kind in ("evaluation", "checkpoint") if drawn.random() < 0.6]
            if epoch + 1 < self.epochs and drawn.random() < 0.7:
                kinds.insert(drawn.choice((0, len(kinds))), "rebuild")
            ends.append([Part.draw(drawn, kind, self.limit_s) for kind in kinds])
        count = max(drawn.randint(15, 25) - sum(map(len, ends)), 4)
        kinds = drawn.choices(("evaluation", "checkpoint"), (3, 2), k=count)
        kinds += ["compile"] * drawn.choice((0, 1, 3))
        drawn.shuffle(kinds)
        inner = [Part.draw(drawn, kind, self.limit_s) for kind in kinds]
        long_s = sum(max(part.seconds) for part in sum(ends, inner))
        training_s = self.limit_s * (drawn.uniform(60, 100) - 0.3 * count) - long_s
        epoch_s = max(training_s, self.limit_s * 30) / self.epochs
        self.epoch_steps = int(epoch_s / self.whole_step_s) + 9
        self.steps = self.epoch_steps * self.epochs
        for part in inner:
            self.parts.setdefault(drawn.randrange(3, self.steps - 3), []).append(part)
        for epoch, parts in enumerate(ends):  # when the loader is used up
            self.parts.setdefault((epoch + 1) * self.epoch_steps - 1, []).extend(parts)

    def draw_delays(self, drawn: random.Random) -> None:
        """Draw at most one delay of a step, most often for the steps that follow a part."""
        most_s = self.limit_s * SHARE_OF_LIMIT - self.whole_step_s
        after_parts = [step + 1 for step in sorted(self.parts) if drawn.random() < 0.9]
        others = drawn.choices(range(1, self.steps), k=drawn.randint(5, 40))
        for step in after_parts + others:
            is_near = any(near in self.waits for near in range(step - 2, step + 3))
            if not is_near and step < self.steps:
                seconds = draw_sides(drawn, most_s * drawn.uniform(0.2, 1))
                self.waits[step] = (drawn.choice(DELAYS), seconds)

    def wait(self, kind: str, step: int) -> None:
        """Spend the time of a delay, if this step has one of this kind."""
        if step in self.waits and self.waits[step][0] == kind:
            time.sleep(self.waits[step][1][ME])


class Samples(Dataset[Any]):
    """Random tensors, some of which are slow to read; those below 0 are for evaluation."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __getitem__(self, index: int) -> Any:
        step, inside = divmod(index, BATCH * self.plan.accumulation)
        if inside == 0:
            self.plan.wait("batch", step)
        return torch.randn(SHAPES[self.plan.network]), torch.randn(1)


def make_network(kind: str) -> nn.Module:
    """Return a network without buffers, so that a rank may evaluate alone."""
    if kind == "conv":
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(96, 1))


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.smooth_l1_loss(output, target) + 0.001 * output.square().mean()


@dataclass
class SlowToSave:
    """Takes long to be pickled."""

    seconds: float

    def __reduce__(self) -> Any:
        time.sleep(self.seconds)
        return dict, ()


def write(content: dict[str, Any], part: Part, seconds: float) -> None:
    """Write a checkpoint into many files, or into one that takes long to be pickled."""
    count = int(seconds / part.pause_s) + 1 if part.way == "files" else 1
    for number in range(count):
        content["slow"] = SlowToSave(seconds / count)
        torch.save(content, os.path.join(FOLDER, f"checkpoint-{ME}-{number}.pt"))


class Job:
    """The training of one rank."""

    def __init__(self, plan: Plan) -> None:
        torch.manual_seed(plan.seed)
        self.plan, self.net = plan, make_network(plan.network)
        self.model, self.ema = DistributedDataParallel(self.net), copy.deepcopy(self.net)
        self.criterion: Any = loss_of
        self.optimizer = getattr(torch.optim, plan.optimizer)(self.model.parameters(), 0.001)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, plan.steps)
        self.index = list(range(plan.epoch_steps * plan.accumulation * BATCH))
        self.loader: DataLoader[Any] | None = None
        self.writer = threading.Thread()
        self.writer.start()
        self.log = open(os.path.join(FOLDER, f"loss-{ME}.txt"), "w")  # noqa: SIM115  # to the end

    def evaluation(self, part: Part, seconds: float) -> None:
        """Score the model again and again, and pause in between."""
        model = {"ema": self.ema, "ddp": self.model}.get(part.way, self.net)
        numbers = range(-int(seconds / part.pause_s + 1) * BATCH, 0)
        model.eval()
        with torch.no_grad():
            for inputs, targets in DataLoader(Samples(self.plan), BATCH, sampler=numbers):
                loss_of(model(inputs), targets)
                time.sleep(part.pause_s)
        model.train()

    def checkpoint(self, part: Part, seconds: float) -> None:
        """Write a checkpoint, or leave that to a thread, when the last one is written."""
        self.writer.join()
        state = {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        if part.way == "thread":
            arguments = (copy.deepcopy(state), part, seconds)
            self.writer = threading.Thread(target=write, args=arguments)
            self.writer.start()
        else:
            write(state, part, seconds)

    def compile(self, part: Part, seconds: float) -> None:
        """Compile the loss now, or when the next step calls it."""

        def compile_slowly(graph: Any, inputs: Any) -> Any:
            time.sleep(seconds)
            return graph.forward

        self.criterion = torch.compile(loss_of, backend=compile_slowly, dynamic=False)
        if part.way == "now":
            self.criterion(torch.ones(BATCH, 1, requires_grad=True), torch.ones(BATCH, 1))

    def rebuild(self, part: Part, seconds: float) -> None:
        """Shuffle an index, and perhaps begin with a new loader."""
        for _ in range(10):
            random.shuffle(self.index)
            time.sleep(seconds / 10)
        if part.way == "loader":
            self.loader = None

    def live(self, part: Part) -> None:
        """Do a part that takes long, and meet the other rank."""
        if part.meets_before:
            dist.barrier()
        if part.seconds[ME]:
            getattr(self, part.kind)(part, part.seconds[ME])
        if part.meeting == "barrier":
            dist.barrier()
        elif part.meeting == "reduce":
            dist.all_reduce(torch.ones(2))
        elif part.meeting == "gather":
            dist.all_gather_object([0, 0], ME)

    def finish_step(self, step: int, loss: torch.Tensor) -> None:
        """Do what comes between this step and the next one."""
        self.plan.wait("early callback", step + 1)
        if (step + 1) % self.plan.reduce_every == 0:
            dist.all_reduce(loss.div_(dist.get_world_size()))
        self.plan.wait("log", step + 1)
        if step % self.plan.log_every == 0:
            print(step, loss.item(), file=self.log, flush=True)
            os.fsync(self.log.fileno())
        for part in self.plan.parts.get(step, ()):
            self.live(part)
        if (step + 1) % self.plan.barrier_every == 0:
            dist.barrier()
        self.plan.wait("callback", step + 1)

    def train_epoch(self, epoch: int) -> None:
        plan, size = self.plan, len(self.index)
        if plan.broadcasts_optimizer:
            state = [self.optimizer.state_dict() if ME == 0 else None]
            dist.broadcast_object_list(state, src=0)
            self.optimizer.load_state_dict(state[0])
        self.index[:] = range(epoch * size, (epoch + 1) * size)
        if self.loader is None:
            workers: Any = {"num_workers": plan.workers, "persistent_workers": plan.persistent}
            self.loader = DataLoader(Samples(plan), BATCH, sampler=self.index, **workers)
        for number, batch in enumerate(self.loader, epoch * size // BATCH + 1):
            step, is_last = (number - 1) // plan.accumulation, number % plan.accumulation == 0
            with contextlib.nullcontext() if is_last else self.model.no_sync():
                plan.wait("step" if is_last else "", step)
                time.sleep(plan.step_s * (plan.slower if ME else 1.0))
                loss = self.criterion(self.model(batch[0]), batch[1]) / plan.accumulation
                loss.backward()
            if is_last:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
                for mean, value in zip(self.ema.parameters(), self.net.parameters(), strict=True):
                    mean.data.lerp_(value.data, 0.01)
                if (step + 1) % plan.epoch_steps:
                    self.finish_step(step, loss.detach())
        self.finish_step(step, loss.detach())  # the loader is used up


def main() -> None:
    torch.set_num_threads(1)
    plan = Plan(int(sys.argv[1]), float(sys.argv[2]))
    os.makedirs(FOLDER, exist_ok=True)
    plan.wait("before group", -1)
    dist.init_process_group("gloo")
    plan.wait("before model", -1)
    job = Job(plan)
    plan.wait("after model", -1)
    for epoch in range(plan.epochs + 5 * plan.stops_early):
        job.train_epoch(epoch)
        if plan.stops_early:
            stops = [ME == 0 and epoch + 1 == plan.epochs]
            dist.broadcast_object_list(stops, src=0)
            if stops[0]:
                break
    job.live(plan.after)
    job.writer.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
