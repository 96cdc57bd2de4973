"""Counts the floating-point operations of a few steps by the shapes of what torch ran.

The counter is torch's observer of execution traces: a callback in C++ that sees each operator with
its shapes, on all threads, forward and backward. A dispatch mode such as `FlopCounterMode` would
need less code, but it is part of the job: with one, torch takes other paths in its gradients, and
`torch.compile` may run its functions uncompiled, so that losses may change. The observer changes
nothing of the job. It is not the default, because torch logs a line on stderr when it begins and
when it ends, and each operator of the step takes 10 to 30 us longer.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from profkit.clock import now_ns
from profkit.instrument.captures import CAPTURES
from profkit.instrument.guard import guarded
from profkit.instrument.rows import Append, EventRow, Row, SampleRow
from profkit.instrument.windows.module_calls import ModuleCall
from profkit.instrument.windows.windows import Window
from profkit.vocab import ALL_FLOPS, OPERATIONS, UNCOUNTED, USEFUL_FLOPS, EventKind

Formula: TypeAlias = Callable[..., int]

SETTLING_S = 0.3
"""Another thread may still be inside an operator that it began before the observer ended."""

MOST_NAMES = 3

_OBSERVER: Any = getattr(torch._C, "_profiler")  # noqa: B009,SLF001  # it has no public name
_BEGIN, _END = "      {", "      }"
"""The lines around a node. A file is read by lines: its JSON at once would hold the interpreter."""

_NODE = re.compile(
    r'"id": (\d+), "name": "([^"]*)".*"seq_id", "type": "\w+", "value": (-?\d+).*'
    r'"tid", "type": "\w+", "value": (\d+).*"op_schema", "type": "\w+", "value": "([^"]?)',
    re.DOTALL,
)
_NODE_OF_GRAPH = "autograd::engine::evaluate_function: "
_FUSED_ATTENTION = re.compile(r"aten::_scaled_dot_product_\w+?_attention\w*?(_backward)?$")
_COMPILED, COMPILED = "CompiledFunction", "torch.compile fuses operators, so that some are not seen"
_OPTIMIZER = "Optimizer.step#"
"""The range around an optimizer, whose products of matrices train nothing."""

_OWN_GRADIENT = re.compile(r"(?:mm|Convolution|Attention\w*)Backward\d")
"""Nodes of the graph that multiply matrices themselves."""

_MATRIX_WORK = re.compile(
    r"(?:^|_)(?:\w*mm|matmul|gemm\w*|rnn|lstm|gru|attention|attn|conv\d?d?|convolution|linear)"
    r"(?:_|$)"
)
"""Operators of torch that multiply matrices, or call one that does."""

_PLAIN = frozenset({"aten", "prim", "prims", "c10d", "_c10d_functional", "torchvision", "fsdp"})
"""Namespaces whose other operators multiply no matrices. Others may do anything."""

_ALIASES = {
    "aten::addmm_": "aten::addmm",
    "aten::_addmm_activation": "aten::addmm",
    "aten::baddbmm_": "aten::baddbmm",
    "aten::addbmm": "aten::baddbmm",
}
_PRECISIONS = {
    "float": "fp32",
    "double": "fp64",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}


class Node(NamedTuple):
    """An operator: nodes are listed as they end, and numbered as they begin, on each thread."""

    number: int
    name: str
    thread: int
    is_operator: bool
    """False for a node of the graph, or a range of the job."""
    has_graph: bool
    """True if it ran with gradients on."""
    text: str
    """Its JSON, without the braces."""


@dataclass
class Counted:
    """Operations by precision, those of forward and backward alone, and all of them."""

    useful: Counter[str] = field(default_factory=Counter)
    everything: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    """Operators that may multiply matrices, and have no formula."""
    problem: str = ""
    """Why the operations are not known."""
    is_split: bool = True
    """False if repeated operations look like those of a second derivative."""


class Arithmetic:
    """The observer of a window of steps; `start` and `stop` are called between steps."""

    module_calls: Sequence[ModuleCall] = ()

    def __init__(self, events: Append) -> None:
        self._events = events
        self._path: Path | None = None
        self._has_forked = False
        os.register_at_fork(before=guarded("counting of operations", self._end_early, None))

    def start(self) -> bool:
        file, path = tempfile.mkstemp(".json", "profkit-operations-")
        os.close(file)
        if not _OBSERVER._add_execution_trace_observer(path):  # noqa: SLF001  # the job has one
            Path(path).unlink()
            self._note("torch's execution traces are the job's own in that step")
            return False
        self._path, self._has_forked = Path(path), False
        _OBSERVER._enable_execution_trace_observer()  # noqa: SLF001  # as above
        return True

    def stop(self) -> Callable[[Path], None] | None:
        path, self._path = self._path, None
        if path is None:
            return None
        if not self._has_forked:
            _OBSERVER._disable_execution_trace_observer()  # noqa: SLF001  # as above

        def save(to: Path) -> None:
            time.sleep(SETTLING_S)
            _OBSERVER._remove_execution_trace_observer()  # noqa: SLF001  # as above
            shutil.move(path, to)

        return save

    def _end_early(self) -> None:
        """Observe no process that the job forks: it would write to the same file all its life."""
        if self._path is not None and not self._has_forked:
            self._has_forked = True
            _OBSERVER._disable_execution_trace_observer()  # noqa: SLF001  # as above

    def read_rows(self, path: Path, window: Window) -> list[Row]:
        """Return samples of the operations per step; what is not counted becomes an event."""
        found = count_operations(read_nodes(path))
        steps, now = max(1, len(window.borders) - 1), now_ns()
        problem = found.problem or why_unseen()
        if self._has_forked:
            problem = "the job forked a process in that step"
        if problem or not found.everything:
            self._note(problem or "none of torch's operators multiplied matrices")
            return []
        rows: list[Row] = []
        for metric, counts in ((USEFUL_FLOPS, found.useful), (ALL_FLOPS, found.everything)):
            for precision, count in counts.items():
                rows.append(SampleRow(None, OPERATIONS, metric + precision, now, count / steps))
        if found.unknown:
            names = ", ".join(name for name, _ in found.unknown.most_common(MOST_NAMES))
            self._note(f"those of {names}, which have no formula")
        if not found.is_split:
            self._note("which of them repeat the forward, because the job differentiates twice")
        missing = float(found.unknown.total())
        rows.append(SampleRow(None, OPERATIONS, UNCOUNTED, now, missing))
        return rows

    def _note(self, what: str) -> None:
        event = EventRow(None, now_ns(), EventKind.UNMEASURED, f"operations of a step: {what}")
        self._events(event)


def count_during(act: Callable[[], object], path: Path) -> Counted:
    """Count the operations of a function by means of a new file."""
    counter = Arithmetic(lambda row: None)
    if not counter.start():
        raise RuntimeError("torch's execution traces are in use")
    try:
        act()
    finally:
        save = counter.stop()
        assert save is not None  # noqa: S101  # it has started
        save(path)
    return count_operations(read_nodes(path))


def why_unseen() -> str:
    """Return why torch's operators do not show all that the job computes; else nothing."""
    if CAPTURES.have_been:
        return "CUDA graphs hide the operators that they replay"
    dynamo = sys.modules.get("torch._dynamo.utils")
    with contextlib.suppress(Exception):  # it is no public interface
        if dynamo is not None and dynamo.counters.get("frames", {}).get("ok"):
            return COMPILED
    return ""


