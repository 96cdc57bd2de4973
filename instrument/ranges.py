"""NVTX ranges of profkit's domain, so that other profilers show the same phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from profkit.vocab import DOMAIN

MOST_STEPS = 10_000
"""Later steps have no range: the library keeps each name that it was ever given."""


class Ranges(NamedTuple):
    """Functions that open an NVTX range by name, and close the last one."""

    push: Callable[[str], object]
    pop: Callable[[], object]
    step: Callable[[int | None], object] = lambda number: None
    """Close the range of a step, around those of its phases, and open one with this number."""


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

    opened: list[object] = []

    def step(number: int | None) -> None:
        # The job may leave a step within a phase: its range nests in no other.
        while opened:
            domain.end_range(opened.pop())
        if number is not None and number < MOST_STEPS:
            opened.append(domain.start_range(domain.get_event_attributes(message=f"step {number}")))

    return Ranges(push, domain.pop_range, step)
