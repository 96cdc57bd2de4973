"""NVTX ranges of profkit's domain, so that other profilers show the same phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from profkit.vocab import DOMAIN


class Ranges(NamedTuple):
    """Functions that open an NVTX range by name, and close the last one."""

    push: Callable[[str], object]
    pop: Callable[[], object]


def nvtx_ranges() -> Ranges | None:
    """Return ranges of profkit's domain, or `None` if nvtx is missing or switched off.

    The attributes of each name are made once, so that the hot path makes one C call.
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
