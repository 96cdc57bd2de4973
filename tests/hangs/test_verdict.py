"""Verdicts of hand-written statuses, one for each class and for missing evidence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from profkit.hangs.account import FINE, HUNG, LONG, UNKNOWN, read_account
from profkit.hangs.activity import Doing, find_activity
from profkit.hangs.classes import HangClass, Level
from profkit.hangs.evidence import Evidence, read_evidence
from profkit.hangs.incidents import SEEN, append_event
from profkit.hangs.status import (
    FAILED,
    FOLDER,
    STACK_SUFFIX,
    Call,
    Frame,
    Status,
    Worker,
    plain_host,
)
from profkit.hangs.verdict import Verdict, judge
from profkit.hangs.words import as_json, say_verdict
from profkit.trace.manifest import RunManifest
from profkit.vocab import RunState

SECOND = 1_000_000_000
NOW = 1_800_000_000 * SECOND
TORCH = "/opt/lib/python3.11/site-packages/torch/"
ALL_REDUCE = (
    Frame(f"{TORCH}distributed/distributed_c10d.py", "all_reduce", 3000, "package"),
    Frame(f"{TORCH}distributed/c10d_logger.py", "wrapper", 81, "package"),
    Frame("/home/me/train.py", "main", 40, "job"),
)
IN_LOADER = (
    Frame("/home/me/train.py", "decode", 88, "job"),
    Frame(f"{TORCH}utils/data/dataloader.py", "_next_data", 700, "package"),
    Frame("/home/me/train.py", "main", 30, "job"),
)
IN_CODE = (Frame("/home/me/train.py", "resize", 12, "job"),)
JOINING = (
    Frame(f"{TORCH}distributed/rendezvous.py", "_create_c10d_store", 189, "package"),
    Frame(f"{TORCH}distributed/distributed_c10d.py", "init_process_group", 1700, "package"),
    Frame("/home/me/train.py", "main", 20, "job"),
)


def calls(last: int, *, done: bool, **changes: Any) -> tuple[Call, ...]:
    """Return the calls of a rank whose last collective has this number."""
    before = Call("0", last - 1, "all_reduce", 4096, "float32", (0, 1, 2, 3), done=True)
    return before, dataclasses.replace(before, sequence=last, done=done, **changes)


def rank(number: int, *, stood_s: float = 40.0, idle_s: float = 40.0, **changes: Any) -> Status:
    status = Status(
        number,
        4,
        "gpu01",
        1000 + number,
        written_ns=NOW,
        moved_ns=NOW - int(stood_s * SECOND),
        alive_ns=NOW - int(idle_s * SECOND),
        steps=55,
        usual_step_s=0.2,
        thread_state="S",
        stack=ALL_REDUCE,
        calls=calls(56, done=False),
        calls_from="the flight recorder",
    )
    return dataclasses.replace(status, **changes)


def verdict_of(*statuses: Status, **known: Any) -> Verdict:
    found = judge(Evidence({status.rank: status for status in statuses}, 4, **known))
    assert found is not None
    return found


def waiting(*numbers: int) -> list[Status]:
    return [rank(number) for number in numbers]


def test_one_rank_has_not_entered() -> None:
    dead = Worker("Process-1", 7, "S"), Worker("Process-2", 8, "Z")
    late = rank(
        3,
        stack=IN_LOADER,
        calls=calls(55, done=True),
        thread_state="D",
        system_call="read",
        reads="/data/train.rec",
        workers=dead,
    )
    bucket = [rank(number, calls=calls(56, done=False, bucket=2)) for number in range(3)]
    verdict = verdict_of(*bucket, late)
    assert (verdict.kind, verdict.level) == (HangClass.DATA, Level.ALARM)
    assert say_verdict(verdict) == (
        "ranks 0-2 wait in all_reduce #56 (bucket 2); rank 3 has not entered it: "
        "train.py:88 decode, waits for data, state D (waits for a disk or the network), "
        "read on /data/train.rec; its worker 1 (Process-2) is dead"
    )
    assert as_json(verdict)["places"]["3"] == {
        "file": "/home/me/train.py",
        "line": 88,
        "function": "decode",
    }


@pytest.mark.parametrize(
    ("stack", "code", "words"),
    [
        (IN_LOADER, None, "; its worker 0 (Process-1) is dead"),
        (IN_LOADER, -9, "; its worker 0 (Process-1) was ended by SIGKILL (process 7)"),
        (IN_CODE, 3, "; its worker 0 (Process-1) ended with exit code 3 (process 7)"),
        (IN_CODE, None, ""),  # a process that has done its work
        (IN_LOADER, 0, "; its worker 0 (Process-1) is dead"),
    ],
)
def test_a_process_that_may_have_done_its_work_is_not_named(
    stack: tuple[Frame, ...], code: int | None, words: str
) -> None:
    ended = Worker("Process-1", 7, "Z", exit_code=code)
    late = rank(3, stack=stack, calls=calls(55, done=True), workers=(ended,))
    said = say_verdict(verdict_of(*waiting(0, 1, 2), late))
    assert said.endswith(f"state S (sleeps){words}")


def test_a_loader_that_reads_in_a_thread_has_the_line_of_the_thread() -> None:
    package = "/opt/lib/python3.11/site-packages/paddle/io/dataloader/dataloader_iter.py"
    loop = Frame("/home/me/train.py", "main", 30, "job")
    reader = (
        Frame("/home/me/data.py", "decode", 88, "job"),
        Frame(package, "_thread_loop", 230, "package"),
    )
    other = (Frame("/home/me/log.py", "send", 5, "job"),)
    late = rank(
        3,
        stack=(Frame(package, "__next__", 300, "package"), loop),
        other_stacks=(other, reader),
        calls=calls(55, done=True),
    )
    verdict = verdict_of(*waiting(0, 1, 2), late)
    assert verdict.kind is HangClass.DATA
    assert "data.py:88 decode" in say_verdict(verdict)
    assert as_json(verdict)["places"]["3"]["line"] == 88


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("futex", ", waits for a lock or a thread; another thread of it is at log.py:15 flush"),
        ("clock_nanosleep", ""),
    ],
)
def test_a_rank_that_waits_for_a_lock_is_said_with_its_other_thread(call: str, words: str) -> None:
    logger = (Frame("/home/me/log.py", "flush", 15, "job"),)
    late = rank(
        3, stack=IN_CODE, calls=calls(55, done=True), other_stacks=(logger,), system_call=call
    )
    said = say_verdict(verdict_of(*waiting(0, 1, 2), late))
    assert said.endswith(f"train.py:12 resize, state S (sleeps){words}")


@pytest.mark.parametrize("idle_s", [10.0, 400.0])
@pytest.mark.parametrize("call", ["futex", "clock_nanosleep"])
@pytest.mark.parametrize("file", ["torch/serialization.py", "torch/random.py"])
def test_a_rank_that_waits_for_the_thread_that_writes_its_checkpoint(
    file: str, call: str, idle_s: float
) -> None:
    writer = (
        Frame(f"/opt/lib/python3.11/site-packages/{file}", "save", 900, "package"),
        Frame("/home/me/saving.py", "write", 15, "job"),
    )
    known: dict[str, Any] = {"stack": IN_CODE, "other_stacks": (writer,), "system_call": call}
    late = rank(3, calls=calls(55, done=True), idle_s=idle_s, **known)
    verdict = verdict_of(*waiting(0, 1, 2), late)
    writes = call == "futex" and file == "torch/serialization.py"
    assert (verdict.kind is HangClass.CHECKPOINT) == writes
    assert (verdict.level is Level.NOTICE) == (writes and idle_s < 300)
    if writes:
        assert say_verdict(verdict).endswith(
            "rank 3 reads or writes a checkpoint: train.py:12 resize, state S (sleeps), waits for "
            "a lock or a thread; another thread of it is at saving.py:15 write"
        )


def test_a_rank_that_waits_for_a_library_that_writes_its_checkpoint() -> None:
    writer = (
        Frame(f"{TORCH}distributed/checkpoint/filesystem.py", "save.<locals>.put", 9, "package"),
    )
    known: dict[str, Any] = {"stack": IN_CODE, "other_stacks": (writer,), "system_call": "futex"}
    late = rank(3, calls=calls(55, done=True), **known)
    verdict = verdict_of(*waiting(0, 1, 2), late)
    assert (verdict.kind, verdict.level) == (HangClass.CHECKPOINT, Level.NOTICE)
    assert say_verdict(verdict).endswith(
        "waits for a lock or a thread; another thread of it is in put"
    )


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("paddle/framework/io.py", "clear_async_save_task_queue"),
        ("megatron/core/dist_checkpointing/strategies/async_utils.py", "AsyncCallsQueue.close"),
        ("deepspeed/runtime/checkpoint_engine/engine.py", "Engine.commit"),
    ],
)
def test_libraries_that_wait_for_a_checkpoint(file: str, function: str) -> None:
    stack = (Frame(f"/opt/lib/python3.11/site-packages/{file}", function, 9, "package"), *IN_CODE)
    late = rank(3, calls=calls(55, done=True), stack=stack)
    assert verdict_of(*waiting(0, 1, 2), late).kind is HangClass.CHECKPOINT


@pytest.mark.parametrize("state", ["S", "R"])
def test_code_of_the_job_is_no_long_part(state: str) -> None:
    own = rank(3, stack=IN_CODE, calls=calls(55, done=True), idle_s=0.0, thread_state=state)
    verdict = verdict_of(*waiting(0, 1, 2), own)
    assert (verdict.kind, verdict.ranks) == (HangClass.NEVER_ENTERED, (3,))
    assert verdict.level is Level.ALARM


def test_a_part_that_may_take_long_is_said_and_raises_no_alarm() -> None:
    evaluating = rank(0, stack=IN_CODE, calls=calls(55, done=True), evaluates=True, idle_s=0.0)
    verdict = verdict_of(evaluating, *waiting(1, 2, 3))
    assert (verdict.kind, verdict.level) == (HangClass.EVALUATION, Level.NOTICE)
    assert "rank 0 evaluates: train.py:12 resize" in say_verdict(verdict)
    lifeless = dataclasses.replace(evaluating, alive_ns=NOW - 400 * SECOND)
    assert verdict_of(lifeless, *waiting(1, 2, 3)).level is Level.ALARM


def test_work_after_the_last_batch_raises_no_alarm_for_ten_limits() -> None:
    after = rank(3, stack=IN_CODE, calls=calls(55, done=True), loaders_over=True)
    verdict = verdict_of(*waiting(0, 1, 2), after)
    assert (verdict.kind, verdict.ranks) == (HangClass.NEVER_ENTERED, (3,))
    assert verdict.level is Level.NOTICE
    assert "rank 3 has not entered it: train.py:12 resize" in say_verdict(verdict)
    assert "after the last batch of its loader" in say_verdict(verdict)
    lifeless = dataclasses.replace(after, alive_ns=NOW - 400 * SECOND)
    assert verdict_of(*waiting(0, 1, 2), lifeless).level is Level.ALARM


def test_ranks_that_meet_after_the_last_batch_and_never_leave_hang() -> None:
    over = [dataclasses.replace(each, loaders_over=True) for each in waiting(0, 1, 2, 3)]
    verdict = verdict_of(*over)
    assert (verdict.kind, verdict.level) == (HangClass.NONE_LEFT, Level.ALARM)


def test_the_import_of_a_compiler_is_a_part_of_the_compilation() -> None:
    importing = (
        Frame("<frozen importlib._bootstrap>", "_find_and_load", 1176, "python"),
        Frame(f"{TORCH}_dynamo/convert_frame.py", "<module>", 30, "package"),
        *IN_CODE,
    )
    own = rank(0, stack=importing, calls=calls(55, done=True), idle_s=0.0)
    verdict = verdict_of(own, *waiting(1, 2, 3))
    assert (verdict.kind, verdict.level) == (HangClass.COMPILE, Level.NOTICE)


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("_functorch/partitioners.py", "<module>"),
        ("_dynamo/eval_frame.py", "_optimize"),
        ("__init__.py", "compile"),
    ],
)
def test_what_compile_does_before_it_compiles_is_compilation(file: str, function: str) -> None:
    own = rank(
        0,
        stack=(
            Frame("/opt/lib/python3.11/site-packages/networkx/a.py", "<module>", 3, "package"),
            Frame(f"{TORCH}{file}", function, 60, "package"),
            *IN_CODE,
        ),
        calls=calls(55, done=True),
    )
    assert verdict_of(own, *waiting(1, 2, 3)).kind is HangClass.COMPILE


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("torch/_inductor/compile_fx.py", "cudagraphify_impl.<locals>.run"),
        ("torch/_inductor/compile_fx.py", "run"),  # Python 3.10 has no qualified names
        ("torch/_inductor/compile_fx.py", "fw_compiler_freezing.<locals>.wrapper"),
        ("torch/_inductor/codegen/multi_kernel.py", "MultiKernelCall.run"),
        ("torch/_dynamo/output_graph.py", "f.<locals>.specialized_dispatch"),
        ("triton/compiler/compiler.py", "CompiledKernel.__getitem__.<locals>.runner"),
        ("paddle/jit/sot/symbolic/compile_cache.py", "FallbackWrapper.__call__"),
    ],
)
def test_a_function_that_runs_compiled_code_compiles_nothing(file: str, function: str) -> None:
    """They are on the stack of each call, so a replay that blocks is not compilation."""
    running = (
        Frame(f"{TORCH}_inductor/cudagraph_trees.py", "CUDAGraphNode.run", 900, "package"),
        Frame(f"/lib/{file}", function, 2390, "package"),
        Frame(f"{TORCH}nn/modules/module.py", "Module._call_impl", 1700, "package"),
        *IN_CODE,
    )
    own = rank(0, stack=running, calls=calls(55, done=True))
    assert find_activity(own).doing is Doing.FORWARD
    assert verdict_of(own, *waiting(1, 2, 3)).kind is HangClass.NEVER_ENTERED


def test_a_barrier_that_only_the_stack_shows_comes_after_all_numbered_calls() -> None:
    """Paddle's barrier has no row, and its exchanges of gradients have no time."""
    first = Call("0", 3, "broadcast", 8, "float32", (0, 1, 2, 3), done=True, since_ns=NOW)
    latest = Call("0", 56, "", 0, "", done=True)
    barrier = (dataclasses.replace(ALL_REDUCE[0], function="barrier"), *ALL_REDUCE[1:])
    early = [rank(number, calls=(first, latest), stack=barrier) for number in (0, 1, 2)]
    verdict = verdict_of(*early, rank(3, calls=(first, latest), stack=IN_CODE))
    assert (verdict.kind, verdict.ranks) == (HangClass.NEVER_ENTERED, (3,))
    assert "ranks 0-2 wait in barrier #57" in say_verdict(verdict)


