"""The interface in a real terminal: it shows its figures, and sends nothing hostile."""

from __future__ import annotations

import fcntl
import functools
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profkit.text import percent, significant
from profkit.tui import headless
from profkit.tui.app import load_screens
from tests.hostile import UNSAFE, hostile_run

PATIENCE_S = 120
QUIET_S = 0.5
COLUMNS, ROWS = 120, 40
ENVIRONMENT = {
    "TERM": "xterm-256color",
    "COLORTERM": "truecolor",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
}

CONTROL = re.compile(r"\x1b(?:\[[0-9;:?<>=$ ]*[@-~]|[()][0-9A-Z]|[=>78cM]|\]22;[a-z]*\x07)")
"""Textual's own control sequences; titles, clipboard, links and device control are not allowed."""

HOSTILE = ("\x1b]", "\x1bP", "\x1b[31mred", "\x07", "\x9b", "\x00")


def _environment(cache: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"TMUX", "NO_COLOR", "SSH_CONNECTION", "COLUMNS", "LINES"}
    }
    return {**kept, **ENVIRONMENT, "PROFKIT_CACHE": str(cache)}


class Tmux:
    """One tmux session with its own server."""

    def __init__(self, socket: Path, environment: dict[str, str]) -> None:
        self._command = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        self._environment = environment

    def call(self, *arguments: str) -> str:
        return subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def keys(self, *keys: str) -> None:
        self.call("send-keys", *keys)

    def wait_for(self, *words: str) -> str:
        """Wait until all these words are on the screen, and return the screen."""
        return self._wait(
            lambda screen: all(word in screen for word in words), f"{words} did not come up"
        )

    def wait_until_gone(self, words: str) -> None:
        self._wait(lambda screen: words not in screen, f"'{words}' stayed")

    def _wait(self, done: Callable[[str], bool], otherwise: str) -> str:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            screen = self.call("capture-pane", "-p")
            if done(screen):
                return screen
            time.sleep(0.1)
        pytest.fail(f"{otherwise}:\n{screen}")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed (apt-get install tmux)")
    session = Tmux(tmp_path / "socket", _environment(tmp_path / "cache"))
    yield session
    subprocess.run(
        ["tmux", "-S", str(tmp_path / "socket"), "kill-server"], capture_output=True, check=False
    )


@pytest.mark.alone
def test_tmux_shows_the_figures_of_the_twins(folder: Path, tmux: Tmux) -> None:
    command = f"exec {sys.executable} -m profkit tui {folder}"
    tmux.call("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), command)
    speeds = {
        run["run"]: significant(run["throughput_samples_per_s"]["value"], 4)
        for run in headless.runs_twin(folder)["runs"]
    }
    tmux.wait_for(*speeds.values())
    tmux.keys("/")
    tmux.wait_until_gone("Enter open")  # while the filter has the keys
    tmux.keys("-l", "slow")
    tmux.wait_for("filter 'slow': 1 of 3")
    tmux.keys("Enter")
    tmux.wait_for("Enter open")
    tmux.keys("Enter")
    view = headless.twin(folder / "slow", "overview")
    screen = tmux.wait_for(
        "Where a step goes",
        f"{significant(view['throughput_samples_per_s']['value'], 4)} samples/s",
    )
    for part in view["parts"]:
        assert re.search(rf"{part['name']} .*{percent(part['share']['value'])}", screen)
    tmux.keys("?")
    tmux.wait_for("Keys of Overview")
    tmux.keys("Escape")
    tmux.wait_until_gone("Keys of")
    tmux.keys("3")
    tmux.wait_for("kernels, ")
    tmux.keys("q")
    end = time.monotonic() + PATIENCE_S
    while (
        subprocess.run(
            ["tmux", "-S", str(tmux._command[2]), "has-session"], capture_output=True, check=False
        ).returncode
        == 0
    ):
        assert time.monotonic() < end, "q did not leave"
        time.sleep(0.1)


def _is_after(end: float, _: str) -> bool:
    return time.monotonic() > end


class Terminal:
    """A pty with a program in it; everything that the program writes is kept."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.written = b""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, [sys.executable, *arguments], environment)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def read_until(self, done: Callable[[str], bool]) -> None:
        """Read until the text written since then satisfies `done`, or the program ends."""
        begin = len(self.written)
        end = time.monotonic() + PATIENCE_S
        while not done(self.written[begin:].decode(errors="replace")):
            assert time.monotonic() < end, self.written[begin:]
            if not select.select([self._terminal], [], [], 0.1)[0]:
                continue
            try:
                piece = os.read(self._terminal, 65_536)
            except OSError:  # the program has ended
                return
            if not piece:
                return
            self.written += piece

    def read_until_quiet(self) -> None:
        """Read until nothing more is drawn; no assertion depends on how long that takes."""
        before = -1
        while len(self.written) > before:
            before = len(self.written)
            end = time.monotonic() + QUIET_S
            self.read_until(functools.partial(_is_after, end))

    def press(self, key: str) -> None:
        os.write(self._terminal, key.encode())

    def leave(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        self.read_until(lambda _: False)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        os.close(self._terminal)
        return code


def test_no_control_byte_of_a_hostile_run_reaches_the_terminal(tmp_path: Path) -> None:
    """Every screen of a run with hostile texts is harmless without Textual's own sequences."""
    run = hostile_run(tmp_path / "runs" / "evil [b]run \u202e", steps=30)
    terminal = Terminal(["-m", "profkit", "tui", str(run)], _environment(tmp_path / "cache"))
    terminal.read_until(lambda text: "Confidence and data quality" in text)
    for kind in load_screens().values():
        terminal.press(kind.KEY)
        terminal.read_until_quiet()
    terminal.press("\x1b")
    terminal.read_until(lambda text: "samples/s" in text)
    terminal.press("q")
    assert terminal.leave() == 0
    text = terminal.written.decode(errors="replace")
    assert "\\x1b" in text, "the hostile texts were shown, made visible"
    left = CONTROL.sub("", text).replace("\r", "").replace("\n", "")
    assert not UNSAFE.search(left), sorted({repr(found) for found in UNSAFE.findall(left)})
    assert not any(payload in left for payload in HOSTILE)


def test_a_crash_exits_with_an_error(folder: Path, tmp_path: Path) -> None:
    code = "\n".join(
        [
            "import sys",
            "from profkit import cli",
            "from profkit.tui.app import ProfkitApp",
            "def fall(self): raise RuntimeError('it fell')",
            "ProfkitApp.on_mount = fall",
            f"sys.exit(cli.main(['tui', {str(folder)!r}]))",
        ]
    )
    terminal = Terminal(["-c", code], _environment(tmp_path / "cache"))
    assert terminal.leave() == 1
    assert "it fell" in terminal.written.decode(errors="replace")
