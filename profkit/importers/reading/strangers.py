"""Files that profkit does not import: what they are, and what to do instead."""

from __future__ import annotations

import re
from pathlib import Path

_UNTIMED = "which has losses and no times of steps; record the job itself (profkit run)"
_BY_NAME = {
    r"\.(?:nsys-rep|qdrep)$": (
        "a report of Nsight Systems; export it first: nsys export --type sqlite FILE"
    ),
    r"\.xplane\.pb$": "a profile of XLA (XPlane), which profkit does not read",
}
_BY_CONTENT = {
    rb"\Aversion https://git-lfs": (
        "a pointer of Git LFS and not the file itself; fetch that: git lfs pull"
    ),
    rb"\A.{0,40}brain\.Event:": (
        "TensorBoard's events without numbers of a training; import that job's log or trace"
    ),
    rb"execution_trace\||chakra": (
        "an execution trace, which has no times of a device; record a trace with torch.profiler"
    ),
    rb'\A"?Name"?,"?Calls"?,"?TotalDuration|\A[^\n]{0,300}Kernel_?Name"?,': (
        "a table of rocprof, which profkit does not read; record a trace with torch.profiler"
    ),
    rb'"log_history":': f"the state of a Hugging Face Trainer, {_UNTIMED}",
    rb"(?m)^\{'(?:eval_)?loss': ": f"the output of a Hugging Face Trainer, {_UNTIMED}",
    rb"\A(?=[^\n]{0,2000}\b(?:epoch|step)\b)[\w/ (),.|-]{4,2000}\r?\n": f"a table, {_UNTIMED}",
}


def describe_stranger(head: bytes, path: Path) -> str:
    """Return what a file is that no importer recognises and what to do; empty if unknown."""
    for name, what in _BY_NAME.items():
        if re.search(name, path.name):
            return what
    for content, what in _BY_CONTENT.items():
        if re.search(content, head, re.DOTALL):
            return what
    return ""
