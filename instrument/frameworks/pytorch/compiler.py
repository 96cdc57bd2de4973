"""Keep torch's compiler away from Python functions of ours that torch calls from C++.

While a compiled function runs, the compiler looks at every Python frame, also at one that C++
calls. It must not compile our bookkeeping. `torch.compiler.disable` would do, but importing the
compiler takes a second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

_EVAL: Any = torch._C._dynamo.eval_frame  # noqa: SLF001  # what torch.compiler.disable uses

set_eval_frame: Callable[[Any], Any] = _EVAL.set_eval_frame
"""Sets what the compiler does with this thread's frames, and returns what it did; `None` is off."""


def skip_code(code: CodeType) -> None:
    """Have the compiler leave frames of this code alone, though not what they call."""
    if hasattr(_EVAL, "skip_code"):  # until torch 2.6
        _EVAL.skip_code(code)
    else:
        actions = _EVAL._FrameAction  # noqa: SLF001  # as above
        make = _EVAL._FrameExecStrategy  # noqa: SLF001  # as above
        strategy = make(actions.SKIP, actions.DEFAULT)
        _EVAL.set_code_exec_strategy(code, strategy)


LEFT_ALONE = "profkit times what follows"
"""This is part of the reason that the compiler gives for a graph that ends before our function."""


NEVER_COMPILED = "torch compiles no gradient scaler"
"""The same, if the graph would end there also without us."""


NEVER_RESET = "torch compiles no optimizer's zero_grad"
"""The same."""


def leave_alone(function: Any, reason: str = LEFT_ALONE) -> None:
    """Have the compiler end its graph before this function, and leave its frame alone.

    Code that calls it may be compiled, and would be followed into it. What it calls is compiled.
    """
    skip_code(function.__code__)
    function._torchdynamo_disable = True  # noqa: SLF001  # what torch.compiler.disable sets
    function._torchdynamo_disable_msg = reason  # noqa: SLF001  # as above


def outside_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` so that neither its frame nor those of its callees are compiled."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return function(*args)
        finally:
            set_eval_frame(before)

    skip_code(getattr(call, "__code__"))  # noqa: B009  # wraps() hides it from mypy
    return call
