"""Has the stacks of a loader's workers sampled, and tells the workers where to store them."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from types import CodeType

from profkit.instrument.guard import guarded
from profkit.instrument.loading.ring import FOLDER_BYTES, Ring, find_ring

log = logging.getLogger("profkit")

Finish = Callable[[], None]
Begin = Callable[[Callable[[], str | None], int, CodeType], Finish]
"""Samples the calling thread, and returns what ends that.

It gets a function that returns the folder (see `Ring.stacks_folder`), the worker's number, and the
code that runs the worker's loop: frames outside of it are not the worker's.
"""


class WorkerWatch:
    """The wish for stacks of workers, which travels in the rings of their loaders.

    A worker may start before the files of its rank are open. A worker that is no fork learns of the
    wish from its ring.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._folder = ""
        self._rings: list[weakref.ref[Ring]] = []

    def follow(self, ring: Ring) -> None:
        """Have the workers of this ring sampled."""
        ring.ask_for_stacks()
        self._rings = [known for known in self._rings if known() is not None]
        self._rings.append(weakref.ref(ring))
        if self._folder:
            ring.name_folder(self._folder)

    def publish(self, folder: str) -> None:
        """Name the folder for stacks, on any thread, once the files of the rank are open."""
        self._folder = folder
        if len(os.fsencode(folder)) > FOLDER_BYTES:
            log.warning(
                "profkit: the stacks of loader workers are not stored: the path is too long"
            )
        for known in self._rings:
            ring = known()
            if ring is not None:
                ring.name_folder(folder)

    def begin(self, ring: Ring | None, worker: int, loop: CodeType) -> Finish | None:
        """Begin to sample the calling worker, unless its ring says that nobody wants its stacks."""
        found = ring

        def folder() -> str | None:
            nonlocal found
            if found is None:  # a worker that is no fork is known to its ring a little later
                found = find_ring(worker)
            return found.stacks_folder() if found is not None else ""

        if folder() is None:
            return None
        finish = self._begin(folder, worker, loop)
        return guarded("loader: stacks of a worker", finish, None)