def test_the_first_difference_is_a_mismatch() -> None:
    other = rank(2, calls=calls(56, done=False, op="broadcast"))
    verdict = verdict_of(*waiting(0, 1, 3), other)
    assert (verdict.kind, verdict.ranks) == (HangClass.MISMATCH, (2,))
    assert "ranks 0-1, 3 are in all_reduce #56" in say_verdict(verdict)
    assert "rank 2 is in broadcast #56" in say_verdict(verdict)


@pytest.mark.parametrize("changes", [{"bytes": 8192}, {"dtype": "float64"}])
def test_another_size_or_type_is_a_mismatch(changes: dict[str, Any]) -> None:
    other = rank(2, calls=calls(56, done=False, **changes))
    verdict = verdict_of(*waiting(0, 1, 3), other)
    assert (verdict.kind, verdict.ranks) == (HangClass.MISMATCH, (2,))


def test_finished_collectives_of_other_sizes_are_no_mismatch() -> None:
    """A gather may send messages of different sizes, and what has ended has matched."""
    ended = [
        dataclasses.replace(
            status,
            calls=(
                Call("0", 55, "all_reduce", 10 + status.rank, "f", done=True),
                calls(56, done=False)[1],
            ),
        )
        for status in waiting(0, 1, 2)
    ]
    late = rank(3, stack=IN_CODE, calls=calls(55, done=True))
    assert verdict_of(*ended, late).kind is HangClass.NEVER_ENTERED


