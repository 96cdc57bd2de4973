"""Tell from a stack what a thread does: wait for ranks, data or the device, compile.

Frameworks are known by their files and functions. The innermost frame that is known decides.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from profkit.hangs.status import RUNNING, Frame, Status, own_frame
from profkit.vocab import OWN_CODE


class Doing(str, Enum):
    """Kinds of activity of a training thread."""

    COLLECTIVE = "collective"
    MEETING = "meeting"
    COMPILE = "compile"
    CHECKPOINT = "checkpoint"
    DATA = "data"
    DEVICE = "device"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    FORWARD = "forward"
    CODE = "code"
    UNKNOWN = "unknown"


WAITS_FOR_RANKS = frozenset({Doing.COLLECTIVE, Doing.MEETING})

LAUNCHES = frozenset({Doing.CODE, Doing.UNKNOWN, Doing.FORWARD, Doing.BACKWARD, Doing.OPTIMIZER})
"""What the thread seems to do while it waits for the device in a call without a Python frame."""

LOCK_CALL = "futex"
"""The system call in which a thread waits for a lock, or for another thread to end."""

BEHIND_SHARE = 0.5
"""A device holds up its rank if it has made no progress for this part of the limit."""


class _Known(NamedTuple):
    doing: Doing
    file: str
    functions: str = ".*"


_MEETINGS = (
    "init_process_group|_new_process_group_helper|_store_based_barrier|new_group|_new_group.*"
    "|new_subgroups.*|split_group|init_device_mesh|_setup_world_group_and_device"
    "|_create_.*_process_group"
)
_EXCHANGES = (
    r"(.*\.)?(_?all_.*|.*barrier|broadcast.*|.*gather.*|_?reduce(?!_op).*|.*scatter.*|.*send.*"
    r"|.*recv.*|.*[cC]oalesc.*|.*abort.*|.*shr[iu]nk.*|destroy_process_group)"
)
"""The functions of torch's collectives, without the helpers that making a group calls as well."""

_NO_RUN = r"(?!(.*\.)?(run|runner|wrapper|specialized_dispatch|__call__)$).*"
"""The functions of a compiler's file without those that run what it has compiled."""

_TABLE = (
    _Known(Doing.COMPILE, r"torch/_dynamo/convert_frame\.py"),
    _Known(Doing.COMPILE, r"torch/__init__\.py", "compile"),
    _Known(Doing.COMPILE, r"torch/_dynamo/eval_frame\.py", "_?optimize|get_compiler_fn"),
    _Known(Doing.COMPILE, r"torch/(_dynamo|_inductor|_functorch)/", "<module>"),
    _Known(Doing.COMPILE, r"torch/_inductor/(compile_fx|async_compile|graph|scheduler)\.py",
           _NO_RUN),
    _Known(Doing.COMPILE, r"torch/_inductor/codegen/", _NO_RUN),
    _Known(Doing.COMPILE, r"torch/_inductor/codecache\.py", "(?!.*call).*(load|compile).*"),
    _Known(Doing.COMPILE, r"torch/_dynamo/(symbolic_convert|output_graph)\.py", _NO_RUN),
    _Known(Doing.COMPILE, r"torch/utils/cpp_extension\.py"),
    _Known(Doing.COMPILE, r"triton/(compiler/|backends/.*/compiler)", _NO_RUN),
    _Known(Doing.COMPILE, r"paddle/jit/dy2static/program_translator\.py",
           ".*(concrete|build|get_).*"),
    _Known(Doing.COMPILE, r"paddle/jit/sot/(opcode_translator|symbolic)/", _NO_RUN),
    _Known(Doing.COMPILE, r"paddle/utils/cpp_extension/"),
    _Known(Doing.CHECKPOINT, r"torch/serialization\.py", r"(.*\.)?(save|load|_save|_load).*"),
    _Known(Doing.CHECKPOINT, r"torch/distributed/checkpoint/"),
    _Known(Doing.CHECKPOINT, r"paddle/framework/io\.py",
           r"(save|load|_.*save|_.*load|clear_async_save).*"),
    _Known(Doing.CHECKPOINT, r"paddle/distributed/(checkpoint|flex_checkpoint)/"),
    _Known(Doing.CHECKPOINT, r"safetensors/"),
    _Known(Doing.CHECKPOINT, r"megatron/core/dist_checkpointing/"),
    _Known(Doing.CHECKPOINT, r"deepspeed/runtime/checkpoint_engine/"),
    _Known(Doing.DATA, r"torch/utils/data/"),
    _Known(Doing.DATA, r"paddle/io/"),
    _Known(Doing.MEETING, r"torch/distributed/rendezvous\.py"),
    _Known(Doing.MEETING, r"torch/distributed/distributed_c10d\.py", _MEETINGS),
    _Known(Doing.MEETING, r"torch/distributed/(device_mesh|elastic/.*)\.py"),
    _Known(Doing.MEETING, r"paddle/distributed/parallel\.py", "init_parallel_env"),
    _Known(Doing.MEETING, r"paddle/distributed/(collective|fleet/base/.*)\.py",
           "new_group|_new_process_group_impl|_init_parallel_env|init_.*|_set_up.*"),
    _Known(Doing.COLLECTIVE, r"torch/distributed/distributed_c10d\.py", _EXCHANGES),
    _Known(Doing.COLLECTIVE, r"torch/distributed/_functional_collectives\.py"),
    _Known(Doing.COLLECTIVE, r"paddle/distributed/communication/"),
    _Known(Doing.DEVICE, r"torch/(cuda|xpu|accelerator)/", r"(.*\.)?(synchronize|wait.*)"),
    _Known(Doing.DEVICE, r"paddle/device/", r"(.*\.)?synchronize"),
    _Known(Doing.BACKWARD, r"torch/(autograd/(__init__|graph)|_tensor)\.py", ".*backward.*"),
    _Known(Doing.BACKWARD, r"paddle/(autograd/|base/dygraph/)", ".*backward.*"),
    _Known(Doing.OPTIMIZER, r"(torch/optim|paddle/optimizer)/"),
    _Known(Doing.FORWARD, r"torch/nn/modules/module\.py", ".*_call.*|forward"),
    _Known(Doing.FORWARD, r"paddle/nn/layer/layers\.py", ".*__call__|.*_dygraph_call.*"),
)  # fmt: skip

