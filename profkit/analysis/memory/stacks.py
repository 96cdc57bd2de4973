"""The part of a job that called the allocator, as its stack shows it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Caller(str, Enum):
    """The part of a job that a stack belongs to, as a report names the time of its call."""

    UNKNOWN = ""
    USER = "outside of the model"
    MODULES = "in the forward pass"
    REPEAT = "in the backward pass, where a checkpoint repeats the forward pass"
    BACKWARD = "in the backward pass"
    OPTIMIZER = "in the optimizer's step"
    FIRST_STEP = "in the optimizer's first step"
    ZERO_GRAD = "while gradients were reset"
    MODEL = "while the model was made or moved"
    BUCKETS = "while buckets were made"
    EXCHANGE = "in a collective"
    LIBRARY = "in a library, for its workspace"


@dataclass(frozen=True)
class Stack:
    """The caller, and the innermost line of the job's own code; empty if there is none."""

    caller: Caller = Caller.UNKNOWN
    line: str = ""
    outer: str = ""
    """The line that called the function of `line`."""
    module: str = ""
    """The line in the innermost `forward` that a module called: not one of torch's, if there is."""
    inside: str = ""
    """The line in the `forward` of the module around it."""
    has_cpp: bool = False
    calls_backward: bool = False
    """True if the stack is that of `backward()` in Python, before the engine starts."""


class Frame(NamedTuple):
    """A file and a function, the part that they stand for, and the place as it is shown."""

    file: str
    name: str
    role: Caller
    place: str
    is_python: bool = True
    is_own: bool = False
    """True for a file outside of packages and of Python itself."""


NO_STACK = Stack()

_PYTHON_ROLES = {
    Caller.MODULES: r"torch/nn/modules/module\.py:_(?:wrapped_)?call_impl$",
    Caller.MODEL: r"torch/nn/modules/.*:(?:_apply|to|to_empty|cuda|half|float|double|bfloat16|"
    r"register_buffer|reset_parameters|__init__)$",
    Caller.ZERO_GRAD: r".*:zero_grad$",
    Caller.USER: r".*[:_]closure$",  # an optimizer calls it for the loss
    Caller.OPTIMIZER: r"torch/optim/",
    Caller.BUCKETS: r"torch/nn/parallel/distributed\.py:_ddp_init_helper$",
    Caller.EXCHANGE: r"torch/distributed/(?:distributed_c10d\.|_functional_coll|fsdp/|_compos)",
}
_CPP_ROLES = {
    Caller.BACKWARD: r"torch::autograd::(?:python::Python)?Engine::",
    Caller.BUCKETS: r".*c10d::Reducer",
    Caller.EXCHANGE: r".*c10d::",
    Caller.LIBRARY: r".*\b(?:getCurrentCUDABlasWorkspace|getNewWorkspace)",
}
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+Backward\d*|AccumulateGrad)::apply\(")
_PACKAGE = re.compile(
    r"(?:.*/)?(?:(?:site|dist)-packages/|(?=torch/(?:nn|optim|autograd|utils|distributed)/))"
)
_PYTHON = re.compile(r"<frozen|.*/lib/python\d|.*profkit/instrument/")
_CHECKPOINT = "torch/utils/checkpoint.py"
_FUNCTION = "torch/autograd/function.py"
_AUTOGRAD = "torch/autograd/__init__.py"
_MOST_CHARACTERS = 120


def read_frame(file: str, name: str, line: str) -> Frame:
    """Return a frame; many stacks share one, so that it is read once."""
    if not file.endswith(".py") and not file.startswith("<"):
        return Frame("", name, _role_of(name, _CPP_ROLES), "".join(_NODE.findall(name)[:1]), False)
    inner = _PACKAGE.sub("", file, count=1)
    short = "/".join(inner.split("/")[-2:])  # other folders may name a user
    place = f"{short}:{line} {name}"[:_MOST_CHARACTERS]
    is_own = inner == file and not _PYTHON.match(file)
    return Frame(inner, name, _role_of(f"{inner}:{name}", _PYTHON_ROLES), place, True, is_own)


def _role_of(text: str, roles: dict[Caller, str]) -> Caller:
    for role, known in roles.items():
        if re.match(known, text):
            return role
    return Caller.UNKNOWN


def read_stack(frames: Iterable[Frame]) -> Stack:
    """Return the meaning of a stack, innermost frame first."""
    python: list[Frame] = []
    cpp: list[Frame] = []
    roles: set[Caller] = set()
    files: set[str] = set()
    for frame in frames:
        if frame.is_python:
            python.append(frame)
            files.add(frame.file)
        else:
            cpp.append(frame)
            roles.add(frame.role)
    if python and python[-1].file == _FUNCTION:
        roles.add(Caller.BACKWARD)  # the engine's own thread, in a function of Python
    own = [frame.place for frame in python if frame.is_own]
    if not own:  # a package's line, else torch's, else a part of the backward pass
        other = sorted(python, key=lambda frame: frame.file.startswith("torch/"))
        own = [frame.place for frame in (*other, *cpp) if frame.place]
        own[1:] = []
    line, outer, *_ = *own, "", ""
    has_cpp = any("::" in frame.name for frame in cpp)
    module, inside, *_ = *_modules(python), "", ""
    caller = _caller_of(python, files, roles)
    return Stack(caller, line, outer, module, inside, has_cpp, _AUTOGRAD in files)


def _modules(python: list[Frame]) -> list[str]:
    """Return the line of each module's `forward`, innermost first, less those inside torch's."""
    found: list[Frame] = []
    for frame, outer in itertools.pairwise(python):
        is_forward = frame.name.rpartition(".")[2] == "forward"
        if is_forward and outer.role is Caller.MODULES and frame.role is not Caller.MODULES:
            found.append(frame)
    others = [frame for frame in found if not frame.file.startswith("torch/")]
    return [frame.place for frame in others or found]


def _caller_of(python: list[Frame], files: set[str], roles: set[Caller]) -> Caller:
    """Return the caller: what C++ shows for certain, else the innermost part in Python."""
    for role in (Caller.LIBRARY, Caller.BUCKETS, Caller.EXCHANGE):
        if role in roles:
            return role
    caller = Caller.UNKNOWN
    inside: set[str] = set()
    for frame in python:
        inside.add(frame.name)
        caller = frame.role
        if caller is not Caller.UNKNOWN:
            break
    else:
        if python:
            caller = Caller.USER
    if caller is Caller.OPTIMIZER and "_init_group" in inside:
        caller = Caller.FIRST_STEP
    if Caller.BACKWARD in roles and _CHECKPOINT in files:
        return Caller.REPEAT
    if Caller.BACKWARD in roles and caller is not Caller.EXCHANGE:
        return Caller.BACKWARD
    return caller