def test_groups_without_a_common_rank_are_not_compared_by_their_name() -> None:
    """Older versions of torch give all groups of a mesh's dimension one name."""
    first = calls(56, done=False, group="mesh_tp", members=(0, 1))
    second = calls(56, done=False, group="mesh_tp", members=(2, 3), bytes=8)
    late = rank(3, stack=IN_CODE, calls=second[:1])
    verdict = verdict_of(rank(0, calls=first), rank(1, calls=first), rank(2, calls=second), late)
    assert (verdict.kind, verdict.ranks) == (HangClass.NEVER_ENTERED, (3,))
    known = calls(56, done=False, bytes=8)
    unknown = [rank(number, calls=calls(56, done=False, members=())) for number in (1, 2, 3)]
    assert verdict_of(rank(0, calls=known), *unknown).kind is HangClass.MISMATCH


def test_all_entered_and_none_left() -> None:
    verdict = verdict_of(*waiting(0, 1, 2, 3))
    assert (verdict.kind, verdict.ranks) == (HangClass.NONE_LEFT, (0, 1, 2, 3))
    assert say_verdict(verdict) == (
        "ranks 0-3 have all entered all_reduce #56, and none has left it"
    )


def test_a_rank_that_cannot_leave_a_collective_that_all_have_entered() -> None:
    """Rank 0 has sent its part of a broadcast and gone on; the others never received it."""
    ahead = rank(0, calls=calls(57, done=False))
    verdict = verdict_of(ahead, *waiting(1, 2, 3))
    assert (verdict.kind, verdict.ranks) == (HangClass.NONE_LEFT, (1, 2, 3))
    assert say_verdict(verdict) == (
        "all ranks have entered all_reduce #56, and ranks 1-3 cannot leave it; "
        "rank 0 waits in a later one"
    )


