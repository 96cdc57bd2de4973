"""Makes phases and steps of what a framework's seams report, in any loop that trains.

The seams tell that a batch is waited for, that a model is called, that gradients are computed,
that an optimizer steps. From that alone follow

- **steps**: one ends where the next batch is waited for after an optimizer has stepped, so that
  gradient accumulation, several forwards and several optimizers belong to one step; without a
  loader, where a model is called after every known optimizer has stepped;
- **evaluation**: batches and forwards without gradients, with nothing of training before the next
  batch, are `other`. Batches that are waited for in a row, with no forward in between, share one fate:
  loops fetch ahead, and take from several loaders.

A loop, or a callback of its trainer, may also tell of its steps and of what is no training itself.

Only the thread that trains is followed: the first that computes gradients, and until then the main
thread, or the first that reports anything.
"""

# ruff: noqa: SLF001  # the tracker, its recorder and its regions are one thing, for speed

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from profkit.clock import Clock, now_ns
from profkit.instrument.batches import count_batch
from profkit.instrument.guard import report_failure
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Event, Followed, Row
from profkit.instrument.tracking.boundaries import Borders
from profkit.instrument.tracking.notes import Note, Plain
from profkit.instrument.tracking.pending import DEPTH, MOST_IN_A_ROW, PHASE, Pending, as_other
from profkit.vocab import Phase

CHECKPOINT = "checkpoint"
SKIPPED = "skipped step"
UNKNOWN = "unknown"
"""The error of a region whose end nobody told: an exception has left it."""

MOST_ROUNDS = 16
"""How often an optimizer steps while another, that has stepped before, does not, until that one is taken to be gone."""

_DATA, _H2D, _FORWARD = Phase.DATA.value, Phase.H2D.value, Phase.FORWARD.value
_BACKWARD, _OPTIMIZER, _OTHER = Phase.BACKWARD.value, Phase.OPTIMIZER.value, Phase.OTHER.value
_NO_FORWARD, _NO_OPTIMIZER = (_BACKWARD, _OTHER), (_OPTIMIZER, _OTHER)
"""Inside of which phases a forward or a backward, and an optimizer's step, is none of the loop's."""

_this_thread = threading.get_ident


