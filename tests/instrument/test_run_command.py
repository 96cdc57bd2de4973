"""`profkit run` on training scripts that do not mention profkit."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from profkit.analysis.overview import build_overview
from profkit.cli import main
from profkit.explain.explained import explain
from profkit.frame.exchange import expose, split_exchange
from profkit.frame.selection import select_steps
from profkit.run import concluding, launch
from profkit.run.signals import forwarding
from profkit.trace import Trace, verify
from profkit.trace.reader import find_runs
from profkit.vocab import ZERO_GRAD, Integrity, RunState
from tests.warm import warm_python

JOBS = Path(__file__).parent / "jobs"
PATIENCE_S = 300
TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--nproc-per-node",
    "2",
    "--master-port",
    "0",
    "--rdzv-backend",
    "c10d",
    "--rdzv-endpoint",
    "localhost:0",
]
PROFKIT_RUN = [sys.executable, "-m", "profkit", "run", "--"]


def warm_torchrun() -> list[str]:
    """Return the words that start two ranks at once; see `tests.warm`."""
    return [warm_python(), *TORCHRUN[1:]]


@dataclass(frozen=True)
class Ended:
    """The exit code and output of a command, and its run."""

    code: int
    out: str
    err: str
    run: Path | None

    @property
    def trace(self) -> Trace:
        assert self.run is not None, self.err
        return Trace.open(self.run)


@dataclass(frozen=True)
class Started:
    """A command under way; what it says goes into files, so that several can run at once."""

    process: subprocess.Popen[str]
    folder: Path

    def end(self) -> Ended:
        self.process.wait(PATIENCE_S)
        runs = find_runs(self.folder / "traces")
        return Ended(
            self.process.returncode,
            (self.folder / "stdout").read_text(),
            (self.folder / "stderr").read_text(),
            runs[-1] if runs else None,
        )


def _start(
    command: Sequence[object],
    folder: Path,
    *,
    recorded: bool = True,
    env: dict[str, str] | None = None,
) -> Started:
    words = [*(PROFKIT_RUN if recorded else []), *map(str, command)]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("PROFKIT_")
    } | {"OMP_NUM_THREADS": "1", **(env or {})}
    with open(folder / "stdout", "w") as out, open(folder / "stderr", "w") as err:
        return Started(
            subprocess.Popen(words, cwd=folder, env=clean, stdout=out, stderr=err, text=True),
            folder,
        )


def _run(command: Sequence[object], folder: Path, *, env: dict[str, str] | None = None) -> Ended:
    return _start(command, folder, env=env).end()


def _run_both(command: Sequence[object], bare: Path, recorded: Path) -> tuple[Ended, Ended]:
    """Run the command, then again recorded: at the same time, launchers may share a port."""
    return _start(command, bare, recorded=False).end(), _start(command, recorded).end()


def _losses(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if "loss" in line or "evaluation" in line)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended]:
    """The single-process script, bare and recorded."""
    return _run_both(
        [sys.executable, JOBS / "torch_single.py"],
        tmp_path_factory.mktemp("bare"),
        tmp_path_factory.mktemp("recorded"),
    )


def test_a_run_ends_with_how_long_a_step_takes_and_where_it_goes(
    single: tuple[Ended, Ended],
) -> None:
    """It is the sentence that its report begins with; what would help may follow."""
    _, recorded = single
    told = [line for line in recorded.err.splitlines() if line.startswith("profkit: ")][2:]
    last, *rest = told
    assert last.startswith("profkit: a step takes "), recorded.err
    assert all(line.startswith(("profkit: try: ", "profkit: with")) for line in rest)
    said = "the largest part in", "the largest loss is", "the largest known loss is"
    assert any(words in last for words in (*said, "no phase covers", "no other part"))


def test_an_unedited_script_trains_to_the_bit_as_without_profkit(
    single: tuple[Ended, Ended],
) -> None:
    bare, recorded = single
    assert bare.code == recorded.code == 0
    assert recorded.out == bare.out
    assert len(_losses(bare.out)) == 24 + 3


def test_all_its_steps_and_phases_are_there(single: tuple[Ended, Ended]) -> None:
    trace = single[1].trace
    assert verify(trace.path).state is Integrity.COMPLETE
    assert (trace.manifest.state, trace.manifest.framework, trace.manifest.workload) == (
        RunState.COMPLETE,
        "torch",
        "torch_single",
    )
    assert trace.steps["step"].to_pylist() == list(range(24))
    assert set(trace.steps["sample_count"].to_pylist()) == {8}
    assert trace.steps["epoch"].to_pylist() == [step // 8 for step in range(24)]
    measured = trace.steps.filter(trace.steps["instrumented"])["step"].to_pylist()
    assert len(measured) >= 16
    for step in measured:
        own = trace.spans.filter(
            pc.and_(pc.equal(trace.spans["step"], step), pc.equal(trace.spans["depth"], 0))
        )
        assert set(own["phase"].to_pylist()) >= {
            "data",
            "h2d",
            "forward",
            "backward",
            "optimizer",
        }, step


def test_the_losses_in_the_trace_are_the_jobs_own(single: tuple[Ended, Ended]) -> None:
    printed = [
        float(line.split()[1]) for line in single[0].out.splitlines() if line.startswith("loss")
    ]
    steps = single[1].trace.steps
    measured = steps.filter(steps["instrumented"])
    assert measured["loss"].to_pylist() == [printed[step] for step in measured["step"].to_pylist()]


def test_evaluation_is_other_and_no_step(single: tuple[Ended, Ended]) -> None:
    spans = single[1].trace.spans
    evaluation = spans.filter(pc.equal(spans["name"], "evaluation"))
    assert set(evaluation["phase"].to_pylist()) == {"other"}
    assert set(evaluation["step"].to_pylist()) <= {8, 16, 24}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """The single-process script, ended in each way."""
    script = [warm_python(), JOBS / "torch_single.py", "--steps", "4", "--end"]
    started = {
        end: _start([*script, end], tmp_path_factory.mktemp(end))
        for end in ("raise", "_exit", "kill")
    }
    return {end: job.end() for end, job in started.items()}


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        ("raise", 1, "exit code 1"),
        ("_exit", 7, "exit code 7"),
        ("kill", -signal.SIGKILL, "SIGKILL"),
    ],
)
def test_the_exit_code_is_the_jobs_own(
    ends: dict[str, Ended], end: str, code: int, told: str
) -> None:
    ended = ends[end]
    assert ended.code == code
    assert ("the job's own error" in ended.err) == (end == "raise")
    assert ended.run is not None
    assert verify(ended.run).state is Integrity.ENDED_EARLY
    assert told in " ".join(verify(ended.run).reasons)


def test_a_job_that_dies_while_its_files_are_opened_is_still_told(tmp_path: Path) -> None:
    ended = _run(["sh", "-c", 'mkdir "$PROFKIT_RUN/r00000" && exit 7'], tmp_path)
    assert ended.code == 7
    assert ended.run is not None
    assert "exit code 7" in " ".join(verify(ended.run).reasons)


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [("no-such-program", 127, "command not found"), ("./notes.txt", 126, "not executable")],
)
def test_a_command_that_cannot_be_run_gets_the_shells_code(
    tmp_path: Path, command: str, code: int, told: str
) -> None:
    (tmp_path / "notes.txt").write_text("no program")
    ended = _run([command], tmp_path)
    assert (ended.code, ended.run) == (code, None)
    assert ended.err.splitlines() == [f"profkit: {command}: {told}"]


def test_a_command_that_the_system_refuses_leaves_a_run_that_says_so(tmp_path: Path) -> None:
    script = tmp_path / "no_shebang.sh"
    script.write_text("true")
    script.chmod(0o700)
    ended = _run(["./no_shebang.sh"], tmp_path)
    assert ended.code == 125
    assert ended.err.splitlines()[1:] == ["profkit: ./no_shebang.sh: Exec format error"]
    assert ended.trace.manifest.state is RunState.ABORTED
    assert "Exec format error" in ended.trace.manifest.why


def test_the_exit_code_is_the_jobs_own_even_if_the_run_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a defect of profkit")

    monkeypatch.setattr(concluding, "describe_end", fail)
    monkeypatch.chdir(tmp_path)
    assert launch.run_job(["false"], Path("traces")) == launch.Ended(1)


@pytest.mark.parametrize("limit", ["1e-9", "0.5", "1e300", "-1", "nan", "soon"])
def test_a_limit_that_would_disturb_the_job_is_wrong_usage(limit: str, tmp_path: Path) -> None:
    assert main(["run", "-o", str(tmp_path), "--hang-after", limit, "--", "true"]) == 2
    assert not find_runs(tmp_path)


def test_no_command_is_wrong_usage(tmp_path: Path) -> None:
    ended = _run([], tmp_path)
    assert ended.code == 2
    assert "profkit run -- python train.py" in ended.err


def test_disabled_leaves_no_run(tmp_path: Path) -> None:
    code = (
        "import os; path = os.environ.get('PYTHONPATH', ''); "
        "print(os.environ.get('PROFKIT_RUN'), 'attach' in path)"
    )
    ended = _run([sys.executable, "-c", code], tmp_path, env={"PROFKIT_DISABLE": "1"})
    assert (ended.out, ended.run, ended.code) == ("None False\n", None, 0)


def test_processes_that_are_no_ranks_are_said_not_to_be_recorded(tmp_path: Path) -> None:
    """One of the two is recorded, and every page says that the other is missing."""
    trace = _run([sys.executable, JOBS / "shared_model.py"], tmp_path).trace
    assert set(trace.steps["sample_count"].to_pylist()) == {8}
    assert trace.steps.num_rows == 24
    (flag,) = (each for each in trace.manifest.flags if "processes" in each)
    assert "2 processes of the job trained, and 1 of them is recorded" in flag
    assert flag in build_overview(trace).flags
    assert any(flag in caveat for caveat in explain(trace, trace).caveats)


def test_a_job_without_a_framework_is_told_that_nothing_was_recorded(tmp_path: Path) -> None:
    ended = _run([sys.executable, "-c", "print('hello'); raise SystemExit(5)"], tmp_path)
    assert (ended.code, ended.out) == (5, "hello\n")
    assert "nothing was recorded" in ended.err


def test_a_sitecustomize_of_ones_own_still_runs(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins; builtins.mine = 42")
    ended = _run(
        [sys.executable, "-c", "import sys, sitecustomize; print(mine, sitecustomize.__file__)"],
        tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
    )
    assert ended.out == f"42 {tmp_path / 'site' / 'sitecustomize.py'}\n"


@pytest.mark.parametrize("sites", [0, 1], ids=["without", "with"])
@pytest.mark.parametrize("version", ["2.7.18", "3.6.15", "3.8.18", "3.12.1", "3.13.0"])
def test_a_python_of_any_version_starts_as_without_profkit(
    tmp_path: Path, version: str, sites: int
) -> None:
    """A child of the job may be of another version, with a `sitecustomize` of its own or not."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    python = pyenv / "versions" / version / "bin" / "python"
    if not python.exists():
        pytest.skip(f"Python {version} is not installed")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.stderr.write(__name__)")
    path = [str(tmp_path)] * sites
    words = [str(python), "-c", "import sys; print(sys.path)"]
    done = []
    for entries in path, [str(launch.ATTACH_FOLDER), *path]:
        env = {"PYTHONPATH": os.pathsep.join(entries)} if entries else {}
        env["PROFKIT_RUN"] = str(tmp_path)
        done.append(subprocess.run(words, env=env, capture_output=True, text=True, check=True))
    bare, hooked = done
    assert (hooked.stdout, hooked.stderr) == (bare.stdout, bare.stderr)
    assert bool(hooked.stderr) == bool(sites)


