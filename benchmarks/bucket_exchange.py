"""One rank of `collectives.py`: a job's buckets and messages of the link test, in turns."""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from profkit.analysis.bandwidth import FACTORS, size_use
from profkit.analysis.estimate import student_95
from profkit.workloads.base import wait_passively

FEWEST_TURNS = 3
CASES = ("overlapped", "alone")
PLACED = "links in a step"
Transfers = dict[int, float]
"""Bytes a second over the bus, by size of message."""


def train(options: argparse.Namespace) -> None:
    """Run the whole measurement as one rank. Rank 0 prints it."""
    wait_passively()
    import torch

    from profkit.workloads.training import ops_torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo", timeout=dt.timedelta(seconds=120))
    inputs = torch.randn(options.batch_size, 3, options.image_size, options.image_size)
    model = ops_torch.resnet50()
    exchange = Exchange()
    step = {
        case: functools.partial(train_step, wrap(model, waits=case == "alone"), inputs)
        for case in CASES
    }
    for case in CASES:
        measure_job(exchange, step[case], 3)  # DDP orders its buckets anew after the first step
    sizes = sorted(measure_job(exchange, step["alone"], 1))
    modes: dict[str, Callable[[], Transfers]] = {
        case: functools.partial(measure_job, exchange, step[case], options.steps) for case in CASES
    }
    modes[PLACED] = Placed(inputs, model, options.steps)
    modes["links"] = functools.partial(
        measure_links, sizes, options.steps
    )  # as many as of each bucket: medians of fewer are higher
    random = Random(0)
    turns = [
        {mode: modes[mode]() for mode in random.sample(list(modes), len(modes))}
        for _ in range(options.turns)
    ]
    if torch.distributed.get_rank() == 0:
        gradients = sum(each.numel() * each.element_size() for each in model.parameters())
        rows = list(describe(turns, sizes))
        print(
            json.dumps(
                {
                    "turns": options.turns,
                    "gradient_bytes": gradients,
                    "bucket_bytes_per_step": exchange.bytes_per_step,
                    "sizes": rows,
                }
            )
        )
    torch.distributed.destroy_process_group()


def wrap(model: Any, *, waits: bool) -> Any:
    """Return the model in DDP. With `waits`, the backward waits until a bucket is exchanged."""
    from torch.distributed import barrier
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    def exchange_now(group: Any, bucket: Any) -> Any:
        barrier()  # none after it: what a hook does until it returns is the exchange
        future = allreduce_hook(group, bucket)
        future.wait()
        return future

    # DDP compares annotations with its own classes, but those of this file are text.
    exchange_now.__annotations__ = {}
    wrapped = DistributedDataParallel(model)
    if waits:
        wrapped.register_comm_hook(None, exchange_now)
    return wrapped


class Placed:
    """Messages of the link test in place of buckets, which are not exchanged."""

    def __init__(self, inputs: Any, model: Any, steps: int) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self._took: dict[int, list[float]] = {}
        self._messages: dict[int, Iterator[Any]] = {}
        self._steps = steps
        wrapped = DistributedDataParallel(model)
        wrapped.register_comm_hook(None, self._hook())
        self._step = functools.partial(train_step, wrapped, inputs)
        for _ in range(3):
            self._step()  # DDP orders its buckets anew after the first

    def __call__(self) -> Transfers:
        self._took.clear()
        for _ in range(self._steps):
            self._step()
        return {size: _links_of(size, took) for size, took in sorted(self._took.items())}

    def _hook(self) -> Callable[[Any, Any], Any]:
        import torch
        from torch.distributed import barrier

        from profkit.machine.ceilings_torch import time_one

        def send_ours(group: Any, bucket: Any) -> Any:
            size = bucket.buffer().numel() * bucket.buffer().element_size()
            message = next(self._messages.setdefault(size, itertools.cycle(_messages(size))))
            barrier()
            self._took.setdefault(size, []).append(time_one(message, torch.device("cpu")))
            barrier()
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        send_ours.__annotations__ = {}  # as above
        return send_ours


def train_step(model: Any, inputs: Any) -> None:
    model.zero_grad(set_to_none=True)
    model(inputs).square().mean().backward()