class Tracker:
    """Follows one training loop. The frameworks call it; it never raises and never waits."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        on_training: Callable[[], None] = lambda: None,
        clock: Clock = now_ns,
    ) -> None:
        self.recorder = recorder
        self._on_training = on_training
        self._trains = False
        self._clock = clock
        self._thread: int | None = None
        self._nest = recorder.nest()
        self._begun = False
        self._explicit = False
        self._in_step = False
        self._told = False
        self._used = True
        self._inside = ""
        self._opened: list[Followed] = []
        self.borders = Borders(self)
        self.notes = self.borders.notes
        """What hooks tell of borders that may be noted."""
        self._keep = recorder.redirect(self._take, self.notes, self.catch_up)
        self._append = recorder.append_span
        self._pending = Pending(recorder, self._keep)
        self._training = False
        self._loaded = False
        self._stepped: set[int] = set()
        self._known: set[int] = set()
        self._rounds = 0
        self._last_end_ns = 0
        self._starts_epoch = False
        self.framework = ""
        """The framework whose gradients were computed last."""
        self.epoch: int | None = None
        self._loss: float | None = None
        self.loss_scale = 1.0
        self.grad_scale: float | None = None

    # -- what the seams report -------------------------------------------------------------------

    def begin_data(self, *, starts_epoch: bool = False) -> Followed | int | None:
        """The loop waits for a batch, or for a loader that starts anew."""
        if _this_thread() != self._thread and not self._is_ours():
            return None
        self.catch_up()
        if self._inside == _OTHER:
            return None
        if self._inside == _OPTIMIZER:
            self._abandon()
        if not self._begun:
            self._begin_loop()
        self.pass_border(starts_epoch=starts_epoch)
        if self._trains and self.borders.may_open():
            self.borders.open(_this_thread())
            return self.notes.begin_wait()
        return self._open(_DATA, _DATA)

    def pass_border(self, end: int | None = None, *, starts_epoch: bool = False) -> None:
        """A batch is waited for, now or at the time `end`: what was done since the last one was a step, or is part of one."""
        self._inside = ""
        if self._stepped if not self._explicit else self._told and self._training:
            self._end_step(end)
        fetched = self._pending.batches
        if fetched and (
            self._used or self._training or starts_epoch or len(fetched) >= MOST_IN_A_ROW
        ):
            self._settle(evaluation=not self._training)
        self._training = self._in_step and not starts_epoch
        self._loaded = True
        self._used = False
        self._starts_epoch |= starts_epoch

    def open_data(self, at: Note) -> Followed:
        """The wait for a batch, that has begun, turns out to hold more than reading."""
        return self._open(_DATA, _DATA, at)

    def end_data(
        self,
        span: Followed | int | None,
        samples: int,
        error: str | None = None,
        at: Note | None = None,
    ) -> None:
        """The batch is there, with so many samples; 0 where the loader has ended."""
        self.catch_up()
        if (
            samples
            and (_this_thread() == self._thread or self._is_ours())
            and self._inside != _OTHER
        ):
            self._pending.batches.append(samples)
        self.end(span, error, at)
        if at is None:
            self.notes.allow_copies()

    def end_batch(self, span: Followed | int | None, batch: Any) -> None:
        """The batch is there; tensors side by side, the common case, are not looked at one by one."""
        self.end_data(span, count_batch(batch))

    def keep_rows(self, rows: list[Row]) -> None:
        """Rows from the inside of loaders, which have no events."""
        if self._training or self._inside == _OTHER or _this_thread() != self._thread:
            for row in rows:
                self._take(row, None, None)
        else:
            self._pending.rows += [(row, None, None) for row in rows]

    def begin_copy(self, at: Note | None = None) -> Followed | None:
        """A batch is copied to the device."""
        self.catch_up()
        if self._used or self._inside or (_this_thread() != self._thread and not self._is_ours()):
            return None
        return self._open(_H2D, _H2D, at)

    def begin_forward(self, *, with_gradients: bool, at: Note | None = None) -> Followed | None:
        """A model is called, by nothing but the loop."""
        self.catch_up()
        if (_this_thread() != self._thread and not self._is_ours()) or self._inside in _NO_FORWARD:
            return None
        if not self._begun:
            self._begin_loop()
        self._used = True
        if with_gradients:
            if not self._loaded and not self._inside and self._ends_without_loader():
                self._end_step()
            if not self._training:
                self._training = True
                self._settle(evaluation=False)
        return self._open(_FORWARD, _FORWARD, at)

    def begin_backward(
        self, framework: str = "", loss: float | None = None, at: Note | None = None
    ) -> Followed | None:
        """Gradients are computed, of a loss with this value where the host has it."""
        self.catch_up()
        if not self._pending.decided:
            self._decide()
        if _this_thread() != self._thread or self._inside in _NO_FORWARD:
            return None
        self.framework = framework
        if not self._begun:
            self._begin_loop()
        if not self._training:
            self._train()
        if not self._trains:
            self._note_training()
        if loss is not None:
            self._loss = loss / self.loss_scale
        return self._open(_BACKWARD, _BACKWARD, at)

    def begin_program(self, framework: str) -> bool:
        """A whole step runs as one program, in which nothing tells phases apart; whether that is a step of its own, and no part of one that is open."""
        self.catch_up()
        if not self._pending.decided:
            self._decide()
        if not self._follows():
            return False
        self.framework = framework
        self._note_training()
        if self._in_step:
            return False
        self.begin_explicit_step()
        return True

    def end_program(self, samples: int, *, failed: bool = False) -> None:
        """The program has trained on so many samples, 0 where nobody knows; one that failed is no step."""
        self.catch_up()
        if failed:
            self._in_step = False
        else:
            self.end_explicit_step(samples or None)

    def begin_optimizer(self, optimizer: int, at: Note | None = None) -> Followed | None:
        """An optimizer steps, or a gradient scaler decides whether it does."""
        self.catch_up()
        if (
            _this_thread() != self._thread and not self._is_ours()
        ) or self._inside in _NO_OPTIMIZER:
            return None
        if not self._begun:
            self._begin_loop()
        if optimizer in self._stepped and not self._loaded:
            self._come_round()
        if not self._training:
            self._train()
        self._stepped.add(optimizer)
        self._known.add(optimizer)
        return self._open(_OPTIMIZER, _OPTIMIZER, at)

    def begin_checkpoint(self) -> Followed | None:
        """The job writes its state to a file. The batch that it may hold already is trained on afterwards."""
        self.catch_up()
        return (
            self._open(_OTHER, CHECKPOINT)
            if self._begun and not self._inside and self._follows()
            else None
        )

    def end(
        self, span: Followed | int | None, error: str | None = None, at: Note | None = None
    ) -> None:
        """What a `begin_...` opened is over. Nothing happens where it is closed already, and where its thread turned out to be none of ours."""
        self.catch_up()
        if isinstance(span, int):
            span = self.borders.find(span)
        opened = self._opened
        if span is None or span not in opened:
            return
        opened.remove(span)
        self._inside = span.outer
        recorder = self.recorder
        self._last_end_ns = end = recorder._clock() if at is None else at[1]
        if not span.muted:
            mark = (
                at[2]
                if at is not None
                else recorder._mark()
                if recorder.device is not None
                else None
            )
            if at is None and recorder._ranges is not None:
                recorder._pop()
            self._close(span, end, mark, error)

    def _close(self, span: Followed, end: int, mark: Event | None, error: str | None) -> None:
        recorder, nest = self.recorder, self._nest
        nest.depth = span.depth
        if not recorder.recording:
            recorder.drop_marks(span.mark, mark)
            return
        step, phase, name, depth = recorder.step_index, span.phase, span.name, span.depth
        # A `SpanRow` as a plain tuple, as in `Span.close`.
        row = (
            step,
            phase,
            name,
            depth,
            nest.thread,
            span.start,
            end,
            None,
            None,
            span.bytes,
            error,
        )
        try:
            self._take(row, span.mark, mark)
        except Exception as failure:  # noqa: BLE001  # the border to the job: a row is lost, the job goes on
            report_failure("spans", failure)

    def name_skipped(self, span: Followed | int | None) -> None:
        """The scaler found infinities, and the optimizer did not step."""
        self.catch_up()
        if isinstance(span, int):
            span = self.borders.look_up(span)
        if span is not None:
            span.name = SKIPPED

    def note_scale(self, scale: float | None) -> None:
        """The gradient scaler's scale after its update; `None` where only the device knows."""
        self.catch_up()
        self.grad_scale = scale
        self.loss_scale = scale or 1.0

    def catch_up(self) -> None:
        """Go through the borders that are only noted yet; not those of another thread, whose loop goes on."""
        if self.notes and _this_thread() == self._thread:
            self.borders.tell()

    # -- what the loop says of itself ------------------------------------------------------------

    @property
    def loss(self) -> float | None:
        """The loss of the step that is open."""
        self.catch_up()
        return self._loss

    @loss.setter
    def loss(self, loss: float | None) -> None:
        self.catch_up()
        self._loss = loss

    @property
    def inside(self) -> str:
        """The phase that is open now, or nothing."""
        self.catch_up()
        return self._inside

    @property
    def waiting_samples(self) -> int:
        """Samples of batches of which it is not known yet whether the loop trains on them."""
        self.catch_up()
        return sum(self._pending.batches)

    @property
    def stepped(self) -> bool:
        """Whether an optimizer has stepped since the last step ended."""
        self.catch_up()
        return bool(self._stepped)

    def begin_explicit_step(self) -> None:
        """The loop delimits its steps itself from here on."""
        self.catch_up()
        self._explicit = True
        self._decide()
        if not self._begun:
            self._begin_loop()
        self._in_step = True
        if not self._training:
            self._train()

    def end_explicit_step(
        self, sample_count: int | None = None, *, batches: int | None = None
    ) -> None:
        """It has trained on so many samples, or on so many of the batches that have come; on all of these where it tells neither."""
        self.catch_up()
        if not self._in_step:
            return
        self._in_step = False
        self._last_end_ns = self._clock()
        self._end_step(self._last_end_ns, sample_count, batches)

    def mark_step(self) -> None:
        """The loop tells of each step once, before or after it trains; the step ends where the next batch is waited for, else here."""
        self.catch_up()
        if self._in_step or not self._is_ours():
            return
        if not self._begun:
            self._begin_loop()
        if self._training and (self._told or not self._loaded):
            self._end_step()
        self._explicit = self._told = True

    def begin_aside(self, name: str) -> Followed | None:
        """No training until its end, but evaluation, a checkpoint or logging: seams inside of it are part of it. No row before a loop has begun."""
        self.catch_up()
        if not self._follows():
            return None
        if not self._training:
            self._settle(evaluation=True)
        self._used = True
        return self._open(_OTHER, name)

    def note_epoch(self, epoch: int) -> None:
        """The epoch of the step that is open, where the loop knows better than its loaders tell."""
        self.catch_up()
        self._starts_epoch = False
        self.epoch = epoch

    def start_over(self) -> None:
        """A trainer begins or ends: what lies between two of them belongs to no step."""
        self.catch_up()
        self._settle(evaluation=not self._training)
        if self._ends_at_batch():
            self._end_step(self._last_end_ns)
        self.notes.close()
        self.recorder.step_index += self._begun  # what has been recorded since the last step
        self._explicit = self._in_step = self._told = self._begun = self._training = (
            self._loaded
        ) = False
        self._rounds = 0
        self.epoch = self._loss = None
        self._pending.trained.clear()
        for optimizers in (self._stepped, self._known):
            optimizers.clear()

    def finish(self) -> None:
        """The job ends: what was trained since the last border is the last step."""
        self.notes.close()
        self.borders.tell()
        self._settle(evaluation=not self._training)
        self._pending.release()
        if self._ends_at_batch():
            self._end_step(self._last_end_ns)

    def _open(self, phase: str, name: str, at: Note | None = None) -> Followed:
        """Open a region of the loop, now or when it was noted."""
        recorder = self.recorder
        span = Followed()
        span.phase = phase
        span.outer = self._inside
        self._inside = phase
        self._opened.append(span)
        span.muted = not (recorder.recording and self._begun)
        if span.muted:
            return span
        span.name = name
        span.bytes = None
        nest = self._nest
        span.depth = nest.depth
        nest.depth += 1
        if at is not None:
            _, span.start, span.mark, _, _ = at
            return span
        if recorder._ranges is not None:
            recorder._push(name)
        span.mark = recorder._mark() if recorder.device is not None else None
        span.start = recorder._clock()
        return span

    # -- inside ----------------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        """Whether the thread that calls is the one that is followed."""
        thread = threading.get_ident()
        if thread == self._thread:
            return True
        if self._pending.decided or (
            self._thread is not None and thread != threading.main_thread().ident
        ):
            return False
        self._follow(thread)
        return True

    def _follows(self) -> bool:
        """Whether what a seam reports now is looked at: nothing is that lies inside a part that is told to be no training."""
        return (threading.get_ident() == self._thread or self._is_ours()) and self._inside != _OTHER

    def _decide(self) -> None:
        """The thread that calls trains, unless another one does already: from here on only that one is followed."""
        if self._pending.decided:
            return
        thread = threading.get_ident()
        if thread != self._thread:
            self._follow(thread)
        self._pending.decided = True
        self._pending.release()

    def _follow(self, thread: int) -> None:
        """What other threads have reported is none of the loop's."""
        self._thread = thread
        self.borders.forget()
        self._nest = self.recorder.nest()
        self._inside = ""
        self._begun = self._training = self._loaded = self._starts_epoch = False
        self._used = True
        self.epoch = None
        self._pending.forget()
        for reported in (self._opened, self._stepped, self._known):
            reported.clear()

    def _ends_at_batch(self) -> bool:
        """Whether a step ends where a batch is waited for, and where the job ends."""
        return self._told and self._training if self._explicit else bool(self._stepped)

    def _ends_without_loader(self) -> bool:
        """Whether a forward begins a step: no loader tells, and every optimizer has stepped."""
        return (
            bool(self._stepped)
            and not self._explicit
            and not self._loaded
            and self._stepped >= self._known
        )

    def _come_round(self) -> None:
        """An optimizer steps again in a loop without a loader: a closure's forward, inside it, has begun no step."""
        self._rounds += 1
        if self._rounds > MOST_ROUNDS:
            self._known &= self._stepped
        if self._ends_without_loader():
            self._end_step()

    def _note_training(self) -> None:
        if not self._trains:
            self._trains = True
            self._on_training()

    def _begin_loop(self) -> None:
        self._begun = True
        self.recorder.begin()

    def _abandon(self) -> None:
        """An optimizer that raised has told no end: it is taken to have lasted until now."""
        for span in reversed(self._opened.copy()):
            self.end(span, UNKNOWN)

    def _train(self) -> None:
        """Something of training happens: what was undecided since the last batch belongs to it."""
        self._training = True
        self._settle(evaluation=False)

    def _take(self, row: Row, start: Event | None, end: Event | None) -> None:
        """Rows of data, copies and forwards wait until it is known whether the loop trains on them, and so does what is inside of them."""
        if self._training and self._pending.decided and self._inside != _OTHER:
            recorder = self.recorder
            if recorder.device is None and recorder.span_copies is None:
                self._append(row)
            else:
                self._keep(row, start, end)
            return
        is_own = not row[DEPTH] or threading.get_ident() == self._thread
        if is_own and self._inside == _OTHER:
            if self._begun:
                self._pending.pass_on(as_other(row), start, end)
        elif is_own and not self._training and row[PHASE] != _OTHER:
            self._pending.rows.append((row, start, end))
        else:
            self._pending.pass_on(row, start, end)

    def take_plain(self, plain: Plain) -> None:
        """Phases that lay side by side, and what is known of them."""
        rows, batches, optimizers, gradients, trains, self._used, ended, border = plain
        self._last_end_ns = ended or self._last_end_ns
        if gradients is not None:
            self.framework, loss = gradients
            if loss is not None:
                self._loss = loss / self.loss_scale
        self._stepped.update(optimizers)
        self._known.update(optimizers)
        self._pending.batches += batches
        if self._training:
            for row, start, end in rows:
                self._take(row, start, end)
        else:
            self._pending.rows += rows
            if trains:
                self._train()
        if border:
            self.pass_border(border)

    def _settle(self, *, evaluation: bool) -> None:
        if self._starts_epoch and not evaluation:
            self.epoch = 0 if self.epoch is None else self.epoch + 1
        self._starts_epoch = False
        self._pending.settle(evaluation=evaluation)

    def _end_step(
        self, end: int | None = None, samples: int | None = None, batches: int | None = None
    ) -> None:
        self.notes.close()
        self._settle(evaluation=False)
        counted = self._pending.take_samples(batches)
        self.recorder.end_step(
            self._clock() if end is None else end,
            counted if samples is None else samples,
            self._loss,
            self.grad_scale,
            self.epoch,
        )
        self._stepped.clear()
        self._rounds = 0
        self._loss = None
        self._told = self._loaded = self._training = False