def test_a_kernel_that_has_not_started_names_the_busy_device() -> None:
    started = [rank(number, calls=calls(56, done=False, started=True)) for number in (0, 1, 3)]
    blocked = rank(2, calls=calls(56, done=False, started=False))
    verdict = verdict_of(*started, blocked)
    assert (verdict.kind, verdict.ranks) == (HangClass.DEVICE_BUSY, (2,))


SPINS: dict[str, Any] = {"stack": IN_CODE, "calls": (), "calls_from": "", "thread_state": "R"}


def alone(**changes: Any) -> Verdict:
    found = judge(Evidence({0: dataclasses.replace(rank(0, **SPINS, **changes), world_size=1)}, 1))
    assert found is not None
    return found


def test_a_device_that_does_not_go_on_is_an_alarm() -> None:
    found = alone(device_behind_s=33.0)
    assert (found.kind, found.level) == (HangClass.DEVICE_BUSY, Level.ALARM)
    words = "resize, its device is still at work that was launched more than 33.0 s ago, state R"
    assert words in say_verdict(found)


@pytest.mark.parametrize("behind_s", [None, 0.0, 3.0])
def test_a_device_that_goes_on_says_nothing_about_the_code(behind_s: float | None) -> None:
    found = alone(device_behind_s=behind_s, idle_s=0.5)
    assert (found.kind, found.level) == (HangClass.OWN_CODE, Level.NOTICE)
    assert "device" not in say_verdict(found)


def test_the_rank_whose_device_has_nothing_to_do_is_waited_for() -> None:
    """The device of the others spins in an exchange that nobody has noted."""
    behind = [rank(number, device_behind_s=35.0, **SPINS) for number in (0, 1, 2)]
    late = rank(3, device_behind_s=0.0, **{**SPINS, "thread_state": "S"})
    found = verdict_of(*behind, late)
    assert (found.ranks, found.waiting) == ((3,), (0, 1, 2))
    assert found.level is Level.ALARM


def test_a_rank_that_timed_out_in_its_backward_is_not_to_blame_for_its_busy_device() -> None:
    backward = (
        Frame(f"{TORCH}autograd/graph.py", "_engine_run_backward", 800, "package"),
        Frame("/home/me/train.py", "main", 41, "job"),
    )
    ended = rank(0, stack=backward, device_behind_s=35.0, state=FAILED, error="it timed out")
    late = rank(3, **SPINS)
    assert find_activity(ended).doing is Doing.BACKWARD
    assert verdict_of(ended, *waiting(1, 2), late).ranks == (3,)


