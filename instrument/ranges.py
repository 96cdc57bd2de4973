"""NVTX ranges of profkit's domain, so that other profilers show the same borders."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from profkit.vocab import DOMAIN


class Ranges(NamedTuple):
    """How to open and to close an NVTX range by name."""

    push: Callable[[str], object]
    pop: Callable[[], object]


def nvtx_ranges() -> Ranges | None:
    """Ranges of profkit's domain, or `None` where the nvtx package is missing or switched off.

    Attributes are made once for each name: what is left on the hot path is one C call.
    """
    try:
        import nvtx
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN)
    if type(domain).__name__ == "DummyDomain":
        return None
    attributes: dict[str, object] = {}

    def push(name: str) -> None:
        known = attributes.get(name)
        if known is None:
            known = attributes[name] = domain.get_event_attributes(message=name)
        domain.push_range(known)

    return Ranges(push, domain.pop_range)
