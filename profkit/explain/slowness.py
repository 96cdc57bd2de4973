"""Shares by which a machine may have slowed a side, from earlier runs and readings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow.compute as pc

from profkit.analysis.machine_state import MachineState, mean_state, read_machine_state
from profkit.errors import UnreadableError
from profkit.explain.earlier import Spread, spread_of_earlier
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Ledger
from profkit.explain.noise import spread_of_twins
from profkit.explain.policy import POLICY
from profkit.explain.verdict import Basis
from profkit.frame.device_times import HOST, PhaseClock, is_own
from profkit.frame.estimate import Z_95
from profkit.trace import RunManifest
from profkit.vocab import PROBES

DEVICE_SHARE = spread_of_twins(math.inf)
"""The same for work of a device, however its steps scatter (docs/calibration.md)."""


UNKNOWN_SHARE = POLICY.most_slowdown - 1
"""The same where nothing is known of the machine."""


class Slowness(NamedTuple):
    """Shares by which its machine may have slowed the slower side more than the other."""

    basis: Basis
    usual: float
    """The share by which two runs may differ if other processes do nothing."""
    device: float
    """The same for work of a device."""
    lost: float = 0.0
    """The further share that other processes may have made the work of the host longer."""
    slower: float = 0.0
    """The share by which a probe before and after the runs shows a slower core or memory."""
    waited_ns: float = 0.0
    """How much longer its threads waited for a core, in ns per sample and rank."""
    state: MachineState | None = None
    """The machine of the slower side."""
    spread: Spread | None = None

    @property
    def host(self) -> float:
        """The share that work of the host may have taken longer."""
        return self.usual + self.lost + self.slower

    @property
    def uneven(self) -> float:
        """The share that some processes of a run may have been slowed more than others.

        If all of them are equally slower, nobody has to wait for anybody.
        """
        return self.host if self.basis is Basis.NOTHING else self.lost


def find_slowness(
    ledger: Ledger,
    slow: Sequence[Evidence],
    quick: Sequence[Evidence],
    *,
    with_earlier: bool = True,
) -> Slowness:
    """Return by how much the machine may have slowed the slower side.

    `with_earlier` also reads earlier runs of the same jobs.
    """
    one, other = slow[0].trace, quick[0].trace
    twins = _twins_share(ledger)
    state, other_state = _mean_state(slow), _mean_state(quick)
    slower = _find_slower_probe(slow, quick)
    if max(len(slow), len(quick)) > 1:
        return _slowness_of_repeats(ledger, state, other_state, slower)
    if not (is_own(one) and is_own(other)):
        on_host = any(is_on_host(each) for each in (slow[0], quick[0]))
        share = UNKNOWN_SHARE if on_host else twins
        return Slowness(Basis.NOTHING if on_host else Basis.DEVICE, share, twins)
    spread = spread_of_earlier(other, one) if with_earlier else None
    basis, share, device = Basis.NOTHING, UNKNOWN_SHARE, twins
    if spread is not None:
        basis, share, device = Basis.EARLIER, spread.half, spread.half
    elif ledger.base.clock is not PhaseClock.HOST:
        basis, share = Basis.DEVICE, twins
    elif state is not None:
        basis, share = Basis.READINGS, quiet_share(one.manifest)
    if state is None:
        return Slowness(basis, share, device, slower=slower, spread=spread)
    waits_ns = 0.0
    if state.waited is not None:
        before = other_state.waited if other_state else None
        waits_ns = waited_ns(ledger, state.waited, before or 0.0, state.others)
    lost = _share_lost(state)
    return Slowness(basis, share, device, lost, slower, waits_ns, state, spread)


def _twins_share(ledger: Ledger) -> float:
    """Return by how much healthy runs on devices differ, with steps that scatter as these do."""
    delta, base = ledger.total.delta, ledger.total.base.value
    if delta.low is None or delta.high is None or not base > 0:
        return DEVICE_SHARE
    return spread_of_twins((delta.high - delta.low) / 2 / Z_95 / base)


def quiet_share(slow: RunManifest) -> float:
    """Return the share by which a machine may slow a run though nothing shows other work."""
    return POLICY.quiet_share if slow.environment.get("virtual") is False else POLICY.virtual_share


def _slowness_of_repeats(
    ledger: Ledger, state: MachineState | None, other: MachineState | None, slower: float
) -> Slowness:
    """Return by how much busier the slower side's machine was.

    Noise that both sides meet alike is in the intervals. The repeats of one side may all have met
    a busy machine, if they did not take turns with the other's.
    """
    if state is None or other is None:
        return Slowness(Basis.REPEATS, 0.0, 0.0, slower=slower)
    waits_ns = 0.0
    if state.waited is not None and other.waited is not None:
        waits_ns = waited_ns(ledger, state.waited, other.waited, state.others)
    lost = max(0.0, _share_lost(state) - _share_lost(other))
    return Slowness(Basis.REPEATS, 0.0, 0.0, lost, slower, waits_ns, state)


def _find_slower_probe(slow: Sequence[Evidence], quick: Sequence[Evidence]) -> float:
    """Return by how much longer the probes of the slower side took, of a core or of memory.

    It is zero if it is within the probe's own noise, or if a side has no probe.
    """
    shares = [0.0]
    for kind in ("compute_ns", "memory_ns"):
        means = []
        for side in (slow, quick):
            found = [value for run in side for value in _probes(run.trace.manifest, kind)]
            means.append(sum(found) / len(found) if found else 0.0)
        if means[0] > 0 and means[1] > 0:
            shares.append(means[0] / means[1] - 1)
    slower = max(shares)
    return slower if slower > POLICY.probe_noise else 0.0


def _probes(manifest: RunManifest, kind: str) -> Iterator[float]:
    """Yield the times of a run's probes, as far as the file is well formed."""
    probes = manifest.config.get(PROBES)
    for probe in probes if isinstance(probes, list) else []:
        value = probe.get(kind) if isinstance(probe, dict) else None
        if isinstance(value, int | float) and value > 0:
            yield float(value)


