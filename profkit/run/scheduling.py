"""Where the work on single ranks is done: in this process, on its threads, or on a Dask cluster.

All of them are `map` with another name, so that what comes out is the same. Dask sends functions and results as
pickles: a scheduler is trusted with this account. Its workers need profkit, and see the runs where this process does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Final

from profkit.errors import ProfkitError, UsageError
from profkit.text import safe_text
from profkit.trace.reader import Mapper

SERIAL: Final = "serial"
THREADS: Final = "threads"
CLUSTERS: Final = ("tcp://", "tls://")
CONNECT_S: Final = 10
"""How long a scheduler may take to answer."""


def check_scheduler(where: str) -> None:
    """Refuse what is no scheduler, before anything is read."""
    if where not in {SERIAL, THREADS} and not where.startswith(CLUSTERS):
        raise UsageError(
            f"--scheduler '{safe_text(where)}' is none: it takes {SERIAL}, {THREADS}, or the address of a Dask scheduler, as in tcp://host:8786"
        )
    if where.startswith(CLUSTERS) and importlib.util.find_spec("distributed") is None:
        raise UsageError("--scheduler: Dask is not installed here: pip install 'profkit[dask]'")


@contextlib.contextmanager
def open_scheduler(where: str) -> Iterator[Mapper]:
    """A `map` that does its work there."""
    check_scheduler(where)
    if where == SERIAL:
        yield map
    elif where == THREADS:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            yield pool.map
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
            f"{safe_text(address)}: no Dask scheduler answers there ({safe_text(str(error))[:200]}); start one with 'dask scheduler'"
        ) from error
    with client:
        _check_workers(client, address)
        executor: Executor = client.get_executor(pure=False)
        yield executor


def _map_there(
    address: str, executor: Executor, function: Callable[..., Any], *columns: Iterable[Any]
) -> list[Any]:
    """The results in order; our own errors are theirs as they are, the cluster's become one line."""
    try:
        return list(executor.map(function, *columns))
    except ProfkitError:
        raise
    except Exception as error:  # a cluster fails in ways of its own: lost workers, other versions, no profkit there
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ProfkitError(
            f"{safe_text(address)}: the cluster could not do it ({safe_text(why)[:200]}); its scheduler and workers need this profkit and this Dask"
        ) from error


def _check_workers(client: object, address: str) -> None:
    """Without workers a map would wait for ever."""
    workers = client.scheduler_info()["workers"]  # type: ignore[attr-defined]  # Dask has no types
    if not workers:
        raise ProfkitError(
            f"{safe_text(address)}: the scheduler has no workers; start some with 'dask worker {safe_text(address)}'"
        )
