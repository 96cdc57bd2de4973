"""The purpose of each block: from its stack, from when it was freed, or from its size.

What none of them decides stays in a row of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum

from profkit.analysis.memory.replay import BEFORE, Life
from profkit.analysis.memory.snapshot import Event
from profkit.analysis.memory.stacks import Caller


class Row(str, Enum):
    """A row of the ledger, with its title. The last three are not allocated."""

    PARAMETERS = "parameters and buffers"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer's state"
    ACTIVATIONS = "activations"
    FORWARD = "temporary in forward"
    BACKWARD = "temporary in backward"
    STEP = "temporary in the optimizer"
    UNFINISHED = "of a call that had not ended"
    COMMUNICATION = "communication buffers"
    WORKSPACE = "libraries' workspaces"
    OLDER = "older than the recording"
    OTHER = "other"
    PENDING = "freed, waiting for another stream"
    HOLES = "holes in segments in use"
    FREE = "free segments"


NOT_ALLOCATED = (Row.PENDING, Row.HOLES, Row.FREE)


class How(str, Enum):
    """The evidence for a row."""

    STACK = "stacks"
    LIFETIME = "stacks and lifetimes"
    SIZES = "sizes"
    NONE = ""


Purpose = tuple[Row, How]
MOST_STATES = 2
"""Tensors of state per parameter that Adam has; few optimizers have more."""
CUBLAS_WORKSPACE = 2 * 4_096 * 1_024 + 8 * 16 * 1_024
"""What torch gives cuBLAS by default before Hopper (`CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8`)."""
_UNDECIDED = (Row.OTHER, How.NONE)
_OLDER = (Row.OLDER, How.NONE)
_BY_STACK = {
    Caller.LIBRARY: Row.WORKSPACE,
    Caller.BUCKETS: Row.COMMUNICATION,
    Caller.FIRST_STEP: Row.OPTIMIZER,
}
STEPPING = (Caller.OPTIMIZER, Caller.FIRST_STEP)
_WORK = (Caller.MODULES, Caller.BACKWARD, Caller.REPEAT)
ENGINE = (Caller.BACKWARD, Caller.REPEAT, Caller.EXCHANGE, Caller.BUCKETS)


class Classifier:
    """Finds the purposes of a replay's blocks."""

    def __init__(self, events: list[Event], lives: list[Life]) -> None:
        self._lives = lives
        self._end = len(events)
        self._callers = [Caller.UNKNOWN]
        """Who had allocated last: before the first event, and behind each."""
        self._times: dict[Caller, list[int]] = {caller: [] for caller in Caller}
        self.cut = Caller.UNKNOWN
        """Whose allocation failed at the end, so that its call never ended."""
        calls_backward = has_cpp = False
        for event in events:
            calls_backward = calls_backward or event.stack.calls_backward
            has_cpp = has_cpp or event.stack.has_cpp
        is_inferred = calls_backward and not has_cpp
        last = Caller.UNKNOWN
        for number, event in enumerate(events):
            caller = event.stack.caller
            if caller is Caller.UNKNOWN and is_inferred:
                caller = Caller.BACKWARD  # the engine's thread has no frames of Python
            if event.action == "alloc":
                last = caller
                self._times[last].append(number)
                self.cut = Caller.UNKNOWN
            elif event.action == "oom":
                self.cut = caller
            self._callers.append(last)

    def caller_at(self, time: int) -> Caller:
        """Return who had allocated last at a moment."""
        return self._callers[time + 1]

    def purposes(self) -> list[Purpose]:
        """Return the purpose of each block, in the order of the replay's."""
        found = [self._purpose(life) for life in self._lives]
        self._match_replaced(found)
        self._match_sizes(found)
        return found

    def _purpose(self, life: Life) -> Purpose:
        caller = life.stack.caller
        if life.born != BEFORE:
            caller = self.caller_at(life.born)
        end = self._end_of(life)
        if caller is Caller.BACKWARD:
            return self._of_backward(life, end)
        if caller is Caller.OPTIMIZER:
            return self._of_step(life, end)
        if caller in (Caller.MODULES, Caller.REPEAT):
            if end is None or end in ENGINE or self._crosses(life, ENGINE):
                return Row.ACTIVATIONS, How.LIFETIME
            return Row.FORWARD, How.LIFETIME
        if caller in _BY_STACK:
            return _BY_STACK[caller], How.STACK
        return self._of_end(life, caller, end)

    def _of_end(self, life: Life, caller: Caller, end: Caller | None) -> Purpose:
        """Return the purpose of a block whose end decides it, if anything does."""
        found = _UNDECIDED
        if caller is Caller.EXCHANGE and end is not None:
            found = (Row.COMMUNICATION, How.LIFETIME)
        elif caller is Caller.MODEL and end is not Caller.MODEL:
            found = (Row.PARAMETERS, How.STACK)
        elif end is Caller.BACKWARD and caller in (Caller.USER, Caller.UNKNOWN):
            found = (Row.ACTIVATIONS, How.LIFETIME)
        elif life.born == BEFORE and end is Caller.ZERO_GRAD:
            found = (Row.GRADIENTS, How.LIFETIME)
        elif life.born == BEFORE and caller is Caller.UNKNOWN:
            found = _OLDER
            if life.requested == CUBLAS_WORKSPACE:
                found = (Row.WORKSPACE, How.SIZES)
        return found

    def _of_backward(self, life: Life, end: Caller | None) -> Purpose:
        """Tell gradients, which outlive the backward pass, from what it needs meanwhile."""
        if not self._crosses(life, (Caller.MODULES, *STEPPING)):
            if end is None and self.cut in ENGINE:
                return Row.UNFINISHED, How.STACK
            if end in ENGINE:
                return Row.BACKWARD, How.LIFETIME
        return Row.GRADIENTS, How.LIFETIME

    def _of_step(self, life: Life, end: Caller | None) -> Purpose:
        """Tell the optimizer's state, which outlives the step, from what it needs meanwhile."""
        if not self._crosses(life, _WORK):
            if end is not None:
                return Row.STEP, How.LIFETIME
            if self.cut in STEPPING:
                return Row.UNFINISHED, How.STACK
        return Row.OPTIMIZER, How.LIFETIME

    def _end_of(self, life: Life) -> Caller | None:
        """Return who gave the block up; `None` if nobody did."""
        if life.asked is None or life.asked >= self._end:
            return None
        if life.end_stack.caller is Caller.UNKNOWN:  # stacks of allocations alone, or no Python
            return self.caller_at(life.asked)
        return life.end_stack.caller

    def _crosses(self, life: Life, callers: Iterable[Caller]) -> bool:
        """Return true if one of the callers allocated while the block was held."""
        end = self._end
        if life.asked is not None:
            end = life.asked
        for caller in callers:
            times = self._times[caller]
            place = bisect_right(times, life.born)
            if place < len(times) and times[place] < end:
                return True
        return False

    def _match_replaced(self, found: list[Purpose]) -> None:
        """Take blocks for the optimizer's state that a step replaced by as many of their size."""
        made: Counter[int] = Counter()
        for life, (row, _) in zip(self._lives, found, strict=True):
            if row is Row.OPTIMIZER and life.born != BEFORE:
                made[life.requested] += 1
        for number, life in enumerate(self._lives):
            is_replaced = self._end_of(life) in STEPPING and made[life.requested] > 0
            if found[number] == _OLDER and is_replaced:
                made[life.requested] -= 1
                found[number] = (Row.OPTIMIZER, How.LIFETIME)

    def _match_sizes(self, found: list[Purpose]) -> None:
        """Divide old blocks by the sizes of the gradients, if there is a whole set for each.

        One set is the parameters. If an optimizer steps whose state is not known otherwise, the
        next are its state, as for Adam. Further ones may be anything, such as averaged weights.
        """
        times = self._times[Caller.BACKWARD]
        gradients: Counter[int] = Counter()
        known: Counter[Row | tuple[Row, int]] = Counter()
        for life, (row, _) in zip(self._lives, found, strict=True):
            if row is Row.GRADIENTS and life.born != BEFORE and life.is_held(times[-1]):
                gradients[life.requested] += 1
            elif row is not Row.GRADIENTS:
                known[row] += 1
                known[row, life.requested] += 1
        steps = any(self._times[caller] for caller in STEPPING)
        if any(known[Row.PARAMETERS, size] < count for size, count in gradients.items()):
            self._give_set(found, gradients, Row.PARAMETERS, (Row.OLDER, Row.OTHER))
        for _ in range(MOST_STATES if steps and not known[Row.OPTIMIZER] else 0):
            self._give_set(found, gradients, Row.OPTIMIZER, (Row.OLDER,))

    def _give_set(
        self, found: list[Purpose], sizes: Counter[int], row: Row, rows: Sequence[Row]
    ) -> None:
        """Move blocks of these sizes, held all the time, from some rows to one, if all exist."""
        first = min(self._times[Caller.BACKWARD], default=BEFORE)
        old: dict[int, list[int]] = {size: [] for size in sizes}
        for number, life in enumerate(self._lives):
            is_lasting = life.asked is None and life.born < first
            if is_lasting and found[number][0] in rows and life.requested in old:
                old[life.requested].append(number)
        if all(len(old[size]) >= count for size, count in sizes.items()):
            for size, count in sizes.items():
                for number in old[size][:count]:
                    found[number] = (row, How.SIZES)