def test_a_sigterm_reaches_the_job_and_is_its_end(tmp_path: Path) -> None:
    code = (
        "import signal, time, sys; signal.signal(signal.SIGTERM, lambda *a: sys.exit(9)); "
        "print('up', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [*PROFKIT_RUN, sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 9
    process.stdout.close()


def test_a_signal_that_comes_while_the_job_is_started_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **how: Any) -> None:
            super().__init__(*arguments, **how)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with forwarding() as start:
        assert start(["sleep", "600"]).wait(PATIENCE_S) == -signal.SIGTERM


def test_what_is_ignored_is_ignored_by_the_job_too(tmp_path: Path) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    ignored = f"trap '' HUP; exec {shlex.join(PROFKIT_RUN)} {sys.executable} -c '{code}'"
    done = subprocess.run(
        ["sh", "-c", ignored],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n"


def test_ctrl_c_is_the_jobs_to_handle(tmp_path: Path) -> None:
    code = (
        "import time\ntry: print('up', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt: print('caught'); raise SystemExit(4)"
    )
    process = subprocess.Popen(
        [*PROFKIT_RUN, sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE_S) == 4
    assert process.stdout.read() == b"caught\n"
    process.stdout.close()


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended]:
    """The DistributedDataParallel script with accumulation on two ranks, bare and recorded."""
    return _run_both(
        [*TORCHRUN, JOBS / "torch_ddp.py", "--steps", "24"],
        tmp_path_factory.mktemp("bare"),
        tmp_path_factory.mktemp("recorded"),
    )


def test_two_ranks_train_to_the_bit_as_without_profkit(ddp: tuple[Ended, Ended]) -> None:
    bare, recorded = ddp
    assert (bare.code, recorded.code) == (0, 0), recorded.err
    assert len(_losses(bare.out)) == 2
    assert _losses(recorded.out) == _losses(bare.out)


def test_an_accumulated_step_has_its_parts_and_all_phases(ddp: tuple[Ended, Ended]) -> None:
    trace = ddp[1].trace
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert trace.manifest.world_size == 2
    assert set(trace.steps["sample_count"].to_pylist()) == {8}
    for rank in (0, 1):
        own = trace.spans.filter(
            pc.and_(pc.equal(trace.spans["rank"], rank), pc.equal(trace.spans["step"], 5))
        )
        own = own.filter(pc.or_(pc.equal(own["depth"], 0), pc.equal(own["phase"], "allreduce")))
        counts = {
            phase: own["phase"].to_pylist().count(phase)
            for phase in ("data", "forward", "backward", "optimizer", "allreduce")
        }
        resets = own["name"].to_pylist().count(ZERO_GRAD)
        counts["optimizer"] -= resets
        assert resets == 1
        assert counts == {"data": 2, "forward": 2, "backward": 2, "optimizer": 1, "allreduce": 1}


def test_the_buckets_carry_the_gradients_exactly(ddp: tuple[Ended, Ended]) -> None:
    trace = ddp[1].trace
    gradients = 4 * (64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10)
    sums = trace.collectives.group_by(["rank", "step"]).aggregate([("bytes", "sum")])
    steady = sums.filter(pc.greater_equal(sums["step"], 2))
    assert set(steady["bytes_sum"].to_pylist()) == {gradients}
    by_rank = [
        trace.collectives.filter(pc.equal(trace.collectives["rank"], rank)) for rank in (0, 1)
    ]
    assert sorted(by_rank[0]["sequence"].to_pylist()) == sorted(by_rank[1]["sequence"].to_pylist())


@pytest.fixture(scope="module")
def paddle(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[tuple[Path, Ended], tuple[Path, Ended]]:
    """The DataParallel script on two ranks, of which the second fails at the end, twice."""
    job = [
        warm_python("paddle"),
        "-m",
        "paddle.distributed.launch",
        "--nproc_per_node",
        "2",
        "--backend",
        "gloo",
        JOBS / "paddle_launch.py",
        "--fail",
        "7",
    ]
    folders = tmp_path_factory.mktemp("bare"), tmp_path_factory.mktemp("recorded")
    ended = _run_both(job, *folders)
    return (folders[0], ended[0]), (folders[1], ended[1])


def test_a_paddle_launch_trains_to_the_bit_and_fails_as_without_profkit(
    paddle: tuple[tuple[Path, Ended], tuple[Path, Ended]],
) -> None:
    (bare_folder, bare), (folder, recorded) = paddle
    assert recorded.code == bare.code != 0, recorded.err
    for rank in range(2):
        assert (folder / f"losses{rank}").read_text() == (bare_folder / f"losses{rank}").read_text()
    assert recorded.trace.manifest.why == f"the job ended with exit code {bare.code}"


def test_a_paddle_launch_shows_all_phases_on_both_ranks(
    paddle: tuple[tuple[Path, Ended], tuple[Path, Ended]],
) -> None:
    trace = paddle[1][1].trace
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert set(trace.steps["sample_count"].to_pylist()) == {8}
    for rank in (0, 1):
        own = trace.spans.filter(pc.equal(trace.spans["rank"], rank))
        assert set(own["phase"].to_pylist()) >= {
            "data",
            "forward",
            "backward",
            "allreduce",
            "optimizer",
        }


@pytest.mark.measured
def test_a_rank_late_in_backward_is_named_and_its_lateness_is_waiting(tmp_path: Path) -> None:
    """100 ms slept in rank 1's backward: at least 95 of them are rank 0's waiting."""
    ended = _run(
        [
            *warm_torchrun(),
            JOBS / "torch_ddp.py",
            "--steps",
            "24",
            "--accumulate",
            "1",
            "--late-ms",
            "100",
        ],
        tmp_path,
    )
    trace = ended.trace
    used = select_steps(trace.steps, warm_up=3).steps
    exchange = split_exchange(expose(trace.collectives, trace.spans, used))
    assert exchange is not None
    assert exchange.matched == exchange.collectives
    assert exchange.late_rank == 1
    waiting = exchange.ranks[0].waiting_ns
    assert waiting is not None
    assert 95e6 <= waiting <= 130e6
    assert exchange.ranks[1].waiting_ns is not None
    assert exchange.ranks[1].waiting_ns < 5e6


def test_ones_own_communication_hook_keeps_working(tmp_path: Path) -> None:
    code = """
        import time, torch, torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
        dist.init_process_group("gloo"); torch.manual_seed(0)
        calls = []
        def mine(state, bucket):
            calls.append(bucket.index()); return fp16_compress_hook(state, bucket)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 4))
        model.register_comm_hook(None, mine)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            model(torch.randn(4, 32)).sum().backward(); optimizer.step(); optimizer.zero_grad()
        # Two ranks that print at once may mix their lines.
        with open(f"loss{dist.get_rank()}", "w") as file:
            print("loss", len(calls), repr(float(model.module.weight.detach().sum())), file=file)
        time.sleep(0.2)  # as torch_ddp.py: gloo's threads let go of the last bucket
        dist.destroy_process_group()
    """
    script = tmp_path / "own_hook.py"
    script.write_text("\n".join(line[8:] for line in code.splitlines()))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _, recorded = _run_both([*warm_torchrun(), script], tmp_path / "a", tmp_path / "b")
    assert recorded.code == 0, recorded.err
    said = {
        folder: [(tmp_path / folder / f"loss{rank}").read_text() for rank in range(2)]
        for folder in "ab"
    }
    assert said["a"] == said["b"]
    assert all(line.startswith("loss 8 ") for line in said["a"])
    assert recorded.trace.collectives.num_rows > 0


def test_a_rank_that_dies_ends_the_job_as_without_profkit(tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, torch, torch.distributed as dist, time\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(200):\n"
        "    model(torch.randn(4, 8)).sum().backward(); optimizer.step()\n"
        "    optimizer.zero_grad(); time.sleep(0.02)\n"
        "    if step == 60 and dist.get_rank() == 1: os._exit(3)\n"
    )
    ended = _run([*warm_torchrun(), script], tmp_path)
    assert ended.code == 1
    assert ended.trace.manifest.state is RunState.ABORTED
    found = verify(ended.trace.path)
    assert found.state is Integrity.ENDED_EARLY
    assert ended.trace.steps.num_rows > 60