def read_nodes(path: Path) -> Iterator[Node]:
    """Yield the operators of a file as they ended."""
    lines: list[str] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(_BEGIN):
                lines = []
            elif not line.startswith(_END):
                lines.append(line)
            elif found := _NODE.search("".join(lines)):
                number, name, sequence, thread, schema = found.groups()
                yield Node(
                    int(number), name, int(thread), bool(schema), int(sequence) >= 0, found.string
                )


def find_formulas() -> dict[str, Formula]:
    """Return torch's own formulas by the names of operators, and those that it lacks."""
    from torch.utils.flop_counter import flop_registry

    formulas: dict[str, Formula] = {"aten::_grouped_mm": _grouped}
    for target, formula in flop_registry.items():
        if isinstance(target, torch._ops.OpOverloadPacket):  # noqa: SLF001  # no public name
            formulas[target._qualified_op_name] = formula  # noqa: SLF001  # as above
    for name, other in _ALIASES.items():
        formulas[name] = formulas[other]
    return formulas


def _grouped(left: list[int], right: list[int], *_: Any, **__: Any) -> int:
    """Each row or column belongs to one group, unless both sides have a dimension for groups."""
    count = 2 * left[-2] * left[-1] * right[-1]
    if len(left) == len(right) == 3:
        count *= left[0]
    return count


def _attention(
    query: list[int], key: list[int], value: list[int], *, is_backward: bool
) -> tuple[int, int]:
    """Return the operations, and those that compute the scores again, which no forward keeps.

    Torch's own formulas ask for as many heads of keys as of queries.
    """
    pairs = 2 * math.prod(query[:-1]) * key[-2]
    if not is_backward:
        return pairs * (query[-1] + value[-1]), 0
    return pairs * (3 * query[-1] + 2 * value[-1]), pairs * query[-1]


