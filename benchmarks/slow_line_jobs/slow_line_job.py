"""Train a recurrent tagger with hooks and closures, with one of twelve slow lines.

python slow_line_job.py PLANT STEPS      PLANT is `none` or the name behind `# planted:`
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cost import Cost
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

COST = Cost()
PLANT, STEPS = sys.argv[1], int(sys.argv[2])
WORDS, TAGS, DIM, LENGTH = 120, 12, 64, 14
SENTENCES, MICRO_BATCH, PARTS = 10_000, 16, 2


def tags_of(words: Tensor) -> Tensor:
    """A word's tag follows from it and the word before; 0 is padding."""
    return ((words + words.roll(1, 1)) % (TAGS - 1) + 1) * (words > 0)


class Sentences(Dataset[list[int]]):
    """Sentences of 8 to 14 words, each asked of a thread where the plant is `lock`."""

    def __init__(self) -> None:
        rows, places = torch.arange(SENTENCES)[:, None], torch.arange(LENGTH)
        self.words = (rows * 31 + places * places) % (WORDS - 1) + 1
        self.asked, self.ready = threading.Semaphore(0), threading.Semaphore(0)
        if PLANT == "lock":
            threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        while True:
            self.asked.acquire()
            time.sleep(0.0002)
            self.ready.release()

    def __len__(self) -> int:
        return SENTENCES

    def __getitem__(self, index: int) -> list[int]:
        if PLANT == "lock":
            self.asked.release()
            with COST:
                self.ready.acquire()  # planted: lock
        return self.words[index, : LENGTH - index % 7].tolist()


class Buckets(Sampler[list[int]]):
    """Micro-batches without end, of sentences as long as each other where sorted."""

    def __iter__(self) -> Iterator[list[int]]:
        rows = pool = list(range(SENTENCES))
        for number in itertools.count():
            if PLANT == "busy":
                with COST:
                    pool = sorted(rows, key=lambda row: (row % 7, row % 101))  # planted: busy
            first = number * MICRO_BATCH % (SENTENCES - MICRO_BATCH)
            yield pool[first : first + MICRO_BATCH]


def pad(rows: list[list[int]]) -> Tensor:
    words = torch.zeros(len(rows), LENGTH, dtype=torch.int64)
    for place, row in enumerate(rows):
        if PLANT == "collate":
            with COST:
                for column, word in enumerate(row):
                    words[place, column] = torch.tensor(word)  # planted: collate
        else:
            words[place, : len(row)] = torch.tensor(row)
    return words


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, DIM)
        self.gru = nn.GRU(DIM, DIM, batch_first=True)
        self.head = nn.Linear(DIM, TAGS)

    def forward(self, words: Tensor) -> Any:
        states, _ = self.gru(self.embed(words))
        return self.head(states)


def weighted_loss(corpus: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss in which rare tags of the corpus weigh more."""
    tags = range(TAGS)
    fixed = corpus.flatten().bincount(minlength=TAGS)

    def loss(output: Tensor, words: Tensor) -> Tensor:
        counts = fixed
        if PLANT == "recompute":
            with COST:
                counts = torch.stack([(corpus == tag).sum() for tag in tags])  # planted: recompute
        if PLANT == "import":
            for name in ("statistics", "fractions"):
                sys.modules.pop(name, None)
            with COST:
                import statistics  # noqa: F401  # planted: import
        weight = corpus.numel() / TAGS / counts.clamp(min=1)
        gold = tags_of(words).flatten()
        return nn.functional.cross_entropy(output.flatten(0, 1), gold, weight, ignore_index=0)

    return loss


def journal() -> Callable[[Tensor], None]:
    """What writes down the words before the model sees them."""
    file = os.open("journal.bin", os.O_CREAT | os.O_WRONLY)

    def note(words: Tensor) -> None:
        for row in words[:4].numpy():
            os.write(file, row.tobytes())
            with COST:
                os.fsync(file)  # planted: fsync

    return note


def warm_up(update: int) -> float:
    if PLANT == "sleep" and update:  # the scheduler asks for update 0 before the first step
        with COST:
            time.sleep(0.003)  # planted: sleep
    return min(1.0, (update + 1) / 10)


def add_hooks(model: Tagger, optimizer: torch.optim.Optimizer) -> None:
    tags = range(TAGS)
    table, shown = deque[list[float]](maxlen=TAGS), deque[str](maxlen=1)

    def score(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        gold, guess = tags_of(inputs[0]), output.argmax(-1)
        for own in [gold == tag for tag in tags]:
            with COST:
                table.append([(own & (guess == t)).sum().item() for t in tags])  # planted: metric

    def shorten(gradient: Tensor) -> Tensor:
        with COST:
            rows = [row / max(1.0, row.norm().item()) for row in gradient]  # planted: clip
        return torch.stack(rows)

    def publish(*_: Any) -> None:
        state = model.state_dict().items()
        with COST:
            shown.append(json.dumps({name: p.tolist() for name, p in state}))  # planted: callback

    if PLANT == "metric":
        model.register_forward_hook(score)
    if PLANT == "clip":
        for parameter in (model.embed.weight, *list(model.gru.parameters())[:2]):
            parameter.register_hook(shorten)
    if PLANT == "callback":
        optimizer.register_step_pre_hook(publish)


class Update:
    """What comes before and after the micro-batches of a step."""

    def __init__(self, model: Tagger, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)
        self.past = deque([self.weights()] * 100, maxlen=100)
        self.mean = self.past[0]

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def __enter__(self) -> None:
        if PLANT == "average":
            self.past.append(self.weights())
            with COST:
                self.mean = torch.stack(tuple(self.past)).mean(0)  # planted: average
        self.optimizer.zero_grad()

    def __exit__(self, *_: object) -> None:
        self.optimizer.step()
        self.scheduler.step()
        COST.end_step()


def main() -> None:
    torch.manual_seed(2)
    torch.set_num_threads(1)
    sentences, model = Sentences(), Tagger()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    add_hooks(model, optimizer)
    update, note = Update(model, optimizer), journal()
    loss_of = weighted_loss(tags_of(sentences.words))
    parts = iter(DataLoader(sentences, batch_sampler=Buckets(), collate_fn=pad))
    gates = list(model.gru.parameters())[1].detach().view(3, DIM, DIM)
    stretch, total = torch.linalg.svdvals(gates).max().item(), 0.0  # the first call loads much
    for _ in range(STEPS + 1):
        with update:
            for words in itertools.islice(parts, PARTS):
                if PLANT == "fsync":
                    note(words)
                loss = loss_of(model(words), words) / PARTS
                loss.backward()
                if PLANT == "sync":
                    with COST:
                        stretch = torch.linalg.svdvals(gates).max().item()  # planted: sync
                total += loss.item()
    print(total.hex(), stretch)
    COST.write()


main()
