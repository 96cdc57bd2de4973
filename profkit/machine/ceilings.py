"""Measures what this machine can do at best, once, and keeps it: matrix and copy rates, decoding, reading, links."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import io
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from profkit.analysis.ceilings import Ceilings, Links
from profkit.cache import cache_root
from profkit.errors import ProfkitError

MATRIX_SIDE = {"cpu": 1024, "cuda": 8192}
COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
SHORTEST_S = 0.3
"""How long each rate is measured at least."""

DISK_BYTES = 128 << 20
LINKS_TIMEOUT_S = 600
JPEG_SIZE = (500, 375)


def measure_machine(tell: Callable[[str], None]) -> Ceilings:
    """All rates of the machine but its links."""
    tell("matrix and copy rates")
    device = _measure_device()
    tell("decoding of JPEG files")
    decoded = _measure_jpeg()
    tell("reading from the disk")
    return dataclasses.replace(
        device, jpeg_images_per_s=decoded, disk_read_bytes_per_s=_measure_disk(cache_root())
    )


def with_links(known: Ceilings, links: Links) -> Ceilings:
    """The ceilings with these links in the place of those of the same kind."""
    others = tuple(
        each for each in known.links if (each.backend, each.ranks) != (links.backend, links.ranks)
    )
    return dataclasses.replace(known, links=(*others, links))


def _measure_device() -> Ceilings:
    """By CuPy on a GPU, where it is; else by torch; else by numpy."""
    if importlib.util.find_spec("cupy"):
        from profkit.machine import ceilings_cupy as _ceilings_cupy

        found = _ceilings_cupy.measure(MATRIX_SIDE["cuda"], COPY_BYTES["cuda"], best_rate)
        if found is not None:
            return found
    if importlib.util.find_spec("torch"):
        from profkit.machine import ceilings_torch as _ceilings_torch

        return _ceilings_torch.measure(MATRIX_SIDE, COPY_BYTES, best_rate)
    return _measure_numpy()


def _measure_numpy() -> Ceilings:
    side = MATRIX_SIDE["cpu"]
    rates = {}
    for precision, kind in (("fp32", np.float32), ("fp64", np.float64)):
        left = np.ones((side, side), dtype=kind)
        rates[precision] = best_rate(
            functools.partial(np.matmul, left, left, out=np.empty_like(left)), 2.0 * side**3
        )
    source = np.ones(COPY_BYTES["cpu"], dtype=np.uint8)
    copied = best_rate(
        functools.partial(np.copyto, np.empty_like(source), source), 2.0 * len(source)
    )
    return Ceilings(
        device="cpu",
        library=f"numpy {np.__version__}",
        matrix_flops_per_s=rates,
        copy_bytes_per_s=copied,
    )


def best_rate(
    act: Callable[[], object],
    amount: float,
    *,
    shortest_s: float | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> float:
    """The highest rate over some rounds: what disturbs only makes it slower. `act` returns when the work is done."""
    shortest = SHORTEST_S if shortest_s is None else shortest_s
    act()
    begin, best = clock(), 0
    rounds = 0
    while rounds < 3 or clock() - begin < shortest * 1e9:
        start = clock()
        act()
        took = max(1, clock() - start)
        best = min(best, took) if rounds else took
        rounds += 1
    return amount * 1e9 / best


def _measure_jpeg() -> float | None:
    """Images that one core decodes a second; `None` without Pillow."""
    if not importlib.util.find_spec("PIL"):
        return None
    from PIL import Image

    width, height = JPEG_SIZE
    smooth = np.add.outer(np.arange(height), np.arange(width))[..., None] // np.array([2, 3, 5])
    noise = np.random.default_rng(0).integers(0, 24, (height, width, 3))
    packed = io.BytesIO()
    Image.fromarray(((smooth + noise) % 256).astype(np.uint8)).save(packed, "JPEG", quality=90)
    return best_rate(lambda: Image.open(io.BytesIO(packed.getvalue())).convert("RGB"), 1.0)


def _measure_disk(folder: Path) -> float | None:
    """Bytes a second of a file that is not in the page cache; `None` where it cannot be put out of there."""
    if not hasattr(os, "posix_fadvise"):
        return None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"disk-{secrets.token_hex(6)}.tmp"
    try:
        return _read_once(path)
    except OSError:
        return None
    finally:
        path.unlink(missing_ok=True)


def _read_once(path: Path) -> float:
    with path.open("xb") as file:
        for _ in range(DISK_BYTES >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter_ns()
    with path.open("rb", buffering=0) as file:
        while file.read(4 << 20):
            pass
    return DISK_BYTES * 1e9 / (time.perf_counter_ns() - start)


def measure_links(ranks: int) -> Links:
    """All-reduce alone between so many processes of this machine: over NCCL where each has a GPU, else over gloo."""
    from profkit.run.ranks import (
        Team,
        find_endpoint,
        rank_environment,
    )  # an interface that only reads ceilings starts no ranks

    if not importlib.util.find_spec("torch"):
        raise ProfkitError(
            "links are measured with torch, which is not installed: pip install 'profkit[torch]'"
        )
    endpoint = find_endpoint(Team(ranks))
    command = [sys.executable, "-W", "ignore", "-m", "profkit.machine.ceilings_torch"]
    environments = [
        {**os.environ, **rank_environment(rank, ranks, rank, ranks, endpoint)}
        for rank in range(ranks)
    ]
    outputs = [subprocess.PIPE, *[subprocess.DEVNULL] * (ranks - 1)]
    processes = [
        subprocess.Popen(command, env=environ, stdout=output, text=True)
        for environ, output in zip(environments, outputs, strict=True)
    ]
    try:
        told, _ = processes[0].communicate(timeout=LINKS_TIMEOUT_S)
        codes = [process.wait(30) for process in processes]
    except subprocess.TimeoutExpired as error:
        raise ProfkitError(
            f"the links could not be measured: {ranks} ranks did not end within {LINKS_TIMEOUT_S} s"
        ) from error
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise ProfkitError(
            f"the links could not be measured: a rank ended with {next(filter(None, codes))}"
        )
    content = json.loads(told.strip().splitlines()[-1])
    return Links(
        content["backend"], ranks, tuple(content["sizes"]), tuple(content["bus_bytes_per_s"])
    )