def test_a_part_that_evaluates_may_keep_the_device_busy() -> None:
    found = alone(device_behind_s=33.0, evaluates=True)
    assert (found.kind, found.level) == (HangClass.ALL_EVALUATE, Level.NOTICE)


def test_a_stopped_rank_and_a_dead_one() -> None:
    stopped = verdict_of(*waiting(0, 1, 2), rank(3, calls=calls(55, done=True)), states={3: "T"})
    assert (stopped.kind, stopped.ranks) == (HangClass.RANK_STOPPED, (3,))
    dead = verdict_of(*waiting(0, 1, 2), rank(3, calls=calls(55, done=True)), states={3: ""})
    assert (dead.kind, dead.ranks) == (HangClass.RANK_DEAD, (3,))
    assert "rank 3 is dead: its process 1003 is gone, last seen at step 55" in say_verdict(dead)


def test_the_rank_that_failed_first() -> None:
    first = rank(1, state=FAILED, error="ValueError: no label", written_ns=NOW - SECOND)
    then = rank(0, state=FAILED, error="RuntimeError: connection closed")
    verdict = verdict_of(first, then, calls_of(2), calls_of(3))
    assert (verdict.kind, verdict.ranks) == (HangClass.RANK_DEAD, (1,))
    assert "rank 1 ended with ValueError: no label" in say_verdict(verdict)


TIMEOUT = "RuntimeError: [gloo/tcp/unbound_buffer.cc:81] Timed out waiting 20000ms for recv"


@pytest.mark.parametrize("done", [False, True])
def test_a_rank_that_waited_until_its_collective_timed_out_is_not_to_blame(done: bool) -> None:
    gave_up = rank(
        0, state=FAILED, error=TIMEOUT, calls=calls(56, done=done), written_ns=NOW - SECOND
    )
    cut_off = rank(1, state=FAILED, error="RuntimeError: Connection closed by peer")
    late = rank(3, stack=IN_CODE, calls=calls(55, done=True))
    verdict = verdict_of(gave_up, cut_off, *waiting(2), late)
    assert (verdict.kind, verdict.ranks) == (HangClass.NEVER_ENTERED, (3,))
    assert say_verdict(verdict) == (
        f"ranks 0, 2 wait in all_reduce #56; rank 0 gave up: {TIMEOUT}; "
        "rank 3 has not entered it: train.py:12 resize, state S (sleeps)"
    )


def test_a_timeout_outside_of_collectives_is_the_ranks_own() -> None:
    own = rank(0, state=FAILED, error="TimeoutError: no answer", stack=IN_CODE)
    verdict = verdict_of(own, *waiting(1, 2), calls_of(3))
    assert (verdict.kind, verdict.ranks) == (HangClass.RANK_DEAD, (0,))


def test_a_timeout_for_which_no_other_rank_is_late_names_the_rank_itself() -> None:
    gave_up = rank(0, state=FAILED, error=TIMEOUT)
    verdict = verdict_of(gave_up, *waiting(1, 2, 3))
    assert (verdict.kind, verdict.ranks) == (HangClass.RANK_DEAD, (0,))


def calls_of(number: int) -> Status:
    return rank(number, calls=calls(55, done=True))


def test_a_rank_that_has_not_joined() -> None:
    joining = [rank(number, steps=0, stack=JOINING, calls=()) for number in (0, 1, 2)]
    late = rank(3, steps=0, stack=IN_CODE, calls=())
    verdict = verdict_of(*joining, late)
    assert (verdict.kind, verdict.ranks) == (HangClass.STORE, (3,))
    assert verdict.level is Level.NOTICE  # starting may take long
    assert "rank 3 has not joined them: train.py:12 resize" in say_verdict(verdict)


@pytest.mark.parametrize(
    ("inner", "outer", "doing"),
    [
        ("BackendConfig.__init__", "init_process_group", Doing.MEETING),
        ("_World.default_pg", "new_group", Doing.MEETING),
        ("barrier", "new_group", Doing.COLLECTIVE),
        ("_check_single_tensor", "all_reduce", Doing.COLLECTIVE),
        ("_reduce_scatter_base", "reduce_scatter_tensor", Doing.COLLECTIVE),
    ],
)
def test_helpers_of_groups_and_collectives(inner: str, outer: str, doing: Doing) -> None:
    """The look may fall into any function that making a group or a collective calls."""
    file = f"{TORCH}distributed/distributed_c10d.py"
    frames = (Frame(file, inner, 10, "package"), Frame(file, outer, 20, "package"), *IN_CODE)
    assert find_activity(rank(0, stack=frames)).doing is doing


def test_a_rank_that_imports_the_rendezvous_does_not_wait_in_it() -> None:
    file = f"{TORCH}distributed/elastic/rendezvous/registry.py"
    setting_up = Frame(file, "_register_out_of_tree_handlers", 70, "package")
    importing = Frame("<frozen importlib._bootstrap>", "_find_and_load", 1176, "python")
    frames = (setting_up, Frame(file, "<module>", 90, "package"), importing, *IN_CODE)
    assert find_activity(rank(0, steps=0, stack=frames)).doing is Doing.CODE
    joining = (*JOINING, importing, *IN_CODE)  # a module of the job joins as it is imported
    assert find_activity(rank(0, steps=0, stack=joining)).doing is Doing.MEETING


