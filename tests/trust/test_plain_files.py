"""Files of a run that are no plain files, such as a folder of a stranger may hold.

To open a pipe waits for its writer, and a link may lead to a file without an end.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from profkit.agents.answers import Answers
from profkit.analysis.views.runs import list_runs
from profkit.cli import main
from profkit.errors import ExitCode, ProfkitError
from profkit.testing import synthetic_trace
from profkit.trace.tail import RunTail

MOST_S = 20
MOST_MEMORY = 2 << 30
KNOWN_CODES = set(ExitCode)
OVERSIZED = 1 << 40

OF_STATUS = (
    *("status/00000-host-1.rank.json", "status/00000-host-8.worker.json"),
    *("status/host.host.json", "status/host.alarms.jsonl", "status/00000-host-1.stack.json"),
)
OF_FIGURES = {
    "run.json": "run.json: ",
    "r00000/rank.json": "rank.json: ",
    "r00000/end.json": "end.json: ",
    "r00000/steps.arrows": "rank 0: steps: ",
    "r00000/strings.arrows": "rank 0: strings: ",
    "r00000/recent/00000000-steps.arrows": "rank 0: steps: ",
}
"""Files by the words in which `verify` names them."""

HIDDEN = (".attached",)
FILES = (*OF_STATUS, *OF_FIGURES, *HIDDEN)

NOT_FILES = ("pipe", "endless", "link")
SHAPES = (*NOT_FILES, "folder", "oversized")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    synthetic_trace(folder / "good", steps=20)
    bad = synthetic_trace(folder / "bad", steps=20)
    status = Path("traces/recorded-h100-hang/status").absolute()
    shutil.copytree(status, bad / "status")
    for path in (bad / "status").iterdir():
        path.rename(path.with_name(path.name.replace("vm-1374", "host-1").replace("vm.", "host.")))
    for name in FILES:
        (bad / name).parent.mkdir(exist_ok=True)
        (bad / name).touch()
    shutil.copy(bad / "r00000/steps.arrows", bad / "r00000/recent/00000000-steps.arrows")
    return folder


@contextmanager
def replaced(path: Path, shape: str) -> Iterator[None]:
    """Put something else in the place of a file."""
    kept = path.parents[len(path.parts) - path.parts.index("bad")] / "kept"
    path.rename(kept)
    if shape == "pipe":
        os.mkfifo(path)
    elif shape == "folder":
        path.mkdir()
    elif shape == "oversized":
        shutil.copy(kept, path)
        os.truncate(path, OVERSIZED)
    else:
        path.symlink_to("/dev/zero" if shape == "endless" else kept)
    try:
        yield
    finally:
        path.rmdir() if shape == "folder" else path.unlink()
        kept.rename(path)


@contextmanager
def limited() -> Iterator[None]:
    """End what waits, and what takes the memory of the machine."""

    def end(*_: object) -> None:
        raise AssertionError(f"still busy after {MOST_S} s")

    before, most = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, most))
    handler = signal.signal(signal.SIGALRM, end)
    signal.alarm(MOST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, (before, most))


Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    def ask(*words: str | Path) -> tuple[int, str]:
        with limited():
            code = main(list(map(str, words)))
        said = capfd.readouterr()
        return code, " ".join((said.out + said.err).split())  # long paths are on lines of their own

    return ask


def follow(run: Path) -> None:
    """Read the run as a reader does while it is written."""
    with limited(), suppress(ProfkitError):
        RunTail(run, marks=True).look()


def test_what_is_no_plain_file_is_reported_and_never_waited_for(runs: Path, ask: Ask) -> None:
    bad = runs / "bad"
    for name in FILES:
        for shape in SHAPES:
            place = f"{name} is of the kind {shape}"
            with replaced(bad / name, shape):
                codes = {}
                codes["why"], why = ask("why", bad)
                codes["verify"], verified = ask("verify", bad)
                follow(bad)
                with limited():
                    listed = [head.name for head in list_runs(runs)]
                    tools = [run["run"] for run in Answers(runs).runs()["runs"]]
            assert KNOWN_CODES.issuperset(codes.values()), place
            assert sorted(listed) == sorted(tools) == ["bad", "good"], place
            if name in OF_STATUS:
                assert f"{name}: " in why, f"{place}: {why}"
            if name in OF_FIGURES or shape in NOT_FILES:
                words = OF_FIGURES.get(name, f"{name}: ")
                assert words in verified, f"{place}: {verified}"


def test_commands_that_show_figures_never_wait(runs: Path, ask: Ask, tmp_path: Path) -> None:
    bad, good = runs / "bad", runs / "good"
    for name in OF_FIGURES:
        shape = "endless" if name.endswith("json") else "pipe"
        with replaced(bad / name, shape):
            for words in (
                ("report", bad),
                ("explain", good, bad),
                ("sql", bad, "SELECT count(*) FROM steps"),
                ("export", bad, "--format", "csv", "-w", tmp_path / f"{Path(name).name}.csv"),
            ):
                code, said = ask(*words)
                assert code in KNOWN_CODES, f"{words[0]}, {name} is of the kind {shape}: {said}"
                assert "Traceback" not in said, f"{words[0]}, {name} is of the kind {shape}"
