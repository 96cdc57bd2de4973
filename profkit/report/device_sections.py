"""The first sections of a run with device work: what its devices did."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from profkit.analysis.config_join import COMPUTE
from profkit.analysis.kernels.device_time import DeviceTime
from profkit.analysis.kernels.device_view import DeviceView
from profkit.analysis.overview import Overview
from profkit.frame.device_times import PhaseClock
from profkit.show.document import Column, Section, Shares, Table, data_columns, missing
from profkit.show.figures import COUNT, MS, NS, SHARE
from profkit.text import duration, percent, plural
from profkit.vocab import DEVICE_IDLE

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

_PART_COLUMNS = (
    Column("", "", itemgetter(0)),
    Column("", "share", itemgetter(1), SHARE),
    Column("", "per step", itemgetter(2), MS),
    Column("", "what it is", itemgetter(3)),
)

_COLUMNS = (
    *data_columns("rank", "device"),
    *data_columns("window_ns", "busy_ns", "compute_ns", "communication_ns", "idle_ns", unit=NS),
    *data_columns(
        unit=NS,
        communication_exposed_ns="exposed_ns",
        communication_hidden_ns="overlap_ns",
        waiting_for_ranks_ns="waiting_ns",
        copies_ns="moves_ns",
        copies_alone_ns="moves_alone_ns",
        idle_launched_late_ns="late_ns",
        idle_after_synchronisation_ns="synchronised_ns",
        idle_waiting_for_ranks_ns="idle_waiting_ns",
        idle_for_other_reasons_ns="queued_ns",
    ),
)
"""The figures of a device for programs; the times are whole nanoseconds over its steps."""


def device_sections(view: DeviceView | None) -> Iterator[Section]:
    if view is None:
        yield from missing("device_time")
        return
    yield what_devices_did(view)
    if len(view.devices) > 1:
        yield by_device(view)
    columns = (*_COLUMNS, Column("steps", None, lambda each: view.steps[each.rank]))
    facts = {
        "captured_windows_only": view.in_windows,
        "devices": Table(columns, view.devices),
    }
    yield Section(key="device_time", facts=facts)


_GAP_COLUMNS = (
    Column("", "idle", itemgetter("idle_ns"), NS),
    Column("", "rank", itemgetter("rank"), COUNT),
    Column("", "step", itemgetter("step"), COUNT),
    Column("", "what the host did", itemgetter("call")),
    Column("", "in the line", itemgetter("line"), stretches=True),
)


def idle_section(config: Mapping[str, Any]) -> Iterator[Section]:
    """Yield what the host did while devices were idle, as the importer of a trace found it."""
    found = config.get(DEVICE_IDLE)
    if not isinstance(found, Mapping) or not found.get("gaps"):
        yield from missing(DEVICE_IDLE)
        return
    calls = []
    for name, ns in found["calls"].items():
        calls.append(f"{name} ({percent(ns / (found['idle_ns'] or math.inf))} of all idle time)")
    notes: tuple[str, ...] = ()
    if calls:
        notes = (f"While devices were idle, the host was most in {', '.join(calls)}.",)
    table = Table(_GAP_COLUMNS, found["gaps"], only_known=True)
    title = "Longest gaps of the device, in the whole file"
    yield Section(title, notes, table=table, folded=not calls, key=DEVICE_IDLE, facts=found)


def idle_words(view: DeviceView | None) -> tuple[float, str]:
    """Return the share of the time in which the devices are idle, and mostly for which reason."""
    if view is None or not view.whole.window_ns:
        return 0.0, ""
    steps = "captured steps" if view.in_windows else "the time"
    subject = "the device is" if len(view.devices) == 1 else "the devices are"
    share = view.whole.idle_ns / view.whole.window_ns
    reason, of_it = _most_idle(device_shares(view))
    return share, f"{subject} idle for {percent(share)} of {steps} ({reason}: {percent(of_it)})"


def device_shares(view: DeviceView) -> dict[str, float]:
    """Return each part of the devices' time, and what keeps them busy, as shares of all of it."""
    whole = view.whole
    shares = {"busy_ns": whole.busy_ns / (whole.window_ns or math.inf)}
    for part in _PARTS:
        shares[part.field] = (getattr(whole, part.field) or 0) / (whole.window_ns or math.inf)
    return shares


def _most_idle(shares: Mapping[str, float]) -> tuple[str, float]:
    """Return the reason for most of the idle time, and its share of all time."""
    reasons = (_LATE, _SYNCHRONISED, _FOR_RANK, _QUEUED)
    most = max(reasons, key=lambda part: shares[part.field])
    return most.name.removeprefix(_INSIDE), shares[most.field]


def shares_words(shares: Mapping[str, float]) -> str:
    """Return for how much of the time devices were busy, idle, and only communicated."""
    reason, of_it = _most_idle(shares)
    words = f"device busy {percent(shares['busy_ns'])}, idle {percent(shares[_IDLE.field])}"
    words += f" ({reason}: {percent(of_it)})"
    if exposed := shares[_EXPOSED.field]:
        words += f", communication exposed {percent(exposed)}"
    return words


def what_devices_did(view: DeviceView) -> Section:
    """Return the mean over all devices: parts that fill their time, and hidden communication."""
    whole, steps = view.whole, view.device_steps
    rows: list[tuple[str, float, float, str]] = []
    shares = []
    for part in (*_PARTS, _HIDDEN):
        ns = getattr(whole, part.field)
        if not ns and part.name.startswith(_INSIDE):
            continue
        if part in (_EXPOSED, _WAITING, _HIDDEN) and not whole.communication_ns:
            continue
        share = ns / (whole.window_ns or math.inf)
        rows.append((part.name, share, ns / steps, part.meaning))
        if part in _FILLING:
            shares.append((part.name, share))
    table = Table(_PART_COLUMNS, rows)
    title, charts = "What the device did", (("", Shares(tuple(shares))),)
    words = shares_words(device_shares(view))
    brief = Section(title, (f"{words[:1].upper()}{words[1:]}.",))
    return Section(title, _notes(view), charts, table, brief=brief)


def _notes(view: DeviceView) -> tuple[str, ...]:
    """Say which time the figures are about, and what communication costs."""
    whole, steps = view.whole, view.device_steps
    window = "from its first to its last work"
    if view.in_steps:
        window = "in the used steps, from begin to end"
    elif view.in_windows:
        window = "in the steps whose kernels were captured, which are slower than others"
    subject = "The device"
    if len(view.devices) > 1:
        subject = f"Mean of {plural(len(view.devices), 'device')}, each"
    busy = percent(whole.busy_ns / (whole.window_ns or math.inf))
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
    columns = [Column("", "rank", lambda each: f"{each.rank} {each.device}")]
    for field, title in (("window_ns", "window"), *((part.field, part.column) for part in parts)):
        columns.append(Column("", title, _per_step(view, field), MS))
    notes = []
    if len(view.devices) > len(shown):
        left = plural(len(view.devices) - len(shown), "more device")
        notes.append(f"The {MOST_DEVICES} devices with most idle time; {left} in --json.")
    rows = sorted(shown, key=lambda each: (each.rank, each.device))
    return Section("Each device per step", tuple(notes), table=Table(columns, rows))


def _per_step(view: DeviceView, field: str) -> Callable[[DeviceTime], float | None]:
    """Return what reads a time of a device per step, or null."""

    def read(each: DeviceTime) -> float | None:
        ns: float | None = getattr(each, field)
        return None if ns is None else ns / view.steps[each.rank]

    return read


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
        "The host takes as long as the device, so either may wait for the other: see --kernels "
        "40:42."
    )