def test_ranks_that_wait_in_a_collective_for_one_at_the_store() -> None:
    at_store = rank(3, stack=IN_CODE, calls=calls(55, done=True), store="gpu01:29500")
    at_store = dataclasses.replace(at_store, system_call="poll", reads="10.0.0.1:29500")
    verdict = verdict_of(*waiting(0, 1, 2), at_store)
    assert (verdict.kind, verdict.ranks) == (HangClass.STORE, (3,))
    assert say_verdict(verdict) == (
        "ranks 0-2 wait in all_reduce #56; rank 3 has not entered it: train.py:12 resize, "
        "in the store, state S (sleeps), poll on 10.0.0.1:29500"
    )


def test_a_rank_that_makes_its_group_is_in_the_rendezvous() -> None:
    group = Frame(
        f"{TORCH}distributed/distributed_c10d.py", "_create_gloo_process_group", 760, "package"
    )
    joining = [rank(number, steps=0, stack=JOINING, calls=()) for number in (0,)]
    connecting = [rank(number, steps=0, stack=(group, *JOINING), calls=()) for number in (1, 2)]
    late = rank(3, steps=0, stack=IN_CODE, calls=())
    verdict = verdict_of(*joining, *connecting, late)
    assert (verdict.kind, verdict.ranks) == (HangClass.STORE, (3,))


def test_a_rank_without_a_file_is_named_and_said_to_be_missing() -> None:
    """Its host may have a folder of its own, and the rank a long part: that is no alarm."""
    verdict = verdict_of(*waiting(0, 1, 2))
    assert (verdict.kind, verdict.ranks) == (HangClass.UNCLEAR, (3,))
    assert verdict.level is Level.NOTICE
    assert verdict.missing == ("rank 3: no status file; collect the folders of all hosts",)
    assert say_verdict(verdict) == ("ranks 0-2 wait in all_reduce #56; rank 3 has left no status")
    starting = [dataclasses.replace(status, steps=0) for status in waiting(0, 1, 2)]
    assert verdict_of(*starting).kind is HangClass.NEVER_ENTERED


def test_the_folder_of_one_host_does_not_suffice(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    RunManifest("job").write(tmp_path)
    for status in waiting(0, 1, 2):
        status.write(tmp_path / FOLDER)
    assert read_account(tmp_path).state == UNKNOWN
    verdict = as_json(verdict_of(*waiting(0, 1, 2)))
    append_event(tmp_path, "host", {"event": SEEN, "time_ns": NOW, "verdict": verdict})
    assert read_account(tmp_path).state == UNKNOWN


@pytest.mark.parametrize(("seen", "state"), [(range(4), LONG), ((1, 2), UNKNOWN)])
def test_ranks_that_compute_may_be_late_for_those_of_other_hosts(
    tmp_path: Path, seen: Sequence[int], state: str
) -> None:
    (tmp_path / FOLDER).mkdir()
    RunManifest("job").write(tmp_path)
    for number in seen:
        status = rank(number, stack=IN_CODE, calls=calls(55, done=True), alive_ns=NOW)
        status.write(tmp_path / FOLDER)
    assert read_account(tmp_path).state == state


def test_a_rank_that_is_seen_to_be_late_is_named_without_those_of_other_hosts() -> None:
    everybody = tuple(range(16))
    own = [rank(number, calls=calls(56, done=False, members=everybody)) for number in range(8)]
    own[3] = rank(3, stack=IN_CODE, calls=calls(55, done=True, members=everybody))
    found = judge(Evidence({status.rank: status for status in own}, 16))
    assert found is not None
    assert (found.kind, found.ranks) == (HangClass.NEVER_ENTERED, (3,))
    assert found.level is Level.ALARM
    assert "8" not in say_verdict(found)
    own[3] = rank(3, calls=calls(56, done=False, members=everybody))
    found = judge(Evidence({status.rank: status for status in own}, 16))
    assert found is not None
    assert (found.kind, found.ranks) == (HangClass.UNCLEAR, tuple(range(8, 16)))
    assert say_verdict(found) == (
        "ranks 0-7 wait in all_reduce #56; ranks 8-15 have left no status"
    )


def test_a_group_of_one_host_stands_still_without_the_ranks_of_others() -> None:
    pair = calls(56, done=False, members=(0, 1))
    found = judge(Evidence({number: rank(number, calls=pair) for number in (0, 1)}, 16))
    assert found is not None
    assert (found.kind, found.ranks) == (HangClass.NONE_LEFT, (0, 1))
    assert found.level is Level.NOTICE  # a device may wait for a rank of another host
    found = judge(Evidence({number: rank(number, calls=pair) for number in (0, 1)}, 2))
    assert found is not None
    assert found.level is Level.ALARM


def test_ranks_that_wait_for_each_other_in_two_groups() -> None:
    first = rank(0, calls=(Call("a", 1, "all_reduce", members=(0, 1)),))
    second = rank(1, calls=(Call("b", 1, "all_reduce", members=(0, 1)),))
    found = judge(Evidence({0: first, 1: second}, 2))
    assert found is not None
    assert (found.kind, found.ranks) == (HangClass.MISMATCH, (0, 1))
    assert "rank 0 is in all_reduce #1 of group a at train.py:40 main" in say_verdict(found)
    assert "rank 1 is in all_reduce #1 of group b at train.py:40 main" in say_verdict(found)


def test_a_silent_rank_is_not_called_dead() -> None:
    """Nobody has looked at its process, so only its silence is known."""
    alone = [rank(number, stack=(), calls=(), calls_from="") for number in range(4)]
    verdict = verdict_of(*alone, silent=frozenset({2}))
    assert verdict.kind is HangClass.UNCLEAR
    assert any(line.startswith("rank 2: nothing since") for line in verdict.missing)


def test_the_files_of_two_hosts_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for status in (*waiting(0, 1), rank(2, host="gpu02", pid=1000)):
        status.write(folder)
    rank(3, host="gpu02", stack=IN_CODE, calls=calls(55, done=True)).write(folder)
    evidence = read_evidence(tmp_path)
    assert evidence is not None
    found = judge(evidence)
    assert found is not None
    assert (found.kind, found.ranks) == (HangClass.NEVER_ENTERED, (3,))


@pytest.mark.parametrize(
    "text", ["", "[]", '{"rank": "x"}', '{"stack": 3}', '{"calls": [{"group": 1}]}', "{" * 2000]
)
def test_a_damaged_file_is_named_and_harms_nothing(tmp_path: Path, text: str) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "00000-host-1.rank.json").write_text(text)
    rank(1).write(folder)
    evidence = read_evidence(tmp_path)
    assert evidence is not None
    assert sorted(evidence.ranks) == [1]
    assert "00000-host-1.rank.json" in evidence.damaged[0]


