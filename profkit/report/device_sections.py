"""The first sections of a run with device work: what its devices did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from profkit.analysis.config_join import COMPUTE
from profkit.analysis.device_times import PhaseClock
from profkit.analysis.kernels.device_time import DeviceTime
from profkit.analysis.kernels.device_view import DeviceView
from profkit.analysis.overview import Overview
from profkit.report.document import Grid, Section, Shares
from profkit.report.words import known
from profkit.text import duration, percent, plural

MOST_DEVICES = 8
AS_LONG = 0.95
"""The host takes as long as the device if it takes at least this share of the device's time."""
_INSIDE = "› "


class _Part(NamedTuple):
    """A part of a device's time: name, field, column title, and what happens in it."""

    name: str
    field: str
    column: str
    meaning: str


_COMPUTE = _Part("compute", "compute_ns", "compute", "kernels that compute")
_EXPOSED = _Part(
    "exposed communication",
    "exposed_ns",
    "exposed",
    "communication while nothing computes",
)
_WAITING = _Part(
    f"{_INSIDE}waiting for another rank",
    "waiting_ns",
    "waiting",
    "in a collective that another rank has not reached",
)
_MOVES = _Part("copies alone", "moves_alone_ns", "copies", "copies and fills, and nothing else")
_IDLE = _Part("idle", "idle_ns", "idle", "nothing runs on the device")
_LATE = _Part(
    f"{_INSIDE}launched late",
    "late_ns",
    "late",
    "the next work began as soon as the host had launched it",
)
_SYNCHRONISED = _Part(
    f"{_INSIDE}after a synchronisation",
    "synchronised_ns",
    "sync",
    "the same, after the host had waited for the device",
)
_FOR_RANK = _Part(
    f"{_INSIDE}waiting for another rank",
    "idle_waiting_ns",
    "rank",
    "the host is in a collective that another rank has not reached",
)
_QUEUED = _Part(
    f"{_INSIDE}for other reasons",
    "queued_ns",
    "other",
    "the next work was launched in time, or its launch is not known",
)
_HIDDEN = _Part(
    "hidden communication", "overlap_ns", "hidden", "communication while something computes"
)
_PARTS = (_COMPUTE, _EXPOSED, _WAITING, _MOVES, _IDLE, _LATE, _SYNCHRONISED, _FOR_RANK, _QUEUED)

_FILLING = (_COMPUTE, _EXPOSED, _MOVES, _IDLE)
"""The parts that add up to the device's time."""


def device_sections(view: DeviceView | None) -> Iterator[Section]:
    if view is None:
        return
    yield what_devices_did(view)
    if len(view.devices) > 1:
        yield by_device(view)


def what_devices_did(view: DeviceView) -> Section:
    """Return the mean over all devices: parts that fill their time, and hidden communication."""
    whole, steps = view.whole, view.device_steps
    rows, shares = [], []
    for part in (*_PARTS, _HIDDEN):
        ns = getattr(whole, part.field)
        if not ns and part.name.startswith(_INSIDE):
            continue
        if part in (_EXPOSED, _WAITING, _HIDDEN) and not whole.communication_ns:
            continue
        share = ns / whole.window_ns if whole.window_ns else 0.0
        rows.append((part.name, percent(share), duration(ns / steps), part.meaning))
        if part in _FILLING:
            shares.append((part.name, share))
    header = ("", "share", "per step", "what it is")
    grid = Grid(header, tuple(rows), frozenset({1, 2}))
    return Section("What the device did", _notes(view), (("", Shares(tuple(shares))),), grid)


