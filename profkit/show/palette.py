"""The colour of each phase, on pages and in the terminal interface alike."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from profkit.frame.phases import UNKNOWN


class Colours(NamedTuple):
    """A colour on a light and on a dark ground."""

    light: str
    dark: str


PHASE_COLOURS: Final[Mapping[str, Colours]] = MappingProxyType(
    {
        "data": Colours("#9a6700", "#e8b339"),
        "h2d": Colours("#8250df", "#c77dff"),
        "forward": Colours("#0969da", "#4ea8de"),
        "backward": Colours("#0a3069", "#2f6fb0"),
        "allreduce": Colours("#cf222e", "#ef6f6c"),
        "optimizer": Colours("#1a7f37", "#5fb878"),
        "compile": Colours("#7d4e00", "#b08968"),
        "other": Colours("#57606a", "#8d99ae"),
        UNKNOWN: Colours("#6e7781", "#bcbcbc"),
    }
)

ROLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{phase: phase for phase in PHASE_COLOURS},
        "convolution": "forward",
        "gemm": "backward",
        "attention": "h2d",
        "communication": "allreduce",
        "all_reduce": "allreduce",
        "reduce_scatter": "backward",
        "all_gather": "forward",
        "broadcast": "h2d",
        "normalisation": "optimizer",
        "reduction": "data",
        "elementwise": "other",
        "copy to device": "h2d",
        "copy to host": "h2d",
        "layout": "allreduce",
        "cast or copy": "data",
        "compute": "forward",
        "exposed communication": "allreduce",
        "copies alone": "h2d",
        "idle": UNKNOWN,
    }
)
"""The phase whose colour each kind of work has; kinds that share one differ in their words."""

_SPARE: Final = ("data", "h2d", "forward", "backward", "allreduce", "optimizer", "other")


def role_of_kind(name: str) -> str:
    """Return the phase whose colour a kind of work has, the same in each run."""
    return ROLES.get(name) or _SPARE[sum(map(ord, name)) % len(_SPARE)]
