"""Python that has imported a framework: programs run in forks of one process, and start at once.

`Warm.python` is an executable that takes the place of `sys.executable` in the command of a job. It
hands its arguments, environment, folder and open files to a server, which forks; it passes signals
on, and ends as the fork ends. If a command has options that a fork cannot heed, it runs Python.
A fork has the framework when the program begins. What depends on the import itself is tested with
real processes: see `tests/harmless`, and the first tests of `instrument/test_run_command.py`.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SCRIPT = Path(__file__).with_name("warm_python.py")
NOT_HANDED_ON = ("PYTHONPATH", "PYTHONSTARTUP")
MODULES = {"torch": ("torch", "torch.utils.data", "torch._dynamo"), "paddle": ("paddle",)}


@functools.cache
def warm_python(framework: str = "torch") -> str:
    """Return an executable whose programs find a framework imported; the server is started once."""
    return Warm(MODULES[framework]).python


class Warm:
    """A server with some modules imported, and the executable whose programs run in its forks."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="warm-"))  # the name of a socket is short
        self._owner = os.getpid()
        socket = self._folder / "socket"
        environ = {name: text for name, text in os.environ.items() if name not in NOT_HANDED_ON}
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(socket), *modules],
            env={**environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self.python = str(self._folder / "python")
        Path(self.python).write_text(
            f"#!{sys.executable} -IS\n"
            f"import sys; sys.path.append({str(SCRIPT.parent)!r})\n"
            "from warm_python import ask\n"
            f"ask({str(socket)!r}, {sys.executable!r}, {self.python!r})\n"
        )
        Path(self.python).chmod(0o700)
        atexit.register(self.end)

    def end(self) -> None:
        """End the server, which ends what still runs."""
        atexit.unregister(self.end)
        if os.getpid() != self._owner:  # in a fork of this process
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"end\n")  # another fork may hold the pipe open
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder)
