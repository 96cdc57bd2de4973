"""Rates of a device and of links, by torch. Run as a module, this is one rank that measures links."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import torch

from profkit.analysis.ceilings import Ceilings
from profkit.workloads.base import wait_passively

Rate = Callable[..., float]

SIZES = (*(1 << power for power in range(10, 27, 2)), 25 << 20)
"""Bytes; the last is the bucket that DDP makes if nobody says otherwise."""

COLD_BYTES, MOST_MESSAGES = 160 << 20, 16
"""Messages take turns, as a job's buckets do, until so much has gone by that caches have forgotten the first; small ones stay in them anyway."""

FEWEST_ROUNDS, MOST_ROUNDS, LONGEST_S = 7, 200, 1.0


def measure(sides: Mapping[str, int], sizes: Mapping[str, int], rate: Rate) -> Ceilings:
    """The rates of the current device."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind)
    wait = torch.cuda.synchronize if kind == "cuda" else _do_nothing
    source = torch.ones(sizes[kind], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def done(act: Callable[[], object]) -> Callable[[], object]:
        return lambda: (act(), wait())

    return Ceilings(
        device=torch.cuda.get_device_name() if kind == "cuda" else "cpu",
        library=f"torch {torch.__version__}",
        matrix_flops_per_s=_matrix(sides[kind], device, rate, done),
        copy_bytes_per_s=rate(done(lambda: target.copy_(source)), 2.0 * sizes[kind]),
        to_device_bytes_per_s=_to_device(target, rate, done) if kind == "cuda" else {},
    )


def _do_nothing() -> None:
    pass


def _matrix(
    side: int, device: torch.device, rate: Rate, done: Callable[..., Callable[[], object]]
) -> dict[str, float]:
    """fp32 is without TF32, which stands apart; a CPU has fp32 and bf16."""
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if device.type == "cuda":
        kinds = {
            "fp32": torch.float32,
            "tf32": torch.float32,
            "fp16": torch.float16,
            "bf16": torch.bfloat16,
        }
    found = {}
    before = torch.backends.cuda.matmul.allow_tf32
    for name, kind in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        left = torch.ones(side, side, dtype=kind, device=device)
        found[name] = rate(
            done(functools.partial(torch.mm, left, left, out=torch.empty_like(left))), 2.0 * side**3
        )
    torch.backends.cuda.matmul.allow_tf32 = before
    return found


def _to_device(
    target: torch.Tensor, rate: Rate, done: Callable[..., Callable[[], object]]
) -> dict[str, float]:
    pageable = torch.ones(target.numel(), dtype=torch.uint8)
    sources = {"pinned": pageable.pin_memory(), "pageable": pageable}
    return {
        name: rate(
            done(functools.partial(target.copy_, source, non_blocking=True)), float(target.numel())
        )
        for name, source in sources.items()
    }


def main() -> int:
    """Measure as one rank of what the environment says; the first prints what was found."""
    wait_passively()
    ranks, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    on_gpus = (
        torch.cuda.is_available()
        and torch.cuda.device_count() >= ranks
        and torch.distributed.is_nccl_available()
    )
    if on_gpus:
        torch.cuda.set_device(local)
    torch.distributed.init_process_group(
        "nccl" if on_gpus else "gloo", timeout=dt.timedelta(seconds=120)
    )
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    sizes = sorted(SIZES)
    bus = [size * 2 * (ranks - 1) / ranks / _seconds(size, device) for size in sizes]
    if torch.distributed.get_rank() == 0:
        print(
            json.dumps(
                {"backend": "nccl" if on_gpus else "gloo", "sizes": sizes, "bus_bytes_per_s": bus}
            )
        )
    torch.distributed.destroy_process_group()
    return 0


def _seconds(size: int, device: torch.device) -> float:
    """The median over rounds of the shortest over the ranks, as a run's collectives are judged."""
    messages = itertools.cycle(make_messages(size, device))
    time_one(next(messages), device)
    first = torch.tensor([time_one(next(messages), device)], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(first, op=torch.distributed.ReduceOp.MAX)
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(LONGEST_S / max(float(first), 1e-6))))
    took = torch.tensor(
        [time_one(next(messages), device) for _ in range(rounds)],
        dtype=torch.float64,
        device=device,
    )
    torch.distributed.all_reduce(took, op=torch.distributed.ReduceOp.MIN)
    return float(statistics.median(took.tolist()))


def make_messages(size: int, device: torch.device) -> list[torch.Tensor]:
    """Some of this many bytes, each in memory of its own."""
    return [
        torch.ones(size // 4, device=device)
        for _ in range(min(MOST_MESSAGES, 1 + COLD_BYTES // size))
    ]


def time_one(message: torch.Tensor, device: torch.device) -> float:
    """Seconds that reducing it over all ranks took this one."""
    start = time.perf_counter()
    torch.distributed.all_reduce(message)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
