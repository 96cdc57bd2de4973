"""Work on single ranks: in this process, on others of this machine, or on a Dask cluster.

The results are the same. Dask sends functions and
results as pickles, so a scheduler can do anything that this account can. Its workers need profkit,
and must see the runs under the same paths as this process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any, Final

from profkit.errors import ProfkitError, UsageError
from profkit.frame.rank_part import NOT_KEPT
from profkit.frame.run_frame import frame_of
from profkit.text import safe_text
from profkit.trace import Trace
from profkit.trace.reader import Mapper

SERIAL: Final = "serial"
PROCESSES: Final = "processes"
LARGE_BYTES: Final = 40_000_000
"""Of smaller files, processes take longer to start than they save."""

FEWEST_CORES: Final = 3
"""On two, what processes send costs as much as they save (docs/results/growth.json)."""

MOST_STEPS: Final = 1_100_000
MOST_WHOLE_STEPS: Final = 500_000
"""Of more steps of all ranks together, a sample is read; if as a whole, they take more memory."""

MOST_REPLAYED_BYTES: Final = 150_000_000
MOST_REPLAYED_RANKS: Final = 64
"""To replay the steps of a larger run takes longer than all of its report."""

RANKS_AT_ONCE: Final = 16
"""A process is given so many ranks at a time."""

MOST_PROCESSES: Final = 16
CLUSTERS: Final = ("tcp://", "tls://")
CONNECT_S: Final = 10
"""A scheduler may take this long to answer."""

MAX_MESSAGE_CHARS = 200
"""Dask's messages can hold whole tracebacks."""


def check_scheduler(where: str) -> None:
    """Raise a `UsageError` for an unknown scheduler, before anything is read."""
    if where not in {"", SERIAL, PROCESSES} and not where.startswith(CLUSTERS):
        raise UsageError(
            f"--scheduler '{safe_text(where)}' is none: it takes {SERIAL}, {PROCESSES}, "
            "or the address of a Dask scheduler, as in tcp://host:8786"
        )
    if where.startswith(CLUSTERS) and importlib.util.find_spec("distributed") is None:
        raise UsageError("--scheduler: Dask is not installed here: pip install 'profkit[dask]'")


def read_ranks(trace: Trace, where: str, *, whole: bool = False) -> None:
    """Read the ranks of a run on this scheduler, if it is another place than this process.

    Of a very large run, spans and collectives are read of a sample of its steps.
    Without a place, those of a large run are read on processes of this machine.
    """
    frame_of(trace).sample(MOST_WHOLE_STEPS if whole else MOST_STEPS)
    cores = len(os.sched_getaffinity(0))
    if not where and cores >= FEWEST_CORES and _size(trace) > LARGE_BYTES:
        where = PROCESSES
    if where in {"", SERIAL}:
        return
    with _open_scheduler(where, min(cores, MOST_PROCESSES)) as each:
        frame_of(trace).read_with(each, whole=whole, there=where != PROCESSES)


def is_replayed(trace: Trace) -> bool:
    """Return true if a report replays the steps of a run."""
    return len(trace.ranks) <= MOST_REPLAYED_RANKS and _size(trace) <= MOST_REPLAYED_BYTES


def _size(trace: Trace) -> int:
    """Return the size of the files that take long to read."""
    return sum(rank.size(table) or 0 for rank in trace.ranks for table in NOT_KEPT)


@contextlib.contextmanager
def _open_scheduler(where: str, processes: int) -> Iterator[Mapper]:
    check_scheduler(where)
    if where == PROCESSES:
        # A fork of a process that has threads may hang, and this one has Arrow's.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["profkit.frame.rank_part"])
        with ProcessPoolExecutor(processes, context) as pool:
            yield functools.partial(pool.map, chunksize=RANKS_AT_ONCE)
    else:
        with _cluster(where) as executor:
            yield functools.partial(_map_there, where, executor)


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    import distributed

    logging.getLogger("distributed").setLevel(logging.ERROR)
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ProfkitError(
            f"{safe_text(address)}: no Dask scheduler answers there ({_shorten(error)}); "
            "start one with 'dask scheduler'"
        ) from error
    with client:
        workers = client.scheduler_info()["workers"]
        if not workers:  # a map would wait for ever
            raise ProfkitError(
                f"{safe_text(address)}: the scheduler has no workers; "
                f"start some with 'dask worker {safe_text(address)}'"
            )
        executor: Executor = client.get_executor(pure=False)
        yield executor


def _map_there(
    address: str, executor: Executor, function: Callable[..., Any], *columns: Iterable[Any]
) -> list[Any]:
    """Return the results in order; an error of the cluster becomes one line."""
    try:
        return list(executor.map(function, *columns))
    except ProfkitError:
        raise
    except Exception as error:  # lost workers, other versions, no profkit there, and more
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ProfkitError(
            f"{safe_text(address)}: the cluster could not do it ({_shorten(why)}); "
            "its scheduler and workers need this profkit and this Dask"
        ) from error


def _shorten(message: object) -> str:
    """Return the beginning of a message, safe to print."""
    return safe_text(str(message))[:MAX_MESSAGE_CHARS]