_WRAPPERS = frozenset({"wrapper", "_wrapper", "inner", "decorate_context", "collective"})
_EVALUATIONS = frozenset({"eval", "evaluate", "evaluation", "validate", "validation"})
"""Words in the name of a function, or of its class, that evaluates a model."""

_OTHER_WORDS = frozenset(
    {
        *("train", "training", "trainer", "fit", "is", "config", "args", "path", "input"),
        *("inputs", "sample", "samples", "image", "images", "file", "files", "record", "item"),
        *("batch", "batches", "label", "labels", "token", "tokens", "shape", "shapes", "schema"),
        *("shard", "shards", "row", "rows", "tensor", "tensors", "grad", "grads", "gradients"),
        *("checkpoint", "manifest", "metadata", "params", "json", "hash", "checksum", "expr"),
    }
)
"""With one of these, a name is that of a loop that also trains, or of a check of data."""

_OF_VALID = frozenset(
    {
        *("", "valid", "run", "do", "one", "on", "start", "end", "epoch", "epochs", "loop"),
        *("step", "steps", "model", "net", "phase", "pass", "compute", "loss", "score"),
    }
)
"""Words next to `valid` in a name that evaluates. Of anything else it is an adjective."""


@dataclass(frozen=True)
class Activity:
    """The activity of a rank's training thread, and its place in the job's own code."""

    doing: Doing
    function: str = ""
    """The framework's function that decided."""
    place: Frame | None = None
    evaluates: bool = False
    is_behind: bool = False
    """True if the device has made no progress for long, whatever the thread does."""

    @property
    def may_wait_for_ranks(self) -> bool:
        """Return true for an exchange, or for what may contain one without showing it."""
        return self.doing in {*WAITS_FOR_RANKS, Doing.BACKWARD} or self.is_behind


def find_activity(status: Status) -> Activity:
    """Return what the training thread of a rank does, or that it waits for its device.

    A rank that has ended keeps what its stack says: it may have timed out in a backward.
    """
    found = find_activity_of_stack(status)
    limit_s = BEHIND_SHARE * status.limit_ns / 1e9
    is_behind = status.state == RUNNING and (status.device_behind_s or 0.0) >= limit_s
    if not is_behind or found.doing not in LAUNCHES:
        return found
    return dataclasses.replace(found, doing=Doing.DEVICE, function="", is_behind=True)


