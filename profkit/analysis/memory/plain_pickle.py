"""Pickles of plain containers. Nothing in a file is called, whatever it asks for.

Loading a pickle can run any code, and a short one can ask for any amount of memory. So a scan reads
all of it first. It allows dictionaries, lists, texts, numbers and tuples of numbers, and refuses
every other opcode by its place. What passes can neither name a class nor reserve memory ahead of
its content, and is small enough to be loaded at the speed of the unpickler in C.
"""

from __future__ import annotations

import gc
import io
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any, NoReturn

from profkit.errors import UnreadableError
from profkit.text import byte_size, safe_text

LARGEST_BYTES = 256_000_000
"""A hostile pickle takes up to 15 times its size in memory, which is within a machine's."""
LONGEST_TEXT = 1_000_000
BYTES_PER_CONTAINER = 10
"""An event without a stack has 2 in 45 bytes; an empty one takes 64 bytes of memory."""
ALLOWED_CONTAINERS = 10_000

_INTEGER = rb"K.|M..|J....|\x8a\x00|" + rb"|".join(
    rb"\x8a%s.{%d}" % (re.escape(bytes([size])), size) for size in range(1, 10)
)
_TUPLES = rb"|".join(rb"(?:%s){%d}\x%d" % (_INTEGER, size, 84 + size) for size in (1, 2, 3))
"""Tuples of numbers alone: to hash deeply nested ones, as a key, overflows the stack."""
_RUN = re.compile(
    rb"(?:h.|j.{4}|[\x94ue]|" + _TUPLES + rb"|" + _INTEGER + rb"|"
    rb"G.{8}|[N()\x88\x89sa]|\x95.{8}|\x80[\x02-\x05]){1,500}",
    re.DOTALL,
)
_SIZED = {0x8C: 1, 0x58: 4, 0x71: 1, 0x72: 4}
"""Opcodes of texts and memos, with the bytes of the number behind them."""
_TEXTS = b"\x8cX"
_CONTAINERS = b"}]"
_NAMES = {ord(each.code): each.name for each in pickletools.opcodes}
_ASKING = re.compile("(?:STACK_)?GLOBAL|REDUCE|BUILD|INST|.*OBJ|EXT|.*PERSID|.*BUFFER")
"""Opcodes that call code, or take something from outside of the file."""


class _RefusedError(Exception):
    """A pickle that holds what profkit does not load, and why."""


class _Plain(pickle.Unpickler):
    """The unpickler in C without names, behind the scan."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError("it asks for a class")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it asks for something outside of it")


def load_plain(path: Path, remedy: str) -> Any:
    """Return the content of a pickle, or raise an error with the place and the remedy."""
    shown = safe_text(str(path))
    collects = gc.isenabled()
    gc.disable()  # it would look at each of the many new containers again and again
    try:
        content = _read(path)
        _check(content)
        return _Plain(io.BytesIO(content)).load()
    except OSError as error:
        raise UnreadableError(f"{shown}: {error.strerror}") from error
    except _RefusedError as error:
        raise UnreadableError(f"{shown}: {error}; {remedy}") from None
    except Exception as error:  # a damaged pickle raises whatever its opcodes stumble over
        reason = safe_text(str(error) or type(error).__name__)[:200]
        raise UnreadableError(f"{shown}: a damaged pickle: {reason}; {remedy}") from error
    finally:
        if collects:
            gc.enable()


def _read(path: Path) -> bytes:
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        limit = byte_size(LARGEST_BYTES)
        raise _RefusedError(f"{byte_size(size)} is too large for a snapshot (limit {limit})")
    return path.read_bytes()


def _check(content: bytes) -> None:
    """Raise an error unless every opcode up to the end is allowed."""
    place = puts = containers = 0
    most = ALLOWED_CONTAINERS + len(content) // BYTES_PER_CONTAINER
    while content[place : place + 1] != pickle.STOP:
        run = _RUN.match(content, place)
        if run:
            place = run.end()
            continue
        code = (content[place : place + 1] or b"\0")[0]
        behind = place + 1 + _SIZED.get(code, 0)
        number = int.from_bytes(content[place + 1 : behind], "little")
        problem = ""
        if code in _CONTAINERS:
            containers += 1
            if containers > most:
                problem = f"more than {most:,} lists and dictionaries"
        elif code in _TEXTS:
            behind += number
            if number > LONGEST_TEXT:
                problem = f"a text of {byte_size(number)}"
        elif code in _SIZED:
            puts += 1
            if number != puts - 1:
                problem = "a memo out of order"
        else:
            problem = _describe(code, len(content) - place)
        if problem:
            raise _RefusedError(f"{problem}, at byte {min(place, len(content)):,}")
        place = behind


def _describe(code: int, left: int) -> str:
    """Return why an opcode is not allowed."""
    name = _NAMES.get(code, "")
    if _ASKING.match(name):
        return f"it asks to run code ({name}), which profkit never does"
    if left < 12:
        return "it ends in the middle of its content"
    return f"something else than lists, texts and numbers ({name or 'no pickle'})"
