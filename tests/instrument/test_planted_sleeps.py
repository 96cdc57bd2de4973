"""20 ms of sleep in a phase lengthens that phase by 20 ms, and no other."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from profkit.analysis.overview import build_overview
from profkit.frame.columns import rows_of_rank
from profkit.frame.estimate import Floats
from profkit.frame.phases import step_times
from tests.instrument.test_run_command import JOBS, PROFKIT_RUN, TORCHRUN
from tests.recorded import newest_run, run_to_end

PADDLE_LAUNCH = [
    sys.executable,
    "-m",
    "paddle.distributed.launch",
    "--nproc_per_node",
    "2",
    "--backend",
    "gloo",
]
Steps = npt.NDArray[np.int64]
SLEEP_MS = 20.0
CASES = {
    ("torch", 1): ("data", "h2d", "forward", "backward", "optimizer"),
    ("torch", 2): ("data", "forward", "backward", "allreduce", "optimizer"),
    ("paddle", 1): (
        "forward",
        "backward",
        "optimizer",
    ),  # its loader reads ahead on a thread and hides a part of a sleep there: see below
    ("paddle", 2): ("forward", "backward", "optimizer"),
}
TURNS = 16


def _command(framework: str, ranks: int, phases: tuple[str, ...]) -> list[str]:
    launcher = TORCHRUN if framework == "torch" else PADDLE_LAUNCH
    if ranks == 1:
        launcher = [sys.executable]
    steps = str(TURNS * 3 * len(phases))
    return [
        *PROFKIT_RUN,
        *launcher,
        str(JOBS / f"planted_{framework}.py"),
        "--phases",
        ",".join(phases),
        "--sleep-ms",
        str(SLEEP_MS),
        "--steps",
        steps,
    ]


LIMIT_MS = 0.5


@dataclass(frozen=True)
class Growth:
    """A phase's growth on steps that slept, by the script's own clock, and profkit's error.

    Both are medians over steps of the mean over ranks. A busy machine disturbs both clocks alike.
    """

    script_ms: float
    error_ms: float


class Planted:
    """A run of a script that sleeps, with what it measured itself."""

    def __init__(self, framework: str, ranks: int, phases: tuple[str, ...], folder: Path) -> None:
        run_to_end(_command(framework, ranks, phases), folder)
        self.trace = newest_run(folder)
        self._own = [json.loads((folder / f"own{rank}.json").read_text()) for rank in range(ranks)]
        self._phases = phases
        turns = 3 * len(phases)
        measured = self.trace.steps.filter(self.trace.steps["instrumented"])["step"].to_numpy()
        self._steady = np.unique(measured[(measured >= turns) & (measured < TURNS * turns - 1)])

    def growths(self, planted: str) -> dict[str, Growth]:
        """Return each phase's growth in steps that slept in `planted`.

        They are compared with steps that, like them, follow a step without a sleep. The script sees
        the exchange as backward.
        """
        slow = self._steady[
            self._steady % (3 * len(self._phases)) == 3 * self._phases.index(planted)
        ]
        quick = self._steady[self._steady % 3 == 2]
        return {phase: self._growth(phase, slow, quick) for phase in self._own[0]}

    def _growth(self, phase: str, slow: Steps, quick: Steps) -> Growth:
        own = np.mean([own[phase] for own in self._own], axis=0)
        errors = [
            float(np.median(self._parts(steps)[phase] - own[steps])) for steps in (slow, quick)
        ]
        return Growth(
            float(np.median(own[slow]) - np.median(own[quick])), abs(errors[0] - errors[1])
        )

    def _parts(self, steps: Steps) -> dict[str, Floats]:
        times = step_times(self.trace.steps, self.trace.spans, steps)
        parts = dict(zip(times.names, times.parts / 1e6, strict=True))
        return {**parts, "backward": parts["backward"] + parts.get("allreduce", np.zeros(1))}

    def exchange_growth_ms(self) -> float:
        """Return the growth of the exposed exchange in steps whose exchange slept."""
        found = []
        for steps in (
            self._steady[
                self._steady % (3 * len(self._phases)) == 3 * self._phases.index("allreduce")
            ],
            self._steady[self._steady % 3 == 2],
        ):
            times = step_times(self.trace.steps, self.trace.spans, steps)
            found.append(float(np.median(times.parts[times.names.index("allreduce")])) / 1e6)
        return found[0] - found[1]


@pytest.mark.measured
@pytest.mark.parametrize(("framework", "ranks"), CASES)
def test_a_sleep_lands_in_its_phase_and_in_no_other(
    framework: str, ranks: int, tmp_path: Path
) -> None:
    """Every phase grows as by the script's own clock: by 20 ms if it slept, else by nothing."""
    run = Planted(framework, ranks, CASES[framework, ranks], tmp_path)
    for planted in CASES[framework, ranks]:
        growths = run.growths(planted)
        assert {
            phase: growth for phase, growth in growths.items() if growth.error_ms > LIMIT_MS
        } == {}, planted
        assert (
            growths["backward" if planted == "allreduce" else planted].script_ms >= 0.8 * SLEEP_MS
        )  # the rest is the machine's noise
    if "allreduce" in CASES[framework, ranks]:
        assert run.exchange_growth_ms() >= 0.8 * SLEEP_MS


@pytest.mark.measured
def test_a_sleep_in_paddles_reading_is_in_the_loaders_own_rows(tmp_path: Path) -> None:
    trace = Planted("paddle", 1, ("data",), tmp_path).trace
    names = trace.spans["name"].cast("string").to_numpy(zero_copy_only=False)
    took = (trace.spans["end_ns"].to_numpy() - trace.spans["start_ns"].to_numpy())[
        names == "read"
    ] / 1e6
    slow = trace.steps.filter(trace.steps["instrumented"])["step"].to_numpy() % 3 == 0
    assert took[slow].min() >= SLEEP_MS - LIMIT_MS
    assert np.median(took[~slow]) < LIMIT_MS


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_who_waits_before_a_forward_is_not_the_one_that_is_late(kind: str, tmp_path: Path) -> None:
    """Rank 0 waits in the broadcast of DDP's buffers, or in FSDP's first all-gather."""
    if kind == "fsdp":
        pytest.importorskip("torch.distributed.fsdp", reason="this torch has no FSDP")
        from torch.distributed import fsdp

        if not hasattr(fsdp, "fully_shard"):
            pytest.skip("this torch has no FSDP2")
    job = str(JOBS / "late_before_batch.py")
    run_to_end([*PROFKIT_RUN, *TORCHRUN, job, kind, 2 * SLEEP_MS], tmp_path)
    trace = newest_run(tmp_path)
    overview = build_overview(trace)
    assert overview.late_rank is not None
    assert overview.late_rank.rank == 1
    assert overview.late_rank.phase not in {"forward", "backward"}
    assert overview.late_rank.waited_ns > SLEEP_MS * 1e6
    used = overview.selection.steps
    own = [
        step_times(rows_of_rank(trace.steps, rank), rows_of_rank(trace.spans, rank), used).means()
        for rank in (0, 1)
    ]
    assert abs(own[0]["forward"] - own[1]["forward"]) < SLEEP_MS / 2 * 1e6
    ops = set(trace.collectives["op"].cast("string").to_pylist())
    assert ops >= ({"broadcast", "all_reduce"} if kind == "ddp" else {"all_gather"})
