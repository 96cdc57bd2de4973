"""Snapshots of a job on a stand-in for torch's allocator: in a window, and at a failure."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from profkit.analysis.memory.ledger import MemoryLedger, find_ledgers  # noqa: E402
from profkit.cli import main  # noqa: E402
from profkit.errors import UsageError  # noqa: E402
from profkit.instrument.frameworks.pytorch import memory  # noqa: E402
from profkit.instrument.frameworks.pytorch.memory import MemoryHistory  # noqa: E402
from profkit.instrument.guard import FAILURES  # noqa: E402
from profkit.run.choosing import Choice  # noqa: E402
from profkit.trace import Trace  # noqa: E402
from tests.harmless.commands import PYTHON, Ended, run  # noqa: E402
from tests.memory_snapshots import MB, MODULE, Allocator, stand_in  # noqa: E402

SCRIPT = Path(__file__).parent / "jobs" / "memory_torch.py"
NEVER = 99


def train(folder: Path, failing: int, *options: str, batch: int = 4) -> Ended:
    """Run the job bare and recorded: it must do the same."""
    command = (PYTHON, SCRIPT, batch, failing)
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    bare = run(command, folder, recorded=False, env=env)
    ended = run(command, folder, recorded=True, options=options, env=env)
    assert (ended.code, ended.out) == (bare.code, bare.out)
    assert bare.code == (failing != NEVER)
    assert _failures(ended) == _failures(bare)
    return ended


def _failures(ended: Ended) -> list[str]:
    return [line for line in ended.err.splitlines() if "OutOfMemoryError" in line]


def ledger_of(ended: Ended) -> MemoryLedger:
    (ledger,), problems = find_ledgers(Trace.open(ended.runs[0]))
    assert not problems
    assert sum(each.bytes for each in ledger.rows) == ledger.reserved
    assert (ledger.misfits, ledger.unlike) == (0, 0)
    return ledger


def held(ledger: MemoryLedger) -> dict[str, int]:
    return {each.row.name.lower(): each.bytes for each in ledger.rows if each.bytes}


@pytest.mark.jobs
def test_a_window_shows_what_fills_the_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = train(tmp_path, NEVER, "--memory", "3:5", batch=8)
    ledger = ledger_of(ended)
    rows = held(ledger)
    assert rows["activations"] == 4 * 8 * MB
    assert rows["optimizer"] == 2 * rows["parameters"] == 8 * 4 * MB
    assert main(["report", str(ended.runs[0])]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "The largest part at the peak: optimizer's state, 33.6 MB" in text
    assert ledger.modules[0].line.endswith(" Block.forward")
    assert ledger.modules[0].outer.endswith(" Net.forward")


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("failing", "options"),
    [(5, ()), (5, ("--memory", "4:6")), (0, ()), (0, ("--memory", "0:1"))],
)
def test_a_failed_allocation_leaves_a_file(
    failing: int, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = train(tmp_path, failing, *options)
    ledger = ledger_of(ended)
    assert ledger.failed
    assert ledger.failed >= 800 * MB
    assert ":" in ledger.failed_line
    assert ledger.phase == "in the forward pass"
    assert main(["report", str(ended.runs[0])]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "failed in the forward pass at memory_" in text
    assert "shows what held it" in ended.err
    if options:
        assert held(ledger)["parameters"] == 16 * MB
        assert held(ledger).get("optimizer", 0) == 32 * MB * (failing > 0)
    else:
        assert "record that step with --memory to divide them" in text


@pytest.mark.jobs
def test_a_comparison_predicts_twice_the_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for batch in (4, 8, 16):
        ended = train(tmp_path / str(batch), NEVER, "--memory", "3:5", batch=batch)
        runs.append(ended.runs[0])
    main(["explain", str(runs[0]), str(runs[1]), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["memory_prediction"]["batch_shape"] == "16x64"
    ((ledger,), _) = find_ledgers(Trace.open(runs[2]))
    predicted = found["memory_prediction"]["allocated_bytes"]
    assert predicted == pytest.approx(ledger.allocated, rel=0.05)
    main(["explain", str(runs[0]), str(runs[1])])
    text = " ".join(capsys.readouterr().out.split())
    assert "With batches of 16x64, 118 MB would be allocated at the peak" in text


@pytest.mark.parametrize("mode", ["broken", "own", "in a window"])
def test_a_failure_stays_the_jobs(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no snapshot can be taken. A history of the job itself is not taken."""
    allocator = Allocator(most=30 * MB, error=torch.OutOfMemoryError, records=mode == "own")
    monkeypatch.setattr(torch.cuda, "_queued_calls", [])
    history = MemoryHistory(tmp_path, lambda: 3)
    if mode == "broken":
        monkeypatch.setattr(allocator, "snapshot", None)
    stand_in(allocator, functools.partial(monkeypatch.setattr, raising=False))
    notes: list[str] = []
    history.note = notes.append
    assert history.start() is (mode != "own")
    assert notes == ["the job records a history itself"] * (mode == "own")
    for most_s in (memory.LONGEST_FAILURES_S, 0):  # the first snapshot takes all the time
        monkeypatch.setattr(history, "_left_s", most_s)
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 90,000,000 bytes"):
            allocator.malloc(90_000_000, "", MODULE)
    history.finish()
    names = [path.name for path in tmp_path.iterdir()]
    assert names == ["memory-failure-00003.pickle"] * (mode == "in a window")
    assert FAILURES.pop("memory", 0) == (mode == "broken")


def test_windows_are_named_by_steps() -> None:
    assert Choice.parse("", "", operators=False, memory="10:12").memory is not None
    with pytest.raises(UsageError, match="--memory: kernels are captured in step 10"):
        Choice.parse("", "9:11", operators=False, memory="10:12")
