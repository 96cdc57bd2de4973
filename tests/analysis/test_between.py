"""One run per side: a change that the machine may have made is no verdict, and others are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.explain.between import carry
from profkit.explain.cells import NO_CELLS
from profkit.explain.explained import Explained, explain, explain_repeats
from profkit.explain.ledger import Verdict
from profkit.explain.rules.base import Cause, Specific
from profkit.explain.verdict import Basis
from profkit.frame.estimate import Estimate
from profkit.report import ledger_words
from profkit.testing import synthetic_trace
from profkit.testing.synthetic import BEGIN_REALTIME_NS, MEAN_PHASE_NS
from profkit.testing.synthetic_tables import CORES
from profkit.trace import RunManifest, Trace
from tests.documents import gap_json

MS = 1_000_000
BUSY = CORES / 2
SECOND_NS = 1_000_000_000


def _slowed(factor: float, **others: int) -> dict[str, int]:
    """All phases longer by one factor, as on a busy machine; `others` replace single ones."""
    return {name: round(ns * factor) for name, ns in MEAN_PHASE_NS.items()} | others


def _run(folder: Path, name: str, phase_ns: Mapping[str, int], **options: Any) -> Trace:
    options = {"steps": 120, "jitter": 0.01, "seed": len(name), **options}
    return Trace.open(synthetic_trace(folder / name, phase_ns=phase_ns, **options))


def _at(trace: Trace, second: int, **config: Any) -> Trace:
    """Give a run a time at which it began, and settings."""
    manifest = trace.manifest
    created_ns = BEGIN_REALTIME_NS + second * SECOND_NS
    dataclasses.replace(
        manifest, created_ns=created_ns, config={**manifest.config, **config}
    ).write(trace.path)
    return Trace.open(trace.path)


def _doubt(view: Explained) -> str:
    assert view.ledger.verdict in (Verdict.CANNOT_JUDGE, Verdict.PROBABLE_REGRESSION)
    assert view.ledger.doubt
    assert view.ledger.doubt in ledger_words.verdict_words(view.ledger)
    return view.ledger.doubt


@pytest.mark.parametrize(
    ("virtual", "words"),
    [(True, "quiet virtual machine may"), (None, "quiet machine that may be a virtual one may")],
)
def test_nothing_shows_what_the_host_of_a_virtual_machine_does(
    virtual: bool | None, words: str, tmp_path: Path
) -> None:
    sides = []
    for name, factor in (("base", 1.0), ("target", 1.25), ("slower", 1.5)):
        trace = _run(tmp_path, name, _slowed(factor))
        environment = {**trace.manifest.environment, "virtual": virtual}
        dataclasses.replace(trace.manifest, environment=environment).write(trace.path)
        sides.append(Trace.open(trace.path))
    assert f"{words} differ by 27 %" in _doubt(explain(sides[0], sides[1]))
    assert explain(sides[0], sides[2]).ledger.verdict is Verdict.REGRESSION


@pytest.mark.parametrize(
    ("factor", "others", "verdict"),
    [
        (1.07, 0.0, Verdict.PROBABLE_REGRESSION),
        (1.25, 0.0, Verdict.REGRESSION),
        (1.25, BUSY, Verdict.CANNOT_JUDGE),
        (1.25, None, Verdict.CANNOT_JUDGE),
        (2.5, None, Verdict.CANNOT_JUDGE),
        (4.0, None, Verdict.REGRESSION),
        (1.0, BUSY, Verdict.NEUTRAL),
    ],
)
def test_a_uniform_change_must_exceed_what_the_machine_can_do(
    tmp_path: Path, factor: float, others: float | None, verdict: Verdict
) -> None:
    base = _run(tmp_path, "base", _slowed(1.0))
    target = _run(tmp_path, "target", _slowed(factor), others=others)
    assert explain(base, target).ledger.verdict is verdict
    turned = explain(target, base).ledger.verdict
    gains = {
        Verdict.REGRESSION: Verdict.IMPROVEMENT,
        Verdict.PROBABLE_REGRESSION: Verdict.PROBABLE_IMPROVEMENT,
    }
    assert turned is gains.get(verdict, verdict)


def test_a_busy_machine_on_the_quicker_side_is_no_excuse(tmp_path: Path) -> None:
    base = _run(tmp_path, "base", _slowed(1.0), others=BUSY)
    target = _run(tmp_path, "target", _slowed(1.25))
    assert explain(base, target).ledger.verdict is Verdict.REGRESSION


def test_the_doubt_names_the_load_and_the_command_that_repeats(tmp_path: Path) -> None:
    base = _at(_run(tmp_path, "base", _slowed(1.0)), 0, command=["python", "a b.py"])
    target = _at(
        _run(tmp_path, "target", _slowed(1.2), others=BUSY), 9, command=["python", "new.py"]
    )
    words = _doubt(explain(base, target))
    assert "one run per side cannot tell this change from the machine" in words
    assert "other processes used 8.0 of 16 cores during the target" in words
    assert """profkit run --repeats 3 --against "python 'a b.py'" -- """ in words
    assert words.endswith("-- python new.py")
    unread = _run(tmp_path, "unread", _slowed(1.3), others=None)
    words = _doubt(explain(base, unread))
    assert "nothing was recorded of what else the target's machine did" in words


@pytest.mark.parametrize("others", [BUSY, None])
@pytest.mark.parametrize("row", ["optimizer", "h2d"])
def test_a_row_that_grew_beyond_any_slow_machine_carries_the_verdict(
    tmp_path: Path, others: float | None, row: str
) -> None:
    """40 ms more in a phase of a few milliseconds is no busy machine."""
    base = _run(tmp_path, "base", _slowed(1.0))
    phases = {row: MEAN_PHASE_NS[row] + 40 * MS}
    target = _run(tmp_path, "target", _slowed(1.0, **phases), others=others)
    ledger = explain(base, target).ledger
    assert ledger.verdict is Verdict.REGRESSION
    assert ledger.between is not None
    assert ledger.between.carried_by == (row,)
    assert explain(target, base).ledger.verdict is Verdict.IMPROVEMENT


def test_a_probe_that_shows_a_slower_machine_is_part_of_what_it_may_have_made(
    tmp_path: Path,
) -> None:
    """A lower frequency, or a neighbour of a virtual machine, is in no reading."""
    fast, slow = ([{"compute_ns": ns, "memory_ns": 900_000}] * 2 for ns in (800_000, 1_000_000))
    base = _at(_run(tmp_path, "base", _slowed(1.0)), 0, machine_probes=fast)
    target = _at(_run(tmp_path, "target", _slowed(1.25)), 1, machine_probes=slow)
    assert "a probe of a core or of memory took 25 % longer" in _doubt(explain(base, target))
    alike = _at(_run(tmp_path, "alike", _slowed(1.25)), 1, machine_probes=fast)
    assert explain(base, alike).ledger.verdict is Verdict.REGRESSION
    broken = _at(_run(tmp_path, "broken", _slowed(1.25)), 1, machine_probes=[{"compute_ns": "x"}])
    assert explain(base, broken).ledger.verdict is Verdict.REGRESSION


def test_rows_say_no_more_than_the_total(tmp_path: Path) -> None:
    base = _run(tmp_path, "base", _slowed(1.0))
    target = _run(tmp_path, "target", _slowed(1.3), others=BUSY)
    ledger = explain(base, target).ledger
    assert {ledger.verdict_of(row) for row in (*ledger.rows, ledger.total)} <= {
        Verdict.CANNOT_JUDGE,
        Verdict.NEUTRAL,
    }


def test_a_gate_does_not_fail_on_what_the_machine_may_have_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = _run(tmp_path, "base", _slowed(1.0)).path
    busy = _run(tmp_path, "busy", _slowed(1.3), others=BUSY).path
    slow = _run(tmp_path, "slow", _slowed(1.3)).path
    for target, code in ((busy, ExitCode.NOT_JUDGED), (slow, ExitCode.REGRESSION)):
        assert main(["explain", str(base), str(target), "--gate", "3%"]) == code
    assert "one run per side cannot tell" in capsys.readouterr().out


def test_causes_that_are_counted_carry_the_verdict_and_times_alone_do_not(tmp_path: Path) -> None:
    base = _run(tmp_path, "base", _slowed(1.0))
    ledger = explain(base, _run(tmp_path, "busy", _slowed(1.3), others=BUSY)).ledger
    assert ledger.doubt
    gap_ns = ledger.total.delta.value * ledger.samples_per_step

    def cause(kind: str, share: float, specific: Specific = Specific.COUNT) -> Cause:
        cost_ns = Estimate(share * gap_ns, 0.9 * share * gap_ns, 1.1 * share * gap_ns)
        return Cause(kind, cost_ns, share, "", specific=specific)

    counted = carry(ledger, [cause("garbage_pauses", 0.4), cause("tiny_buckets", 0.3)], NO_CELLS)
    assert (counted.verdict, counted.doubt) == (Verdict.REGRESSION, "")
    timed = cause("optimizer_unfused", 0.9, Specific.OPERATOR)
    for causes in ([cause("garbage_pauses", 0.4)], [timed]):
        assert carry(ledger, causes, NO_CELLS) is ledger
    gain = dataclasses.replace(cause("garbage_pauses", 0.9), is_gain=True)
    assert carry(ledger, [gain], NO_CELLS) is ledger


def _earlier(folder: Path, spread: float) -> None:
    """Eight earlier runs of the job, whose speeds have this standard deviation."""
    speeds = np.random.default_rng(3).standard_normal(8)
    speeds = 1 + spread * (speeds - speeds.mean()) / speeds.std(ddof=1)
    for number, speed in enumerate(speeds.tolist()):
        _at(_run(folder, f"earlier{number}", _slowed(speed), seed=number), number)


@pytest.mark.parametrize(
    ("spread", "factor", "verdict"),
    [
        (0.003, 1.06, Verdict.REGRESSION),
        (0.10, 1.25, Verdict.CANNOT_JUDGE),
        (0.10, 3.00, Verdict.REGRESSION),
    ],
)
def test_earlier_runs_of_the_job_show_how_much_its_runs_differ(
    tmp_path: Path, spread: float, factor: float, verdict: Verdict
) -> None:
    _earlier(tmp_path, spread)
    base = _at(_run(tmp_path, "base", _slowed(1.0)), 10)
    target = _at(_run(tmp_path, "target", _slowed(factor)), 11)
    ledger = explain(base, target).ledger
    assert ledger.verdict is verdict
    assert ledger.between is not None
    assert ledger.between.basis is Basis.EARLIER
    if verdict is Verdict.CANNOT_JUDGE:
        assert "8 earlier runs of the same job" in ledger.doubt


def test_later_runs_and_other_jobs_are_no_earlier_runs(tmp_path: Path) -> None:
    _earlier(tmp_path, 0.003)
    other = {"workers": 7}
    base = _at(_run(tmp_path, "base", _slowed(1.0)), 10, **other)
    target = _at(_run(tmp_path, "target", _slowed(1.06)), 11, **other)
    assert "earlier" not in _doubt(explain(base, target))
    first, second = (Trace.open(tmp_path / f"earlier{number}") for number in (0, 1))
    slow = _at(_run(tmp_path, "slow", _slowed(1.07)), 1)
    assert first.manifest.created_ns < slow.manifest.created_ns
    between = explain(first, slow).ledger.between
    assert between is not None
    assert between.basis is not Basis.EARLIER, second.name


def test_a_commit_that_differs_is_still_the_same_job(tmp_path: Path) -> None:
    _earlier(tmp_path, 0.003)
    for number, run in enumerate(sorted(tmp_path.iterdir())):
        manifest = RunManifest.read(run)
        environment = {**manifest.environment, "revision": {"commit": f"{number:040x}"}}
        dataclasses.replace(manifest, environment=environment).write(run)
    base = _at(_run(tmp_path, "base", _slowed(1.0)), 10)
    target = _at(_run(tmp_path, "target", _slowed(1.06)), 11)
    between = explain(base, target).ledger.between
    assert between is not None
    assert between.basis is Basis.EARLIER
    dirty = []
    for side in (base, target):
        environment = {**side.manifest.environment, "revision": {"commit": "0", "dirty": True}}
        dataclasses.replace(side.manifest, environment=environment).write(side.path)
        dirty.append(Trace.open(side.path))
    assert "earlier" not in _doubt(explain(dirty[0], dirty[1]))


def test_a_change_of_the_code_among_the_earlier_runs_is_no_noise(tmp_path: Path) -> None:
    _earlier(tmp_path, 0.003)
    for number in range(8, 12):
        _at(_run(tmp_path, f"faster{number}", _slowed(0.7), seed=number), number)
    base = _at(_run(tmp_path, "base", _slowed(0.7)), 20)
    target = _at(_run(tmp_path, "target", _slowed(0.75)), 21)
    ledger = explain(base, target).ledger
    assert ledger.verdict is Verdict.REGRESSION
    assert ledger.between is not None
    assert ledger.between.basis is Basis.EARLIER


def _sides(
    folder: Path, factors: Sequence[Sequence[float]], others: Sequence[float] = (0.0, 0.0)
) -> list[list[Trace]]:
    """Repeats of two sides that took turns."""
    sides = []
    for side, speeds in enumerate(factors):
        runs = []
        for number, speed in enumerate(speeds):
            run = _run(folder, f"{side}-{number}", _slowed(speed), seed=number, others=others[side])
            runs.append(_at(run, 2 * number + side))
        sides.append(runs)
    return sides


def test_repeats_tell_a_small_change_and_their_own_noise(tmp_path: Path) -> None:
    alike = _sides(tmp_path / "alike", [(1.0, 1.01, 0.99), (1.06, 1.07, 1.05)])
    ledger = explain_repeats(alike[0], alike[1]).ledger
    assert (ledger.verdict, ledger.doubt) == (Verdict.REGRESSION, "")
    assert ledger.between is not None
    assert ledger.between.basis is Basis.REPEATS
    change, efficiency = ledger.change, ledger.efficiency
    assert change.low is not None
    assert efficiency.high is not None
    assert efficiency.high == pytest.approx(1 / (1 + change.low)), "they say the same"
    drifting = _sides(tmp_path / "drifting", [(1.0, 1.3, 0.9), (1.1, 1.45, 1.0)])
    ledger = explain_repeats(drifting[0], drifting[1]).ledger
    assert ledger.verdict is Verdict.REGRESSION, "in each round"
    noisy = _sides(tmp_path / "noisy", [(1.0, 1.3, 0.9), (1.1, 1.0, 1.45)])
    ledger = explain_repeats(noisy[0], noisy[1]).ledger
    assert ledger.verdict is Verdict.CANNOT_JUDGE
    assert ledger.total.delta.low is not None
    assert ledger.total.delta.low < 0
    words = ledger_words.verdict_words(ledger)
    assert re.search(r"more repeats are needed, (about|more than) \d+ per side", words)


def test_repeats_of_a_side_that_met_a_busier_machine_are_doubted(tmp_path: Path) -> None:
    """Unless they took turns: then chance gave one side more of the load, which is in the noise."""
    speeds = [(1.0, 1.01, 0.99), (1.2, 1.21, 1.19)]
    bases, targets = _sides(tmp_path / "busy", speeds, (0.0, BUSY))
    assert explain_repeats(bases, targets).ledger.verdict is Verdict.REGRESSION
    later = [_at(run, 100 + number) for number, run in enumerate(targets)]
    ledger = explain_repeats(bases, later).ledger
    assert ledger.verdict is Verdict.CANNOT_JUDGE
    assert "the target's machine was busier" in ledger.doubt
    bases, targets = _sides(tmp_path / "both", speeds, (BUSY, BUSY))
    later = [_at(run, 100 + number) for number, run in enumerate(targets)]
    assert explain_repeats(bases, later).ledger.verdict is Verdict.REGRESSION


def test_repeats_that_took_no_turns_are_a_caveat(tmp_path: Path) -> None:
    bases, targets = _sides(tmp_path, [(1.0, 1.01), (1.0, 1.01)])
    assert not any("took turns" in each for each in explain_repeats(bases, targets).caveats)
    later = [_at(run, 100 + number) for number, run in enumerate(targets)]
    view = explain_repeats(bases, later)
    assert any("the runs of one side were before" in each for each in view.caveats)


def test_a_total_can_be_sure_if_none_of_its_rows_is(tmp_path: Path) -> None:
    """Rows that vary against each other: their sum varies less than each of them."""
    runs: list[list[Trace]] = [[], []]
    for side, factor in enumerate((1.0, 1.06)):
        for number, moved in enumerate((-6 * MS, 0, 6 * MS)):
            phases = _slowed(factor)
            phases["forward"] += moved
            phases["backward"] -= moved
            name = f"{side}-{number}"
            runs[side].append(_at(_run(tmp_path, name, phases, seed=number), 2 * number + side))
    ledger = explain_repeats(runs[0], runs[1]).ledger
    assert ledger.verdict is Verdict.REGRESSION
    for row in (ledger.find("forward"), ledger.find("backward")):
        assert row is not None
        assert ledger.verdict_of(row) is not Verdict.REGRESSION


@pytest.mark.parametrize("others", [0.0, BUSY])
def test_rows_are_inconclusive_that_the_machine_may_change(tmp_path: Path, others: float) -> None:
    """In sum nothing has changed, so no doubt is said of the whole."""
    moved = {"forward": round(MEAN_PHASE_NS["forward"] * 0.95)}
    grown = {"h2d": MEAN_PHASE_NS["h2d"] + MEAN_PHASE_NS["forward"] - moved["forward"]}
    base = _run(tmp_path, "base", _slowed(1.0))
    target = _run(tmp_path, "target", _slowed(1.0, **moved, **grown), others=others)
    for ledger, is_turned in (
        (explain(base, target).ledger, False),
        (explain(target, base).ledger, True),
    ):
        assert ledger.verdict is Verdict.NEUTRAL
        rows = {row.name: ledger.verdict_of(row) for row in ledger.rows}
        assert rows["forward"] is Verdict.CANNOT_JUDGE
        found = Verdict.IMPROVEMENT if is_turned else Verdict.REGRESSION
        # Twice the copies are no usual noise, and less than a busy machine may make of them.
        assert rows["h2d"] is (Verdict.CANNOT_JUDGE if others else found)
        assert ledger.verdict_of(ledger.total) is Verdict.NEUTRAL
    found = gap_json(explain(base, target))["rows_of_machine"]
    assert "forward" in found
    assert ("h2d" in found) == bool(others)


def test_a_gate_on_such_a_row_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = {"backward": round(MEAN_PHASE_NS["backward"] * 1.05)}
    moved["forward"] = MEAN_PHASE_NS["forward"] + MEAN_PHASE_NS["backward"] - moved["backward"]
    base = _run(tmp_path, "base", _slowed(1.0))
    target = _run(tmp_path, "target", _slowed(1.0, **moved))
    sides = ["explain", str(base.path), str(target.path)]
    assert main([*sides, "--gate", "backward=0.5ms"]) == ExitCode.NOT_JUDGED
    assert "from run to run" in " ".join(capsys.readouterr().out.split())


def test_a_long_command_is_not_said_to_be_one_of_both(tmp_path: Path) -> None:
    words = [f"--option{number}" for number in range(40)]
    base = _at(_run(tmp_path, "base", _slowed(1.0)), 0, command=["train.py", *words])
    target = _run(tmp_path, "target", _slowed(1.07))
    target = _at(target, 9, command=["train.py", *words, "--fast"])
    assert _doubt(explain(base, target)).endswith('--against "BASE COMMAND" -- TARGET COMMAND')


@pytest.mark.parametrize(("others", "kinds"), [(0.0, ["input_bound"]), (BUSY, [])])
def test_a_wait_that_a_busy_machine_makes_is_no_cause_of_its_own(
    tmp_path: Path, others: float, kinds: list[str]
) -> None:
    longer = MEAN_PHASE_NS["data"]
    moved = {"data": 2 * longer, "forward": MEAN_PHASE_NS["forward"] - longer}
    base = _run(tmp_path, "base", _slowed(1.0))
    target = _run(tmp_path, "target", _slowed(1.0, **moved), others=others)
    view = explain(base, target)
    assert view.ledger.verdict is Verdict.NEUTRAL
    assert [each.kind for each in view.causes if not each.is_gain] == kinds


def test_earlier_runs_of_a_job_that_was_changed_between_them_are_no_noise(tmp_path: Path) -> None:
    for number, factor in enumerate((1.0, 2.5, 1.2, 3.0, 0.9, 2.0, 4.0, 1.1)):
        _at(_run(tmp_path, f"earlier{number}", _slowed(factor), seed=number), number)
    base = _at(_run(tmp_path, "base", _slowed(1.0)), 10)
    target = _at(_run(tmp_path, "target", _slowed(1.6)), 11)
    between = explain(base, target).ledger.between
    assert between is not None
    assert between.basis is not Basis.EARLIER
