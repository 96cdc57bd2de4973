"""Shared parts of the trainers' jobs: run the code that docs/ shows, break callbacks."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from profkit.callbacks._recording import Recording

DOCS = Path(__file__).parents[3] / "docs"


def shown_code(module: str) -> str:
    """The documents' code for a callback's module."""
    pages = "\n".join(page.read_text() for page in sorted(DOCS.glob("*.md")))
    blocks = [part.partition("```")[0] for part in pages.split("```python\n")[1:]]
    return next(block for block in blocks if module in block)


def run_shown(module: str, **names: Any) -> dict[str, Any]:
    """Run the documents' code with these names, and return what it has made of them."""
    exec(shown_code(module), names)
    return names


def break_callbacks() -> None:
    """All that callbacks do fails from here on, once a training has begun."""
    for name, method in list(vars(Recording).items()):
        if inspect.isfunction(method) and not name.startswith("_") and name != "begin":
            setattr(Recording, name, _fail)


def _fail(recording: Recording, *args: Any, **kwargs: Any) -> None:
    if recording.is_open:
        raise RuntimeError("planted")