def find_activity_of_stack(status: Status) -> Activity:
    """Return what the training thread of a rank does by its stack."""
    stack = status.stack
    place = own_frame(stack, OWN_CODE)
    named = any(frame.origin == OWN_CODE and names_evaluation(frame.function) for frame in stack)
    evaluates = status.evaluates or named
    found: list[tuple[Doing, str]] = []
    imported = count_imported(stack)
    for number, frame in enumerate(stack):
        doing = None if frame.origin == OWN_CODE else _look_up(frame, status.steps)
        if doing in WAITS_FOR_RANKS and number < imported:
            continue  # modules set themselves up, and wait for nobody
        if doing is not None:
            found.append((doing, frame.function))
    compiling = [function for known, function in found if known is Doing.COMPILE]
    if compiling and found[0][0] not in WAITS_FOR_RANKS:
        return Activity(Doing.COMPILE, compiling[0], place, evaluates)
    if found:
        decided, function = found[0]
        if decided in WAITS_FOR_RANKS:
            return Activity(decided, outermost_function(stack, decided), place, evaluates)
        if decided is Doing.DATA:
            place = place_in_loader((stack, *status.other_stacks)) or place
        return Activity(decided, function.rpartition(".")[2], place, evaluates)
    port = status.store.rpartition(":")[2]
    if port and status.reads.endswith(f":{port}"):
        return Activity(Doing.MEETING, "the store", place, evaluates)
    if writes := status.region or find_awaited_writer(status):
        return Activity(Doing.CHECKPOINT, writes, place, evaluates)
    return Activity(Doing.CODE if stack else Doing.UNKNOWN, "", place, evaluates)


def find_awaited_writer(status: Status) -> str:
    """Return in which function a thread writes a checkpoint, if this rank may wait for it."""
    if not status.stack or status.system_call != LOCK_CALL:
        return ""
    return find_writer(itertools.chain(*status.other_stacks))


def find_writer(stack: Iterable[Frame]) -> str:
    """Return the function of a library that reads or writes a checkpoint in these frames."""
    for frame in stack:
        if _look_up(frame) is Doing.CHECKPOINT:
            return frame.function.rpartition(".")[2]
    return ""


def count_imported(stack: Sequence[Frame]) -> int:
    """Return how many of the innermost frames run because a package is imported."""
    for number, frame in enumerate(stack):
        if frame.origin == OWN_CODE:
            break
        if frame.file.startswith("<frozen importlib"):
            return number
    return 0


def place_in_loader(stacks: Iterable[Sequence[Frame]]) -> Frame | None:
    """Return the job's line that a loader runs; Paddle's reads samples in a thread of its own."""
    for stack in stacks:
        place = own_frame(stack, OWN_CODE)
        callers = stack[stack.index(place) + 1 :] if place is not None else ()
        if any(_look_up(frame) is Doing.DATA for frame in callers):
            return place
    return None


def names_evaluation(function: str) -> bool:
    """Return true if a function's name says that it evaluates: `Judge.validate`, `run_eval`."""
    for part in function.lower().split("."):
        words = set(part.split("_"))
        if words & _EVALUATIONS and not words & _OTHER_WORDS:
            return True
        if "valid" in words and words <= _OF_VALID:
            return True
    return False


def _look_up(frame: Frame, steps: int = 0) -> Doing | None:
    return _look_up_name(frame.file, frame.function, has_steps=steps > 0)


@functools.lru_cache(maxsize=4096)  # each look asks for all frames again, inside of the job
def _look_up_name(file: str, name: str, *, has_steps: bool) -> Doing | None:
    for known in _TABLE:
        # Before the first step, frameworks import their compilers and compile nothing.
        if name == "<module>" and (known.doing is not Doing.COMPILE or not has_steps):
            continue
        if re.search(known.file, file) and re.fullmatch(known.functions, name):
            return known.doing
    return None


def outermost_function(stack: Sequence[Frame], doing: Doing) -> str:
    """Return the function that the job called: `all_reduce`, not a helper inside of it."""
    found = ""
    for frame in stack:
        if frame.origin == OWN_CODE and found:
            break
        name = frame.function.rpartition(".")[2]
        if _look_up(frame) is doing and name not in _WRAPPERS and not name.startswith("<"):
            found = name
    return found