def test_what_the_eye_sees_stands_in_for_a_rank_that_cannot_say_it(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    status = rank(0, stack=(), calls=())
    status = dataclasses.replace(status, written_ns=1)
    status.write(folder)
    seen = dataclasses.replace(status, written_ns=NOW, alive_ns=NOW - 3 * 10**9, stack=IN_CODE)
    seen.write(folder, STACK_SUFFIX)
    evidence = read_evidence(tmp_path, NOW)
    assert evidence is not None
    assert evidence.native == {0}
    assert evidence.ranks[0].stack == IN_CODE
    dataclasses.replace(seen, alive_ns=NOW).write(folder, STACK_SUFFIX)  # it ran meanwhile
    moving = read_evidence(tmp_path, NOW)
    assert moving is not None
    assert moving.native == frozenset()
    dataclasses.replace(seen, steps=seen.steps - 1).write(folder, STACK_SUFFIX)
    earlier = read_evidence(tmp_path, NOW)
    assert earlier is not None
    assert earlier.ranks[0].stack == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_a_number_that_no_status_has_is_damage(tmp_path: Path, value: float) -> None:
    (tmp_path / FOLDER).mkdir()
    status = rank(0)
    status.write(tmp_path / FOLDER)
    for name in ("limit_s", "written_ns", "usual_step_s"):
        content = json.dumps({**status.as_content(), name: value})
        (tmp_path / FOLDER / status.file_name).write_text(content)
        evidence = read_evidence(tmp_path)
        assert evidence is not None
        assert "the file is damaged" in evidence.damaged[0]


def test_a_host_is_not_taken_for_another_that_ends_like_it(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    pod = "resnet50-on-imagenet-with-large-batches-worker-{}".format
    hosts = ("a-1", "b-a-1", "a-1-b", pod(0), pod(1))
    for number, host in enumerate(hosts):
        rank(number, host=host).write(tmp_path / FOLDER)
    for number, host in enumerate(hosts):
        evidence = read_evidence(tmp_path, host=plain_host(host))
        assert evidence is not None
        assert list(evidence.ranks) == [number]


def test_the_clock_of_another_host_makes_no_standstill_longer() -> None:
    behind = [rank(number, host="b", pid=5) for number in (1, 2)]
    late_ns = NOW + 300 * SECOND  # the clock of `gpu01` is ahead by that
    here = rank(0, written_ns=late_ns, moved_ns=late_ns - 40 * SECOND)
    found = judge(Evidence({0: here, 1: behind[0], 2: behind[1]}, 3), late_ns, "gpu01")
    assert found is not None
    assert found.stood_s == 40.0


def test_a_hostile_name_steers_no_terminal() -> None:
    late = rank(3, stack=IN_CODE, calls=calls(55, done=True), thread_state="S")
    late = dataclasses.replace(late, system_call="\x1b[2J", reads="\x1b]0;x\x07")
    assert say_verdict(verdict_of(*waiting(0, 1, 2), late)).isprintable()


@pytest.mark.parametrize(
    ("function", "is_one"),
    [
        ("evaluate", True),
        ("Trainer.evaluate", True),
        ("Training._evaluate", True),
        ("run_eval", True),
        ("valid_one_epoch", True),
        ("Judge.validate", True),
        ("Evaluation.run", True),
        ("train_and_evaluate", False),
        ("train_and_evaluate.<locals>.step", False),
        ("fit_and_validate", False),
        ("is_valid", False),
        ("validate_sample", False),
        ("validate_labels", False),
        ("filter_valid_boxes", False),
        ("wait_for_valid_token", False),
        ("main", False),
        ("retrieval", False),
    ],
)
def test_the_name_of_a_function_that_evaluates(function: str, is_one: bool) -> None:
    """A rank that stands in a loop that also evaluates is no rank that evaluates."""
    frame = Frame("/home/me/train.py", function, 12, "job")
    late = rank(3, stack=(*IN_CODE, frame), calls=calls(55, done=True))
    expected = HangClass.EVALUATION if is_one else HangClass.NEVER_ENTERED
    assert verdict_of(*waiting(0, 1, 2), late).kind is expected


def test_ranks_that_are_not_described_are_not_said_to_do_the_same() -> None:
    everybody = tuple(range(7))
    done = calls(55, done=True, members=everybody)
    late = [rank(number, stack=IN_CODE, calls=done) for number in range(1, 7)]
    first = rank(0, calls=calls(56, done=False, members=everybody))
    words = say_verdict(verdict_of(first, *late))
    assert words.endswith("ranks 5-6 hold up the job, too")


def test_ranks_that_wait_in_no_known_collective_say_nothing_of_it() -> None:
    backward = (
        Frame(f"{TORCH}autograd/graph.py", "_engine_run_backward", 800, "package"),
        *IN_CODE,
    )
    first = rank(0, stack=backward, calls=(), calls_from="")
    late = rank(1, stack=IN_CODE, calls=(), calls_from="")
    words = say_verdict(verdict_of(first, late))
    assert words.startswith("rank 0 waits for other ranks; rank 1 stands: train.py:12 resize")


def test_a_call_that_only_the_stack_shows_follows_the_latest_one() -> None:
    """profkit's own record lists the calls group by group."""
    first = calls(55, done=True, group="0", since_ns=NOW)
    second = calls(7, done=True, group="1", since_ns=NOW - SECOND)
    everybody = [rank(number, calls=(*first, *second)) for number in range(4)]
    found = verdict_of(*everybody)
    assert found.kind is HangClass.NONE_LEFT
    assert say_verdict(found) == ("ranks 0-3 have all entered all_reduce #56, and none has left it")


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        ((Frame("/home/me/train.py", "evaluate", 12, "job"),), HangClass.ALL_EVALUATE),
        (
            (Frame(f"{TORCH}_inductor/compile_fx.py", "compile_fx", 1, "package"), *IN_CODE),
            HangClass.ALL_COMPILE,
        ),
    ],
)
def test_a_part_of_all_ranks_is_not_said_to_be_that_of_some(
    stack: tuple[Frame, ...], kind: HangClass
) -> None:
    done = calls(55, done=True)
    everybody = [rank(number, stack=stack, calls=done, idle_s=0.0) for number in range(4)]
    verdict = verdict_of(*everybody)
    assert (verdict.kind, verdict.level) == (kind, Level.NOTICE)
    assert verdict_of(*waiting(0, 1), *everybody[2:]).kind is not kind