def _share_lost(state: MachineState) -> float:
    """Return the share that other processes may have made a job's own work longer.

    They share caches, memory and the halves of cores with it. Where waits for a core are not known,
    each core of theirs may also have halved the speed of one thread that all others wait for.
    """
    if state.waited is not None:
        return state.share_of_others
    return state.share_of_others + state.others


def waited_ns(ledger: Ledger, slow: float, quick: float, others: float) -> float:
    """Return how much longer threads waited for a core, in ns per sample and rank.

    `slow` and `quick` are seconds per second of each side. Threads of the job wait for each other,
    too, so `others`, the cores that other processes used, limits what these are behind.
    """
    quick_ns, slow_ns = sorted((ledger.total.base.value, ledger.total.target.value))
    longer_ns = slow * slow_ns - quick * quick_ns
    return max(0.0, min(longer_ns, POLICY.most_waiting * others * slow_ns))


def _mean_state(runs: Sequence[Evidence]) -> MachineState | None:
    """Return the load of the runs' machines, or `None` if one of them was not read."""
    states = []
    for run in runs:
        state = run.figure(state_of)
        if state is None:
            return None
        states.append(state)
    return mean_state(states)


def state_of(run: Evidence) -> MachineState | None:
    """Return the load of a run's machines while the used steps ran."""
    cores = run.trace.manifest.environment.get("cpu_count")
    rows = run.select_used(run.trace.steps)
    if not isinstance(cores, int) or cores < 1 or not rows.num_rows:
        return None
    begin_ns, end_ns = pc.min(rows["start_ns"]).as_py(), pc.max(rows["end_ns"]).as_py()
    return read_machine_state(run.trace.samples, cores, begin_ns, end_ns)


def is_on_host(run: Evidence) -> bool:
    """Return true if the run's ranks computed on the host, as far as it says."""
    try:
        return any(rank.manifest.device == HOST for rank in run.trace.ranks)
    except UnreadableError:
        return False
