"""Measure a device and links with torch.

Run as a module, this is one of the ranks that measure links.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import torch

from profkit.analysis.ceilings import Ceilings
from profkit.rank import Rank, rank_of
from profkit.workloads.base import wait_passively

Rate = Callable[..., float]

SIZES = (*(1 << power for power in range(10, 27, 2)), 25 << 20)
"""Bytes per message; the last is the default size of DDP's buckets."""

COLD_BYTES, MAX_MESSAGES = 160 << 20, 16
"""Messages take turns, as a job's buckets do, until the first is out of all caches.

Small messages stay in the caches anyway.
"""

MIN_ROUNDS, MAX_ROUNDS, LONGEST_S = 7, 200, 1.0
START_TIMEOUT_S = 120


def measure(sides: Mapping[str, int], sizes: Mapping[str, int], rate: Rate) -> Ceilings:
    """Return the rates of the current device."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind)

    def rate_of(act: Callable[[], object], amount: float) -> float:
        def finish() -> None:
            act()
            if kind == "cuda":
                torch.cuda.synchronize()

        return rate(finish, amount)

    size = sizes[kind]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    transfers: dict[str, float] = {}
    if kind == "cuda":
        pageable = torch.ones(size, dtype=torch.uint8)
        for name, memory in {"pinned": pageable.pin_memory(), "pageable": pageable}.items():
            copy = functools.partial(target.copy_, memory, non_blocking=True)
            transfers[name] = rate_of(copy, float(size))
    return Ceilings(
        device=torch.cuda.get_device_name() if kind == "cuda" else "cpu",
        library=f"torch {torch.__version__}",
        matrix_flops_per_s=measure_matrices(sides[kind], device, rate_of),
        copy_bytes_per_s=rate_of(lambda: target.copy_(source), 2.0 * size),
        to_device_bytes_per_s=transfers,
    )


def measure_matrices(side: int, device: torch.device, rate_of: Rate) -> dict[str, float]:
    """Return the rate of each precision; fp32 is without TF32, which has a rate of its own."""
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
        multiply = functools.partial(torch.mm, left, left, out=torch.empty_like(left))
        found[name] = rate_of(multiply, 2.0 * side**3)
    torch.backends.cuda.matmul.allow_tf32 = before
    return found


def main() -> int:
    """Measure links as the rank that the environment names; the first one prints the result."""
    wait_passively()
    _, ranks, local = rank_of() or Rank()
    backend, device = "gloo", torch.device("cpu")
    has_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    if has_gpus and torch.distributed.is_nccl_available():
        backend, device = "nccl", torch.device("cuda", local)
        torch.cuda.set_device(local)
    torch.distributed.init_process_group(backend, timeout=dt.timedelta(seconds=START_TIMEOUT_S))
    sizes = sorted(SIZES)
    rates = []
    for size in sizes:
        bus_bytes = size * 2 * (ranks - 1) / ranks
        rates.append(bus_bytes / measure_all_reduce(size, device))
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"backend": backend, "sizes": sizes, "bus_bytes_per_s": rates}))
    torch.distributed.destroy_process_group()
    return 0


def measure_all_reduce(size: int, device: torch.device) -> float:
    """Return the median over rounds of the minimum over ranks, as for a run's collectives."""
    messages = itertools.cycle(make_messages(size, device))
    time_one(next(messages), device)
    first = torch.tensor([time_one(next(messages), device)], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(first, op=torch.distributed.ReduceOp.MAX)
    rounds = min(MAX_ROUNDS, max(MIN_ROUNDS, int(LONGEST_S / max(float(first), 1e-6))))
    seconds = [time_one(next(messages), device) for _ in range(rounds)]
    shortest = torch.tensor(seconds, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(shortest, op=torch.distributed.ReduceOp.MIN)
    return float(statistics.median(shortest.tolist()))


def make_messages(size: int, device: torch.device) -> list[torch.Tensor]:
    """Return messages of this many bytes, each in memory of its own."""
    count = min(MAX_MESSAGES, 1 + COLD_BYTES // size)
    return [torch.ones(size // 4, device=device) for _ in range(count)]


def time_one(message: torch.Tensor, device: torch.device) -> float:
    """Return the seconds that this rank took to reduce the message over all ranks."""
    start = time.perf_counter()
    torch.distributed.all_reduce(message)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
