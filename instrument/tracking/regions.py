"""The open regions of the followed thread, as hooks report them."""

# ruff: noqa: SLF001  # a region reads its recorder directly, for speed

from __future__ import annotations

from profkit.instrument.guard import report_failure
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Followed, Keep, SpanRow
from profkit.instrument.tracking.notes import Note
from profkit.instrument.tracking.states import LoopState, Progress

_IDLE = Progress.IDLE


class Regions:
    """Opens and closes regions, and makes a row of each while spans are recorded."""

    __slots__ = ("_recorder", "_state", "_take", "nest", "note", "opened")

    def __init__(self, recorder: Recorder, state: LoopState, take: Keep) -> None:
        self._recorder = recorder
        self._state = state
        self._take = take
        self.nest = recorder.nests.own
        self.opened: list[Followed] = []
        """The open regions, in the order in which they were opened."""
        self.note: Note | None = None
        """The note that is replayed, whose time and device event are those of the region."""

    def open(self, phase: str, name: str) -> Followed:
        """Open a region, now or at the time of the note that is replayed."""
        recorder, state, note = self._recorder, self._state, self.note
        span = Followed()
        span.phase = phase
        span.outer = state.inside
        state.inside = phase
        self.opened.append(span)
        span.muted = not recorder.recording or state.progress is _IDLE
        if span.muted:
            return span
        span.name = name
        span.bytes = None
        nest = self.nest
        span.depth = nest.depth
        nest.depth += 1
        if note is not None:
            span.start, span.mark = note[1], note[2]
            return span
        if recorder._ranges is not None:
            recorder._push(name)
        span.mark = recorder._mark() if recorder.device is not None else None
        span.start = recorder.clock()
        return span

    def close(self, span: Followed, error: str | None) -> int:
        """Close an open region and return its end."""
        recorder, note = self._recorder, self.note
        self.opened.remove(span)
        self._state.inside = span.outer
        end = recorder.clock() if note is None else note[1]
        if span.muted:
            return end
        if note is not None:
            mark = note[2]
        else:
            mark = recorder._mark() if recorder.device is not None else None
            if recorder._ranges is not None:
                recorder._pop()
        nest = self.nest
        nest.depth = span.depth
        if not recorder.recording:
            recorder.drop_marks(span.mark, mark)
            return end
        # A `SpanRow` as a plain tuple, as in `Span.close`.
        row = (
            recorder.step_index, span.phase, span.name, span.depth, nest.thread,
            span.start, end, None, None, span.bytes, error,
        )  # fmt: skip
        try:
            self._take(row, span.mark, mark)
        except Exception as failure:  # noqa: BLE001  # a lost row must not stop the job
            report_failure("spans", failure)
        return end

    def pause(self, span: Followed) -> None:
        """Make a row of an open region until now; what follows is outside of it."""
        if span.muted:
            return
        recorder, nest = self._recorder, self.nest
        end = recorder.clock()
        mark = recorder._mark() if recorder.device is not None else None
        if recorder._ranges is not None:
            recorder._pop()
        nest.depth = span.depth
        if not recorder.recording:
            recorder.drop_marks(span.mark, mark)
            return
        row = SpanRow(
            recorder.step_index, span.phase, span.name, span.depth, nest.thread, span.start, end,
            bytes=span.bytes,
        )  # fmt: skip
        self._take(row, span.mark, mark)

    def resume(self, span: Followed) -> None:
        """Begin the next row of a region that was paused."""
        if span.muted:
            return
        recorder, nest = self._recorder, self.nest
        nest.depth = span.depth + 1
        if recorder._ranges is not None:
            recorder._push(span.name)
        span.mark = recorder._mark() if recorder.device is not None else None
        span.start = recorder.clock()

    def forget(self) -> None:
        """Drop the open regions and follow the calling thread's nesting."""
        self.nest = self._recorder.nests.own
        self._state.inside = ""
        self.opened.clear()
