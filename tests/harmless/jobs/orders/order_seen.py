"""A program's view of its own imports between the import of torch and its training."""

from __future__ import annotations

import builtins
import hashlib
import importlib.resources
import importlib.util
import inspect
import json
import os
import pkgutil
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from order_train import train  # type: ignore[import-not-found]  # it lies beside this one


def _named(thing: object) -> str:
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


def _digest(content: bytes | str | None) -> str:
    assert content is not None
    raw = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(raw).hexdigest()


def _inner_loaders() -> list[str]:
    inner = [module for name, module in sys.modules.items() if name.startswith("torch.")]
    specs = [getattr(module, "__spec__", None) for module in inner]
    return sorted({_named(spec.loader) for spec in specs if spec is not None})


def seen() -> dict[str, Any]:
    spec = torch.__spec__
    loader: Any = torch.__loader__
    found = importlib.util.find_spec("torch")
    assert spec is not None
    assert found is not None
    own = sys.modules["sitecustomize"]
    package = importlib.resources.files("torch")
    return {
        "meta path": [_named(finder) for finder in sys.meta_path],
        "path hooks": len(sys.path_hooks),
        "loader": _named(loader),
        "loader of the spec": _named(spec.loader),
        "loader of the spec found": _named(found.loader),
        "same loader": spec.loader is loader,
        "contents of the loader": sorted(vars(loader)),
        "loaders of inner modules": _inner_loaders(),
        "file": torch.__file__,
        "origin": spec.origin,
        "cached": bool(spec.cached),
        "places": list(torch.__path__),
        "source of Linear": _digest(inspect.getsource(torch.nn.Linear)),
        "source of SGD": _digest(inspect.getsource(torch.optim.SGD)),
        "source of torch": _digest(inspect.getsource(torch)),
        "source by the loader": _digest(loader.get_source("torch")),
        "source by pkgutil": _digest(pkgutil.get_data("torch", "__init__.py")),
        "resource": _digest((package / "__init__.py").read_bytes()),
        "type of the package's files": _named(package),
        "sys.path": sys.path,
        "PYTHONPATH": os.environ.get("PYTHONPATH"),
        "environment": sorted(os.environ),
        "threads": [thread.name for thread in threading.enumerate()],
        "import function": _named(builtins.__import__),
        "sitecustomize": own.__file__,
        "runs of sitecustomize": getattr(builtins, "runs_of_sitecustomize", 0),
        "spec of sitecustomize": own.__spec__.origin if own.__spec__ else None,
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(seen()))
    train()
