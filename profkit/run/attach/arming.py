"""Wait for a framework to be imported, then hook it. Imports nothing else until then."""

from __future__ import annotations

import sys

from profkit.attached import FAILED, FRAMEWORKS, HOOKED, STARTED, disabled, executable, note
from profkit.run.attach.watcher import watch


def arm() -> None:
    """Hook each framework as soon as the job has imported it."""
    if disabled():
        return
    watch({name: name for name in FRAMEWORKS}, _hook)


def arm_job() -> None:
    """Arm the hooks in a process of `profkit run`, and leave notes for the launcher."""
    if disabled():
        return
    import atexit

    note(STARTED, executable())
    watcher = watch({name: name for name in FRAMEWORKS}, _hook)
    atexit.register(watcher.note_missed)


def _hook(framework: str) -> None:
    from profkit.instrument.garbage import collection_paused
    from profkit.instrument.guard import guarded

    with collection_paused():
        hook = guarded(f"hooks of {framework}", _hook_unguarded, False)
        if not hook(framework):
            note(FAILED, framework)


def _hook_unguarded(framework: str) -> bool:
    from profkit.run.job import current_job

    if getattr(sys.modules[framework], "__spec__", None) is None:
        return True  # a hand-written replacement that the job has put there
    current_job().hook(framework)
    note(HOOKED, framework)
    return True