def count_operations(nodes: Iterable[Node]) -> Counted:
    """Sum the outermost operators that have a formula."""
    found, formulas = Counted(), find_formulas()
    kept = _select(nodes, formulas, found)
    own: set[int] = set()
    repeated: dict[int, str] = {}
    for node, region, around in _outermost(kept, formulas, found.unknown):
        try:
            precision, count, again = _count(node, formulas[node.name])
        except Exception:  # noqa: BLE001  # formulas need values that a file lacks, or fail
            found.unknown[node.name] += 1
            continue
        found.everything[precision] += count
        if around.startswith(_NODE_OF_GRAPH) and node.has_graph:
            repeated[region] = around
        elif not around.startswith(_OPTIMIZER):
            own.add(region)
            found.useful[precision] += count - again
    # Where gradients are differentiated, a node's own products look like a repeated forward.
    for region, name in repeated.items():
        if region not in own and _OWN_GRADIENT.search(name):
            found.is_split = False
            found.useful = Counter(found.everything)
    return found


def _select(
    nodes: Iterable[Node], formulas: Mapping[str, Formula], found: Counted
) -> list[tuple[Node, bool]]:
    """Return the nodes that matter; false for operators that nothing says the operations of."""
    kept: list[tuple[Node, bool]] = []
    last_counted: dict[int, int] = {}
    for node in nodes:
        if _COMPILED in node.name:
            found.problem = COMPILED
        if node.name in formulas:
            last_counted[node.thread] = max(node.number, last_counted.get(node.thread, 0))
        if node.name in formulas or node.name.startswith((_NODE_OF_GRAPH, _OPTIMIZER)):
            kept.append((node, True))
        elif node.is_operator:
            space, _, name = node.name.partition("::")
            if space not in _PLAIN or _MATRIX_WORK.search(name):
                kept.append((node, last_counted.get(node.thread, 0) > node.number))
    return kept


def _outermost(
    kept: list[tuple[Node, bool]], formulas: Mapping[str, Formula], unknown: Counter[str]
) -> Iterator[tuple[Node, int, str]]:
    """Yield counted operators with the region around them and its name, the last first.

    An operator lies in all that began before it and ended after it, on its thread.
    """
    first: dict[int, int] = {}
    regions: dict[int, list[tuple[int, str]]] = {}
    for node, is_known in reversed(kept):
        around = regions.setdefault(node.thread, [(0, "")])
        while around[-1][0] > node.number:
            around.pop()
        if node.name.startswith((_NODE_OF_GRAPH, _OPTIMIZER)):
            around.append((node.number, node.name))
        elif node.number <= first.get(node.thread, node.number):
            if node.name in formulas:
                first[node.thread] = node.number
                yield node, *around[-1]
            elif not is_known:
                first[node.thread] = node.number
                unknown[node.name] += 1


def _count(node: Node, formula: Formula) -> tuple[str, int, int]:
    """Return the precision of an operator, its operations, and how many recompute others."""
    content = json.loads("{" + node.text + "}")
    inputs, outputs = _shapes(content["inputs"]), _shapes(content["outputs"])
    fused, again = _FUSED_ATTENTION.match(node.name), 0
    if fused is None:
        result = outputs if outputs[1:] else outputs[0]
        count = int(formula(*inputs, out_val=result))
    else:
        count, again = _attention(*inputs[bool(fused[1]) :][:3], is_backward=bool(fused[1]))
    kinds, values = content["inputs"]["types"], content["inputs"]["values"]
    place = next(place for place, kind in enumerate(kinds) if kind.startswith("Tensor("))
    kind, device = kinds[place].removeprefix("Tensor(").removesuffix(")"), values[place][-1]
    precision = _PRECISIONS.get(kind, kind)
    if precision == "fp32" and device.startswith("cuda") and _uses_tf32("conv" in node.name):
        precision = "tf32"
    return precision, count, again


def _shapes(side: Mapping[str, list[Any]]) -> list[Any]:
    """Return the shape of each tensor, and other values as they are."""
    found = list(side["values"])
    for place, kind in enumerate(side["types"]):
        if "Tensor" in kind:
            found[place] = side["shapes"][place]
    return found


def _uses_tf32(is_convolution: bool) -> bool:
    """Return true if matrices of fp32 are multiplied with Tensor Cores."""
    if torch.cuda.get_device_capability() < (8, 0):
        return False
    if is_convolution:
        return bool(torch.backends.cudnn.allow_tf32)
    return bool(torch.backends.cuda.matmul.allow_tf32)
