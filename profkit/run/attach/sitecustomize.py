"""Arm the hooks in a process of `profkit run`; Python imports this at its start.

It runs the `sitecustomize` that it hides, removes its own folder from the path, and arms the hooks
for the moment at which a framework is imported. It never raises.

A job may start any Python, so that 2.7 must be able to read this file. Its functions have type
comments for that reason.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_OURS = sys.modules[__name__]
"""Python 2 empties a module that nothing refers to, even while it is executed."""


def _run_hidden():
    # type: () -> None
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]
    if sys.version_info < (3, 5):  # noqa: UP036  # the job's, not ours
        _run_hidden_of_old()
        return
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _run_hidden_of_old():
    # type: () -> None
    import imp

    try:
        imp.find_module("sitecustomize")
    except ImportError:
        return
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")


def _arm():
    # type: () -> None
    if not os.environ.get("PROFKIT_RUN"):
        return
    try:
        from profkit.run.attach import arming
    except ImportError:
        _note_missing()
        return
    arming.arm_job()


def _note_missing():
    # type: () -> None
    """Tell the launcher that this Python has no profkit."""
    from importlib.util import module_from_spec, spec_from_file_location

    package = os.path.dirname(os.path.dirname(_FOLDER))
    path = os.path.join(package, "attached.py")
    spec = spec_from_file_location("_profkit_attached", path)
    if spec is None or spec.loader is None:
        return
    attached = module_from_spec(spec)
    spec.loader.exec_module(attached)
    attached.note(attached.WITHOUT_PROFKIT, attached.executable())


try:
    _run_hidden()
finally:
    try:  # noqa: SIM105  # contextlib costs an import in every process of the job
        _arm()
    except Exception:  # noqa: BLE001, S110  # the job starts, whatever is wrong here
        pass
