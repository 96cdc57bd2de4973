"""Make and take notes at once: in signal handlers, finalizers, collections and two threads.

    python notes_stress.py FOLDER_OF_THE_MODULE SECONDS

The clock gives each note a number of its own. Every number must be taken exactly once.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import signal
import sys
import threading
import time
from typing import Any

sys.path.insert(0, sys.argv[1])
SECONDS = float(sys.argv[2])
TRAINS = threading.get_ident()

numbers = itertools.count(1)
marks = itertools.count(1)
taken: list[int] = []


class Finalized:
    """A circle: when it is collected, it makes notes, or takes some."""

    def __init__(self) -> None:
        self.circle = self

    def __del__(self) -> None:
        if len(taken) % 2:
            take_notes()
        elif threading.get_ident() == TRAINS:
            make_notes()


class Tracker:
    """Has the notes taken when there is no room for more."""

    def catch_up(self) -> None:
        take_notes()


def mark() -> Finalized | None:
    """Return an event now and then, or notes made of notes would never end."""
    return Finalized() if next(marks) % 7 == 0 else None


def make_notes() -> None:
    notes.end(notes.begin_wait())


def take_notes() -> None:
    """Take whole phases as rows, or else single notes as they are."""
    plain = notes.take_plain(1, 0, "main", False)
    if plain is None:
        taken.extend(note[1] for note in notes.take())
        return
    for row, _, _ in plain[0]:
        taken.extend(row[5:7])


def take_meanwhile(until: float) -> None:
    while time.monotonic() < until:
        take_notes()
        time.sleep(0.0002)  # or the loop would hardly run


def train(until: float) -> None:
    while time.monotonic() < until:
        for _ in range(600):
            make_notes()
        take_notes()


notes: Any = importlib.import_module("_notes").Notes(Tracker(), numbers.__next__)
notes.open(TRAINS, mark, 0, False)
signal.signal(signal.SIGPROF, lambda number, frame: make_notes())
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
gc.set_threshold(50)
sys.setswitchinterval(1e-5)
train(time.monotonic() + SECONDS / 2)
end = time.monotonic() + SECONDS / 2
other = threading.Thread(target=take_meanwhile, args=(end,))
other.start()
train(end)
other.join()
signal.setitimer(signal.ITIMER_PROF, 0)
while notes:
    taken.extend(note[1] for note in notes.take())
missing = set(range(1, next(numbers))) - set(taken)
assert not missing, f"{len(missing)} of {len(taken)} notes are lost"
assert len(set(taken)) == len(taken), "notes are taken twice"
print(len(taken))
