"""A program made to break readers of stacks, and a check of what was read of it.

Its truth is its source: a line can only have called what it names, and each function that is made
while it runs has the same number in its file, in its name and in its line.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

from profkit.eye.reader import Stack, StackReader

PROGRAM = """\
import asyncio, gc, itertools, os, random, sys, threading, time

def leaf(number):
    return number + 1

def other_leaf(number):
    return number - 1

def first(number):
    return leaf(number)

def second(number):
    return other_leaf(number)

def recurse(depth):
    return recurse(depth - 1) if depth else leaf(depth)

def generate(number):
    yield leaf(number)
    yield from generate_inner(number)

def generate_inner(number):
    yield other_leaf(number)

def key(number):
    return leaf(number)

async def work(number):
    await asyncio.sleep(0)
    return leaf(number)

async def gather():
    await asyncio.gather(*(work(number) for number in range(20)))

class Item:
    def __init__(self):
        self.own = self

    def __del__(self):
        leaf(1)

def calls():
    for number in range(2000):
        first(number)
        second(number)

def deep():
    for depth in (3, 90, 400):
        recurse(depth)

def generators():
    for number in range(300):
        list(generate(number))

def sorting():
    sorted(range(300), key=key)

def coroutines():
    asyncio.run(gather())

def garbage():
    for _ in range(300):
        Item()
    gc.collect()

def raising():
    for number in range(300):
        try:
            fail(number)
        except ValueError:
            leaf(number)

def fail(number):
    raise ValueError(leaf(number))

def made():
    for _ in range(40):
        number = next(numbers) % 997
        text = chr(10) * (number % 89) + f"def made_{number}(x):" + chr(10) + " return x + 1"
        space = {}
        text += chr(10) + f"for _ in range(30): made_{number}(1)"
        exec(compile(text, f"<made {number}>", "exec"), space)

def replaced():
    for _ in range(40):
        number = next(numbers) % 997
        more = dict(co_qualname=f"made_{number}") if sys.version_info >= (3, 11) else {}
        more.update(co_filename=f"<made {number}>", co_firstlineno=number % 89 + 1)
        code = template.__code__.replace(**more, co_name=f"made_{number}")
        function = type(template)(code, globals())
        for _ in range(9): function(1)

def template(x):
    return x + 1

def threads():
    each = [threading.Thread(target=calls_shortly) for _ in range(4)]
    for thread in each: thread.start()
    for thread in each: thread.join()

def calls_shortly():
    for number in range(50):
        first(number)

def forks():
    pid = os.fork()
    if not pid:
        os._exit(leaf(-1))
    os.waitpid(pid, 0)

def sleeping():
    time.sleep(0.001)

numbers = itertools.count()
PARTS = dict(calls=calls, deep=deep, generators=generators, sorting=sorting)
PARTS.update(coroutines=coroutines, garbage=garbage, raising=raising, made=made)
PARTS.update(replaced=replaced, threads=threads, forks=forks, sleeping=sleeping)

def main(names):
    while True:
        for name in names:
            PARTS[name]()  # any of PARTS

if __name__ == "__main__":
    print(threading.get_ident(), flush=True)
    sys.setrecursionlimit(2000)
    main(sys.argv[1:] or list(PARTS))
"""
LINES = PROGRAM.split("\n")
COMPREHENSIONS = frozenset({"<genexpr>", "<lambda>", "<listcomp>"})
ANYWHERE = (*COMPREHENSIONS, "__del__", "__init__", "calls_shortly")
_MADE = re.compile(r"<made (\d+)>")


def _parts() -> tuple[str, ...]:
    space: dict[str, Any] = {"__name__": "parts"}
    exec(PROGRAM, space)
    return tuple(space["PARTS"])


PARTS = _parts()


def function_at(line: int) -> str:
    """Return the name of the function that a line of the program belongs to."""
    while line > 0 and LINES[line - 1].startswith((" ", "\t")):
        found = re.match(r"\s+def (\w+)", LINES[line - 1])
        if found:
            return found[1]
        line -= 1
    found = re.match(r"(?:async )?def (\w+)", LINES[line - 1])
    return found[1] if found else "<module>"


def what_is_wrong(stack: Stack, path: str) -> str:
    """Return what cannot be true of a stack; nothing if all of it can."""
    shown = [(code.co_filename, code.co_qualname.rpartition(".")[2], line) for code, line in stack]
    if shown and len(shown) < 126 and shown[-1][1] not in {"<module>", "_bootstrap"}:
        return f"it begins in {shown[-1]}"
    callee = ""
    for file, name, line in shown:
        made, problem = _MADE.fullmatch(file), ""
        if made:
            problem = _wrong_of_made(int(made[1]), name, line)
        elif file == path and line:  # Python gives some instructions no line
            problem = _wrong_of_line(name, line, callee)
        if problem:
            return problem
        callee = name if made or file == path else ""  # a library may call anything
    return ""


def _wrong_of_made(number: int, name: str, line: int) -> str:
    first = number % 89 + 1
    lines = {f"made_{number}": (first, first + 1), "<module>": (0, 1, first, first + 2)}
    return "" if line in lines.get(name, ()) else f"<made {number}>:{line} {name}"


def _wrong_of_line(name: str, line: int, callee: str) -> str:
    if name not in COMPREHENSIONS and function_at(line) != name:
        return f"line {line} is not in {name}"
    text = LINES[line - 1]
    wanted = {**dict.fromkeys(PARTS, "PARTS"), "<module>": "exec", **dict.fromkeys(ANYWHERE, "")}
    called = wanted.get(callee, "function(" if callee.startswith("made_") else callee)
    return "" if called in text else f"{callee} called by line {line}: {text.strip()}"


def read_program(
    python: str, version: tuple[int, int], path: str, reads: int, parts: Sequence[str] = ()
) -> tuple[StackReader, Counter[str], int | None]:
    """Read a running program so often; return the reader, what is wrong, and its exit code."""
    with open(path, "w") as file:
        file.write(PROGRAM)
    wrong: Counter[str] = Counter()
    with subprocess.Popen([python, path, *parts], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            number = int(process.stdout.readline())
            reader = StackReader(process.pid, version)
            thread = reader.find(number)
            for _ in range(reads):
                stack = reader.read(thread)
                if stack is not None:
                    wrong[what_is_wrong(stack, path)] += 1
            code = process.poll()
            reader.close()
        finally:
            process.kill()
    return reader, wrong, code


def main() -> None:
    """Read each part of the program, for each Python that is given."""
    reads, folder = int(sys.argv[1]), tempfile.mkdtemp()  # a program imports what is next to it
    for python in sys.argv[2:] or [sys.executable]:
        told = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2])"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        major, minor = map(int, told.stdout.split())
        for part in (*PARTS, ""):
            reader, wrong, code = read_program(
                python, (major, minor), f"{folder}/breaker.py", reads, [part] if part else []
            )
            right = wrong.pop("", 0)
            share = reader.torn / reader.taken
            print(f"{major}.{minor} {part or 'all'}: {right} right, torn {share:.2%}, exit {code}, "
                  f"wrong {wrong.most_common(4)}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
