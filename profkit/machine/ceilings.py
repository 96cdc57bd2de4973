"""Measure the best rates of this machine: matrices, copies, JPEG decoding, disk, links."""

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
from profkit.machine import preflight
from profkit.text import safe_text

MATRIX_SIDE = {"cpu": 1024, "cuda": 8192}
COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
SHORTEST_S = 0.3
"""Each rate is measured at least this long."""

MIN_ROUNDS = 3
DISK_BYTES = 128 << 20
LINKS_TIMEOUT_S = 600
RANK_END_TIMEOUT_S = 30
"""The other ranks may end this much later than the first one."""

JPEG_SIZE = (500, 375)
"""The size of a typical image of ImageNet."""


def measure_machine(tell: Callable[[str], None]) -> Ceilings:
    """Return all rates of the machine except its links."""
    tell("matrix and copy rates")
    device = measure_device(tell)
    tell("decoding of JPEG files")
    decoded = measure_jpeg()
    tell("reading from the disk")
    return dataclasses.replace(
        device, jpeg_images_per_s=decoded, disk_read_bytes_per_s=measure_disk(cache_root())
    )


def with_links(known: Ceilings, links: Links) -> Ceilings:
    """Return the ceilings with these links in place of those of the same kind."""
    kept = []
    for other in known.links:
        if (other.backend, other.ranks) != (links.backend, links.ranks):
            kept.append(other)
    return dataclasses.replace(known, links=(*kept, links))


def measure_device(tell: Callable[[str], None]) -> Ceilings:
    """Measure with CuPy on a GPU, or else with torch, or else with numpy; say why not."""
    if importlib.util.find_spec("cupy"):
        from profkit.machine import ceilings_cupy

        try:
            found = ceilings_cupy.measure(MATRIX_SIDE["cuda"], COPY_BYTES["cuda"], best_rate)
        except Exception as error:  # noqa: BLE001  # versions lack libraries in many ways
            tell(f"CuPy cannot measure this GPU: {safe_text(str(error).strip())}")
            found = None
        if found is not None:
            return found
    if importlib.util.find_spec("torch"):
        from profkit.machine import ceilings_torch

        problem = preflight.find_problem(preflight.read_build("torch"), preflight.read_driver())
        if problem is not None:
            tell(f"{problem}; this measures the processor")
        if problem is None or not problem.is_seen:
            return ceilings_torch.measure(MATRIX_SIDE, COPY_BYTES, best_rate)
    return measure_numpy()


def measure_numpy() -> Ceilings:
    """Return the rates of the processor, with numpy alone."""
    side = MATRIX_SIDE["cpu"]
    rates = {}
    for precision, kind in (("fp32", np.float32), ("fp64", np.float64)):
        left = np.ones((side, side), dtype=kind)
        multiply = functools.partial(np.matmul, left, left, out=np.empty_like(left))
        rates[precision] = best_rate(multiply, 2.0 * side**3)
    source = np.ones(COPY_BYTES["cpu"], dtype=np.uint8)
    copy = functools.partial(np.copyto, np.empty_like(source), source)
    return Ceilings(
        device="cpu",
        library=f"numpy {np.__version__}",
        matrix_flops_per_s=rates,
        copy_bytes_per_s=best_rate(copy, 2.0 * len(source)),
    )


def best_rate(
    act: Callable[[], object],
    amount: float,
    *,
    shortest_s: float | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> float:
    """Return the highest rate over some rounds; `act` returns when the work is done.

    The highest is the best estimate, because every disturbance makes a round slower.
    """
    shortest = SHORTEST_S if shortest_s is None else shortest_s
    act()
    begin, best = clock(), 0
    rounds = 0
    while rounds < MIN_ROUNDS or clock() - begin < shortest * 1e9:
        start = clock()
        act()
        took = max(1, clock() - start)
        best = min(best, took) if rounds else took
        rounds += 1
    return amount * 1e9 / best


def measure_jpeg() -> float | None:
    """Return the images that one core decodes per second; `None` without Pillow."""
    if not importlib.util.find_spec("PIL"):
        return None
    from PIL import Image

    width, height = JPEG_SIZE
    smooth = np.add.outer(np.arange(height), np.arange(width))[..., None] // np.array([2, 3, 5])
    noise = np.random.default_rng(0).integers(0, 24, (height, width, 3))
    packed = io.BytesIO()
    Image.fromarray(((smooth + noise) % 256).astype(np.uint8)).save(packed, "JPEG", quality=90)
    return best_rate(lambda: Image.open(io.BytesIO(packed.getvalue())).convert("RGB"), 1.0)


def measure_disk(folder: Path) -> float | None:
    """Return the bytes per second of a file outside the page cache, if it can be evicted."""
    if not hasattr(os, "posix_fadvise"):
        return None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"disk-{secrets.token_hex(6)}.tmp"
    try:
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
    except OSError:
        return None
    finally:
        path.unlink(missing_ok=True)


def measure_links(ranks: int) -> Links:
    """Measure an all-reduce alone between this many processes of the machine.

    It runs over NCCL if each process has a GPU, or else over gloo.
    """
    if not importlib.util.find_spec("torch"):
        raise ProfkitError(
            "links are measured with torch, which is not installed: pip install 'profkit[torch]'"
        )
    # Imported here, because an interface that only reads ceilings starts no ranks.
    from profkit.run.ranks import Team, find_endpoint, rank_environment

    endpoint = find_endpoint(Team(ranks))
    command = [sys.executable, "-W", "ignore", "-m", "profkit.machine.ceilings_torch"]
    processes: list[subprocess.Popen[str]] = []
    for rank in range(ranks):
        environment = {**os.environ, **rank_environment(rank, ranks, rank, ranks, endpoint)}
        to = subprocess.DEVNULL if rank else subprocess.PIPE  # the first one prints the result
        processes.append(subprocess.Popen(command, env=environment, stdout=to, text=True))
    try:
        output, _ = processes[0].communicate(timeout=LINKS_TIMEOUT_S)
        codes = [process.wait(RANK_END_TIMEOUT_S) for process in processes]
    except subprocess.TimeoutExpired as error:
        raise ProfkitError(
            f"the links could not be measured: {ranks} ranks did not end within {LINKS_TIMEOUT_S} s"
        ) from error
    finally:
        for process in processes:
            process.kill()
    for code in codes:
        if code:
            raise ProfkitError(f"the links could not be measured: a rank ended with {code}")
    content = json.loads(output.strip().splitlines()[-1])
    sizes, rates = tuple(content["sizes"]), tuple(content["bus_bytes_per_s"])
    return Links(content["backend"], ranks, sizes, rates)
