"""The hooks that process groups of torch 2.15 and later call around each operation."""

from __future__ import annotations

import atexit
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from profkit.clock import now_ns
from profkit.instrument.collectives import HERE
from profkit.instrument.frameworks.pytorch.collectives import HOOK_ID, MOST_OPEN, GroupCalls
from profkit.instrument.frameworks.pytorch.compiler import set_eval_frame, skip_code
from profkit.instrument.frameworks.pytorch.groups import Watched, describe_group
from profkit.instrument.frameworks.pytorch.layout import LAYOUT
from profkit.instrument.frameworks.pytorch.operations import OPERATIONS, Operation
from profkit.instrument.guard import Patches, guarded, report_failure

CompiledHooks: Any = None
"""The hooks in C, or nothing if profkit was installed without a compiler."""

with contextlib.suppress(ImportError):
    from profkit.instrument import _calls

    CompiledHooks = _calls.Hooks


class HookedGroups:
    """The process groups that have our hooks.

    A group must lose them before the interpreter ends: C++ destroys a group that the job leaves
    open only after that, and to release a Python function then ends the process with a fault.
    """

    def __init__(self, calls: GroupCalls) -> None:
        self._calls = calls
        self._groups: dict[str, Any] = {}
        self.add = guarded("process group", self._add, None)

    def _add(self, name: str, group: Any) -> None:
        if name in self._groups:
            self.remove(name)
        hooks: Any = GroupHooks(self._calls, name)
        if CompiledHooks is not None and self._calls.compiled is not None:
            hooks = CompiledHooks(self._calls.compiled, hooks)
        self._groups[name] = group
        group.register_pre_hook(HOOK_ID, hooks.before)
        group.register_post_hook(HOOK_ID, hooks.after)

    def remove(self, name: str) -> None:
        group = self._groups.pop(name, None)
        if group is not None:
            group.unregister_pre_hook(HOOK_ID)
            group.unregister_post_hook(HOOK_ID)

    def remove_all(self) -> None:
        for name in list(self._groups):
            guarded("process group", self.remove, None)(name)


def hook_each_group(patches: Patches, calls: GroupCalls) -> None:
    """Register our hooks with each process group, until torch forgets the group."""
    groups = HookedGroups(calls)
    c10d: Any = torch.distributed.distributed_c10d

    def wrap_register(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def register(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            groups.add(*args, *kwargs.values())
            return result

        return register

    def wrap_unregister(original: Callable[..., Any]) -> Callable[..., Any]:
        remove = guarded("process group", groups.remove, None)

        @functools.wraps(original)
        def unregister(*args: Any, **kwargs: Any) -> Any:
            remove(*args, *kwargs.values())
            return original(*args, **kwargs)

        return unregister

    def wrap_unregister_all(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def unregister_all() -> Any:
            groups.remove_all()
            LAYOUT.forget_meshes()
            return original()

        return unregister_all

    patches.replace(c10d, "_register_process_group", wrap_register)
    patches.replace(c10d, "_unregister_process_group", wrap_unregister)
    patches.replace(c10d, "_unregister_all_process_groups", wrap_unregister_all)
    for group, name in list(c10d._world.pg_names.items()):  # noqa: SLF001  # no public list
        groups.add(name, group)
    atexit.register(groups.remove_all)
    patches.on_undo(lambda: atexit.unregister(groups.remove_all))
    patches.on_undo(groups.remove_all)


class GroupHooks:
    """The two hooks of one group. They must not keep it alive, because it keeps them.

    `_calls.c` does the same for operations that are usual. They are `outside_compiler` and guards
    written out, because they run in each call of the job. Inside a call that makes rows of its
    own, they only note the time, and what a job's own communication hook sends: the gradient
    buckets of DDP pass here.
    """

    def __init__(self, calls: GroupCalls, name: str) -> None:
        self._calls = calls
        self._name = name
        self.watched: Watched | None = None
        self._is_described = False
        names: Any = torch._C._distributed_c10d.HookOpName  # noqa: SLF001  # no public name
        self.operations = {getattr(names, each).value: found for each, found in OPERATIONS.items()}

    def before(self, args: Any) -> None:
        """Note that an operation begins."""
        inside = HERE.inside
        if inside:
            HERE.sent_ns = HERE.sent_ns or now_ns()
            if HERE.parts is None:
                return
        compiler = set_eval_frame(None)
        try:
            watched = self.watched
            if not self._is_described:
                watched = self._describe()
            operation = self.operations.get(args.name.value)
            if operation is None or watched is None:
                return
            if inside:
                tensors = args.output_tensors if operation.in_outputs else args.input_tensors
                self._calls.note_part(watched, operation, tensors, args.root)
            else:
                self._begin(watched, operation, args)
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("collective begun", failure)
        finally:
            set_eval_frame(compiler)

    def after(self, args: Any) -> None:
        """Note that an operation was handed over."""
        if HERE.inside or self.watched is None:
            return
        compiler = set_eval_frame(None)
        try:
            sent = self.watched.open.pop(args.op_id, None)
            if sent is not None:
                self._calls.end(sent, args.work, is_async=args.async_op)
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("collective handed over", failure)
        finally:
            set_eval_frame(compiler)

    skip_code(before.__code__)
    skip_code(after.__code__)

    def _begin(self, watched: Watched, operation: Operation, args: Any) -> None:
        """Make a row of an operation; each list of its tensors is made only if it is needed."""
        in_outputs, calls = operation.in_outputs, self._calls
        tensors = args.output_tensors if in_outputs else args.input_tensors
        sent = calls.begin(watched, operation, tensors, args.root)
        if calls.by_address and args.async_op:
            outputs = tensors if in_outputs else args.output_tensors
            results = outputs or args.input_tensors
            if results:
                sent.address = results[0].data_ptr()
        if len(watched.open) >= MOST_OPEN:
            watched.open.clear()
        watched.open[args.op_id] = sent

    def _describe(self) -> Watched | None:
        """Return the group; torch notes its ranks only after it was registered."""
        self._is_described = True  # if this fails, it would fail each time
        c10d: Any = torch.distributed.distributed_c10d
        real = c10d._resolve_process_group(self._name)  # noqa: SLF001  # no public name
        self.watched = describe_group(real)
        return self.watched