class Exchange:
    """profkit's hooks in this process, and the rows of one case."""

    def __init__(self) -> None:
        from profkit.instrument.frameworks.base import InnerBooks, load_framework
        from profkit.instrument.recorder import MemorySink, Recorder

        self.sink = MemorySink()
        self.recorder = Recorder(self.sink)
        books = InnerBooks(
            self.recorder, self.sink.appender("collectives"), self.sink.appender("samples")
        )
        self.patches, self.backward_done = load_framework("torch").install_inner(books)
        self.bytes_per_step = 0

    def take(self) -> list[tuple[Any, ...]]:
        """Return the buckets since the last call, without calls that are not DDP's."""
        from profkit.instrument.rows import CollectiveRow

        rows = [CollectiveRow(*row) for row in self.sink.rows["collectives"]]
        rows = [row for row in rows if row.bucket is not None]
        self.sink.rows["collectives"].clear()
        return [tuple(row) for row in rows]


def measure_job(exchange: Exchange, step: Callable[[], None], steps: int) -> Transfers:
    """Return each bucket's bus bandwidth, as profkit computes it from all ranks' rows."""
    import torch

    exchange.take()
    for _ in range(steps):
        torch.distributed.barrier()
        with exchange.recorder.step(1):
            step()
            exchange.backward_done()
    own = exchange.take()
    rows: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(rows, own)
    return _bandwidths(exchange, rows)


def _bandwidths(exchange: Exchange, rows: Sequence[Sequence[tuple[Any, ...]]]) -> Transfers:
    import numpy as np
    import pyarrow as pa

    from profkit.schema import SCHEMAS

    columns = zip(*((rank, *row) for rank, own in enumerate(rows) for row in own), strict=True)
    table = pa.table(
        {
            name: _column(values)
            for name, values in zip(SCHEMAS["collectives"].names, columns, strict=True)
        }
    )
    steps = np.unique(table["step"].to_numpy())
    used = size_use(table, steps)
    exchange.bytes_per_step = round(sum(each.bytes * each.messages_per_step for each in used))
    return {each.bytes: each.bus_bytes_per_s for each in used if each.bus_bytes_per_s is not None}


def _column(values: Sequence[Any]) -> Any:
    import pyarrow as pa

    made = pa.array(values)
    return made.dictionary_encode() if pa.types.is_string(made.type) else made


def measure_links(sizes: Sequence[int], rounds: int) -> Transfers:
    """Measure as `profkit ceilings --links`: the median over rounds of the shortest rank."""
    import torch

    from profkit.machine.ceilings_torch import time_one

    found = {}
    for size in sizes:
        messages = itertools.islice(itertools.cycle(_messages(size)), rounds + 1)
        found[size] = _links_of(
            size, [time_one(message, torch.device("cpu")) for message in messages][1:]
        )
    return found


def _links_of(size: int, took_s: Sequence[float]) -> float:
    """Return the median over the messages of the shortest rank."""
    import torch

    shortest = torch.tensor(took_s, dtype=torch.float64)
    torch.distributed.all_reduce(shortest, op=torch.distributed.ReduceOp.MIN)
    return float(
        size
        * FACTORS["all_reduce"](torch.distributed.get_world_size())
        / statistics.median(shortest.tolist())
    )


@functools.cache
def _messages(size: int) -> list[Any]:
    import torch

    from profkit.machine.ceilings_torch import make_messages

    return make_messages(size, torch.device("cpu"))


def describe(
    turns: Sequence[Mapping[str, Transfers]], sizes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    for size in sizes:
        links = [turn["links"][size] for turn in turns]
        row: dict[str, Any] = {"bytes": size, "links_bytes_per_s": round(statistics.median(links))}
        for case in (*CASES, PLACED):
            row[case] = _ratio(
                [
                    turn[case][size] / link
                    for turn, link in zip(turns, links, strict=True)
                    if size in turn[case]
                ]
            )
        yield row


def _ratio(ratios: Sequence[float]) -> dict[str, float | None]:
    """Return the mean over the middle of the turns, or `None` if there are too few.

    Turns in which the machine did something else lie outside the middle.
    """
    if len(ratios) < FEWEST_TURNS:
        return {"ratio": None, "low": None, "high": None}
    cut = len(ratios) // 6
    kept = sorted(ratios)[cut : len(ratios) - cut]
    mean = statistics.fmean(kept)
    half = student_95(len(kept) - 1) * statistics.stdev(kept) / math.sqrt(len(kept))
    return {"ratio": round(mean, 4), "low": round(mean - half, 4), "high": round(mean + half, 4)}
