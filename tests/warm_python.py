"""The two sides of `tests.warm`: `serve` forks programs, `ask` has one run in a fork.

    python warm_python.py SOCKET [MODULE ...]

The server ends when somebody writes to its stdin or closes that, or when its parent has ended:
other children of the parent may hold the pipe open.
"""

import contextlib
import importlib
import io
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

HEED = ("OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONOPTIMIZE", "PYTHONUTF8")
"""Variables that are read when Python or a framework starts."""

PASSED_ON = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
Request = dict[str, Any]
NUMBER = struct.Struct("=i")
LOOK_S = 1.0
COLD = -1
"""The answer of the server in place of a process id: run Python itself."""


def ask(place: str, real: str, own: str) -> None:
    """Run this process's arguments in a fork of the server, and end as the fork does."""
    words = sys.argv[1:]
    if not _is_plain(words):
        os.execv(real, [real, *words])
    ignored = [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN]
    processes: list[int] = []
    early: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        if processes:
            os.kill(processes[0], number)
        else:
            early.append(number)

    for number in set(PASSED_ON) - set(ignored):
        signal.signal(number, pass_on)
    request = {"words": words, "env": dict(os.environ), "cwd": os.getcwd(), "python": own}
    content = json.dumps({**request, "ignored": ignored}).encode()
    server = socket.socket(socket.AF_UNIX)
    server.connect(place)
    socket.send_fds(server, [NUMBER.pack(len(content))], [0, 1, 2])
    server.sendall(content)
    (process,) = NUMBER.unpack(_read(server, NUMBER.size))
    if process == COLD:
        os.execv(real, [real, *words])  # which resets the handlers
    processes.append(process)
    for signal_number in early:
        os.kill(process, signal_number)
    _end_like(*NUMBER.unpack(_read(server, NUMBER.size)))


def _is_plain(words: list[str]) -> bool:
    """Return true for a script or a module without options of Python but `-u`."""
    if words[:1] == ["-u"]:
        words = words[1:]
    if words[:1] == ["-m"]:
        words = words[1:]
    return bool(words) and not words[0].startswith("-")


def _end_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _read(source: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        more = source.recv(size - len(parts))
        if not more:
            raise EOFError("the other side has ended")
        parts += more
    return parts


class Server:
    """Accepts requests and forks. In a fork, `serve` returns the request that it is to run."""

    def __init__(self, place: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(place)
        self.listener.listen(64)
        self.parent = os.getppid()
        self.woken, self.waker = socket.socketpair()
        self.waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        self.clients: dict[int, socket.socket] = {}

    def serve(self) -> Request:
        import select

        while True:
            sources: list[Any] = [self.listener, self.woken, 0, *self.clients.values()]
            ready, _, _ = select.select(sources, [], [], LOOK_S)
            if 0 in ready or os.getppid() != self.parent:
                for process in self.clients:
                    _end(process)
                os._exit(0)
            if self.woken in ready:
                self.woken.recv(4096)
                self._reap()
            for process, client in list(self.clients.items()):
                if client in ready:  # a client says nothing more, so this one has ended
                    _end(process)
                    self.clients.pop(process).close()
            if self.listener in ready:
                request = self._accept()
                if request is not None:
                    return request

    def _reap(self) -> None:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            client = self.clients.pop(process, None)
            if client is not None:
                _tell(client, status)
                client.close()

    def _accept(self) -> Request | None:
        """Fork for a new client; return its request in the fork, and nothing in the server."""
        client, _ = self.listener.accept()
        content, files, _, _ = socket.recv_fds(client, NUMBER.size, 3)
        request: Request = json.loads(_read(client, *NUMBER.unpack(content)))
        environ = request["env"]
        process = COLD
        if all(environ.get(name) in {None, os.environ.get(name)} for name in HEED):
            process = os.fork()
        if not process:
            self._leave(client, files)
            return request
        for file in files:
            os.close(file)
        _tell(client, process)
        if process == COLD:
            client.close()
        else:
            self.clients[process] = client
        return None

    def _leave(self, client: socket.socket, files: list[int]) -> None:
        """Let go of what is the server's, and take the client's files."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for each in (self.listener, self.woken, self.waker, client, *self.clients.values()):
            each.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)


def _tell(client: socket.socket, number: int) -> None:
    try:
        client.sendall(NUMBER.pack(number))
    except OSError:
        return  # it was killed


def _end(process: int) -> None:
    """Kill a fork and its children; before it has a group of its own, the fork alone."""
    for kill in (os.killpg, os.kill):
        try:
            kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


def become(request: Request, base: list[str]) -> None:
    """Make this fork what Python is when it has run `site`, but for the modules it has."""
    import random

    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    is_unbuffered = request["words"][:1] == ["-u"] or bool(os.environ.get("PYTHONUNBUFFERED"))
    files = [io.FileIO(number, mode, closefd=False) for number, mode in enumerate("rww")]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(files[0]))
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(files[1]), line_buffering=files[1].isatty(), write_through=is_unbuffered
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(files[2]), errors="backslashreplace", line_buffering=True
    )
    sys.executable = request["python"]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.pycache_prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    sys.orig_argv = [sys.executable, *request["words"]]
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*(os.path.abspath(entry) for entry in given if entry), *base]
    importlib.invalidate_caches()
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def run(words: list[str]) -> None:
    """Run the program as the main module, as Python does."""
    import types

    words = words[1:] if words[0] == "-u" else words
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if words[0] == "-m":
        runner: Any = importlib.import_module("runpy")
        sys.argv = ["-m", *words[2:]]
        sys.path.insert(0, os.getcwd())
        runner._run_module_as_main(words[1])
        return
    sys.argv = list(words)
    sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))
    path = os.path.abspath(words[0])
    vars(main).update(__file__=path, __builtins__=__builtins__)
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, vars(main))


if __name__ == "__main__":
    del sys.path[0]
    BASE = list(sys.path)
    SERVER = Server(sys.argv[1])
    for NAME in sys.argv[2:]:
        importlib.import_module(NAME)
    print("ready", flush=True)
    REQUEST = SERVER.serve()
    become(REQUEST, BASE)
    run(REQUEST["words"])
