"""The loop of a reference system of ours, as the lookout follows it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.instrument.guard import guarded
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.rank import Rank
from profkit.run.lookout.lookout import Lookout

if TYPE_CHECKING:
    from profkit.instrument.frameworks.base import Framework


class OwnLoop:
    """A loop that reports its steps itself. It has no recorder before its files are open.

    The names of its functions say when it evaluates or saves, so it needs no models and regions.
    """

    models: tuple[Any, ...] = ()
    standing = ("", "")
    loaders_over = False

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.recorder = Recorder(MemorySink())
        self.framework: Framework | None = None


@contextlib.contextmanager
def look_out(run: Path, rank: Rank) -> Iterator[OwnLoop]:
    """Have the lookout follow the block on this thread. It writes how the block ended."""
    loop = OwnLoop()
    lookout = Lookout(run, loop)
    guarded("lookout", lookout.start, None)(rank, lambda: loop.framework)
    stop = guarded("lookout", lookout.stop, None)
    try:
        yield loop
    except BaseException as error:
        stop(error)
        raise
    stop()