def _notes(view: DeviceView) -> tuple[str, ...]:
    """Say which time the figures are about, and what communication costs."""
    whole, steps = view.whole, view.device_steps
    window = "from its first to its last work"
    if view.in_windows:
        window = "in the steps whose kernels were captured, which are slower than others"
    subject = "The device"
    if len(view.devices) > 1:
        subject = f"Mean of {plural(len(view.devices), 'device')}, each"
    busy = percent(whole.busy_ns / whole.window_ns if whole.window_ns else 0.0)
    words = (
        f"{subject} {window}: {duration(whole.window_ns / steps)} per step, of which it is busy "
        f"for {duration(whole.busy_ns / steps)} ({busy})."
    )
    notes = [words]
    if whole.communication_ns:
        words = (
            f"Communication: {duration(whole.exposed_ns / steps)} per step exposed, "
            f"{duration(whole.overlap_ns / steps)} hidden by compute."
        )
        if whole.waiting_ns is None:
            words += " Exposed communication includes waiting for other ranks."
        notes.append(words)
    if len(view.steps) < view.ranks_in_all:
        notes.append(f"Only {plural(len(view.steps), 'rank')} of {view.ranks_in_all:,} was read.")
    return tuple(notes)


def by_device(view: DeviceView) -> Section:
    """Return the same for each device, those with most idle time if there are many."""
    shown = sorted(view.devices, key=lambda each: -each.idle_ns)[:MOST_DEVICES]
    parts = [_COMPUTE, _EXPOSED, _WAITING, _HIDDEN, _IDLE, _LATE, _SYNCHRONISED, _FOR_RANK]
    whole = view.whole
    parts = [part for part in parts if getattr(whole, part.field) or part in (_COMPUTE, _IDLE)]
    rows = []
    for each in sorted(shown, key=lambda each: (each.rank, each.device)):
        steps = view.steps[each.rank]
        cells = [f"{each.rank} {each.device}", duration(each.window_ns / steps)]
        for part in parts:
            ns = getattr(each, part.field)
            cells.append(known(None if ns is None else ns / steps, duration))
        rows.append(tuple(cells))
    notes = []
    if len(view.devices) > len(shown):
        left = plural(len(view.devices) - len(shown), "more device")
        notes.append(f"The {MOST_DEVICES} devices with most idle time; {left} in --json.")
    header = ("rank", "window", *(part.column for part in parts))
    grid = Grid(header, tuple(rows), frozenset(range(1, len(header))))
    return Section("Each device per step", tuple(notes), grid=grid)


def as_json(view: DeviceView | None) -> dict[str, Any] | None:
    """Return the same figures; the times are whole nanoseconds over all steps."""
    if view is None:
        return None
    devices = []
    for each in view.devices:
        devices.append(_figures(each, view.steps[each.rank]))
    return {"captured_windows_only": view.in_windows, "devices": devices}


def _figures(time: DeviceTime, steps: int) -> dict[str, Any]:
    return {
        "rank": time.rank,
        "device": time.device,
        "steps": steps,
        "window_ns": time.window_ns,
        "busy_ns": time.busy_ns,
        "compute_ns": time.compute_ns,
        "communication_ns": time.communication_ns,
        "communication_exposed_ns": time.exposed_ns,
        "communication_hidden_ns": time.overlap_ns,
        "waiting_for_ranks_ns": time.waiting_ns,
        "copies_ns": time.moves_ns,
        "copies_alone_ns": time.moves_alone_ns,
        "idle_ns": time.idle_ns,
        "idle_launched_late_ns": time.late_ns,
        "idle_after_synchronisation_ns": time.synchronised_ns,
        "idle_waiting_for_ranks_ns": time.idle_waiting_ns,
        "idle_for_other_reasons_ns": time.queued_ns,
    }


def launch_notes(view: Overview) -> Iterator[str]:
    """Yield that the device may wait for launches, where no kernels show how much it does."""
    if view.clock is not PhaseClock.DEVICE or view.devices is not None:
        return
    parts = [part for part in view.phases if part.name in COMPUTE and part.host_ns is not None]
    device_ns = sum(part.step_ns.value for part in parts)
    host_ns = sum(part.host_ns or 0.0 for part in parts)
    if device_ns <= 0 or host_ns < AS_LONG * device_ns:
        return
    yield (
        "In the phases that compute, the host takes as long as the device: the device may wait for "
        "the host's launches, or the host for the device. Captured kernels tell (--kernels 40:42)."
    )