KERNEL = (
    Frame("/opt/lib/python3.11/selectors.py", "EpollSelector.select", 468, "python"),
    Frame("/opt/lib/python3.11/site-packages/ipykernel/kernelapp.py", "start", 739, "package"),
)


@pytest.mark.parametrize("stack", [KERNEL, (), (IN_CODE[0], *KERNEL)])
def test_a_notebook_that_has_nothing_to_do_does_not_hang(
    tmp_path: Path, stack: tuple[Frame, ...]
) -> None:
    """A kernel waits for the next cell in a package's code; a prompt shows no frame at all."""
    done = calls(55, done=True)
    own = rank(0, stack=stack, calls=done, idle_s=900.0, stood_s=900.0, is_interactive=True)
    own = dataclasses.replace(own, world_size=1)
    verdict = judge(Evidence({0: own}, 1))
    assert verdict is not None
    is_idle = IN_CODE[0] not in stack
    assert verdict.kind is HangClass.OWN_CODE
    assert verdict.level is (Level.NOTICE if is_idle else Level.ALARM)
    RunManifest("job", state=RunState.ABORTED).write(tmp_path)
    (tmp_path / FOLDER).mkdir()
    own.write(tmp_path / FOLDER)
    account = read_account(tmp_path)
    assert account.state == (FINE if is_idle else HUNG)
    if is_idle:
        assert account.headline == "the job did not hang: it is idle at a prompt"
    script = dataclasses.replace(own, is_interactive=False)
    assert judge(Evidence({0: script}, 1)) == dataclasses.replace(
        verdict, level=Level.ALARM, evidence=Evidence({0: script}, 1)
    )


def test_a_prompt_for_which_other_ranks_wait_holds_up_the_job() -> None:
    idle = rank(0, stack=KERNEL, calls=calls(55, done=True), is_interactive=True)
    verdict = verdict_of(idle, *waiting(1, 2, 3))
    assert (verdict.kind, verdict.level) == (HangClass.NEVER_ENTERED, Level.ALARM)
