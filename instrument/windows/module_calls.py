"""The calls of a model's modules while a window is open, so that its kernels find theirs."""

from __future__ import annotations

from typing import NamedTuple


class ModuleCall(NamedTuple):
    """One call of a module, on the host's clock."""

    thread: int
    """The system's number of the thread."""
    start_ns: int
    end_ns: int
    module: str
    """The model's class, and the module's place in the model, as in `ResNet.layer1.0.conv1`."""
    file: str
    """The file of the line that calls it, outside of the framework; empty if there is none."""
    line: int
