"""Python imports this at start-up in processes that `profkit run` has started, and nowhere else.

It hands on to the `sitecustomize` that it shadows, takes its own folder off the path again, and
arms the hooks for the moment at which a framework is imported. It never raises.
"""

import importlib.machinery
import importlib.util
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _run_the_shadowed_one() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _arm() -> None:
    if not os.environ.get("PROFKIT_RUN"):
        return
    try:
        from profkit.attach import arming
    except ImportError:
        return  # another environment's Python, without profkit; the launcher says that nothing was recorded
    arming.arm()


try:
    _run_the_shadowed_one()
finally:
    _arm()
