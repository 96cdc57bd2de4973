"""Where the parts of a running interpreter are, for each version of Python.

From 3.13 on, Python says so itself, in `_Py_DebugOffsets`. For older versions, the offsets are
those of their headers. They hold for Linux on 64 bits.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, replace

from profkit.eye.memory import Memory

RUNTIME = b"_PyRuntime"
COOKIE = b"xdebugpy"
LARGEST_ELF = 256_000_000
SHT_DYNSYM, PT_LOAD, ET_EXEC = 11, 1, 2


class UnknownPythonError(Exception):
    """A version of Python, or a build of it, that cannot be read."""


@dataclass(frozen=True)
class Layout:
    """Offsets within the structures of one version."""

    version: tuple[int, int]
    interpreters: int
    threads: int
    next_thread: int
    thread_id: int
    frame_of_thread: int
    """In the thread: the pointer to its frame, or to the one that has the frame at `entered`."""
    entered: int | None
    back: int
    code_of_frame: int
    instruction: int
    owner: int | None
    """The byte that says who owns the frame; `None` before 3.11."""
    code: tuple[int, int, int, int, int]
    """In the code: file, name, line table, first line, first instruction."""
    marks: frozenset[int] = frozenset()
    """Owners of frames that hold no code of Python."""
    ascii_size: int = 40
    """Size of the head of a string of ASCII."""

    @property
    def frame_size(self) -> int:
        """Size of what is read of a frame."""
        last = max(self.back, self.code_of_frame, self.instruction)
        return max(last + 8, (self.owner or 0) + 1)

    @property
    def thread_size(self) -> int:
        return 8 + max(self.next_thread, self.thread_id, self.frame_of_thread)


_3_10 = Layout((3, 10), 32, 8, 8, 176, 24, None, 24, 32, 96, None, (104, 112, 120, 40, 48))
_3_11 = Layout((3, 11), 40, 16, 8, 152, 56, 8, 48, 32, 56, 69, (112, 128, 136, 72, 184))
_3_12 = Layout((3, 12), 40, 72, 8, 136, 56, 0, 8, 0, 56, 70, (112, 128, 136, 68, 192))

OLDER = {
    (3, 10): replace(_3_10, ascii_size=48),
    (3, 11): replace(_3_11, ascii_size=48),
    (3, 12): replace(_3_12, marks=frozenset({3})),
}

_GROUPS = {
    (3, 13): (3, 13, 9, 6, 10),
    (3, 14): (3, 16, 9, 8, 11),
}
"""Numbers of fields for runtime, interpreter, thread, frame and code in `_Py_DebugOffsets`."""


def find_layout(memory: Memory, runtime: int, version: tuple[int, int]) -> Layout:
    """Return the layout of a process with this version; `UnknownPythonError` if there is none."""
    name = ".".join(map(str, version))
    if version in OLDER:
        return OLDER[version]
    counts = _GROUPS.get(version)
    if counts is None:
        raise UnknownPythonError(f"Python {name} is not known")
    head = memory.read([(runtime, 24 + 8 * sum(counts))])
    if head is None or not head.startswith(COOKIE):
        raise UnknownPythonError(f"this build of Python {name} does not say where its parts are")
    numbers = struct.unpack(f"{len(head) // 8 - 1}Q", head[8:])
    if numbers[1]:
        raise UnknownPythonError(f"Python {name} without a lock is not known")
    groups, place = [], 2
    for count in counts:
        groups.append(numbers[place : place + count])
        place += count
    of_runtime, of_interpreter, of_thread, of_frame, of_code = groups
    return Layout(
        version,
        of_runtime[2],
        of_interpreter[3],
        of_thread[2],
        of_thread[5],
        of_thread[4],
        None,
        of_frame[1],
        of_frame[2],
        of_frame[3],
        of_frame[5],
        (of_code[1], of_code[3], of_code[4], of_code[5], of_code[9]),
        frozenset({3} if version == (3, 13) else {3, 4}),
    )


def find_runtime(pid: int) -> int:
    """Return the address of `_PyRuntime` in a process."""
    for path, start in _mapped_pythons(pid):
        try:
            with open(f"/proc/{pid}/root{path}", "rb") as file:
                found = _find_symbol(file.read(LARGEST_ELF))
        except (OSError, struct.error):
            continue
        if found is not None:
            address, is_fixed = found
            return address if is_fixed else start + address
    raise UnknownPythonError("no interpreter of Python was found in the process")


def _mapped_pythons(pid: int) -> list[tuple[str, int]]:
    """Return the files that may hold the interpreter, and where each begins in memory."""
    found: dict[str, int] = {}
    try:
        with open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
            lines = file.read().splitlines()
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError as error:
        raise UnknownPythonError(f"its memory is not shown ({error.strerror})") from error
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and (fields[5] == program or "python" in os.path.basename(fields[5])):
            found.setdefault(fields[5], int(fields[0].partition("-")[0], 16) - int(fields[2], 16))
    return sorted(found.items(), key=lambda item: "libpython" not in item[0])


def _find_symbol(content: bytes) -> tuple[int, bool] | None:
    """Return the symbol's address behind the start of the file, and whether it is fixed."""
    if content[:5] != b"\x7fELF\x02":
        return None
    kind = struct.unpack_from("<H", content, 16)[0]
    segments, sections = struct.unpack_from("<QQ", content, 32)
    _, segment_count, section_size, section_count = struct.unpack_from("<4H", content, 54)
    first = 0
    for number in range(segment_count):
        is_loaded, _, offset, address = struct.unpack_from("<IIQQ", content, segments + 56 * number)
        if is_loaded == PT_LOAD:
            first = address - offset
            break
    tables = [
        struct.unpack_from("<IIQQQQIIQQ", content, sections + section_size * number)
        for number in range(section_count)
    ]
    for table in tables:
        if table[1] != SHT_DYNSYM:
            continue
        names = tables[table[6]][4]
        for name, _, _, _, value, _ in struct.iter_unpack(
            "<IBBHQQ", content[table[4] : table[4] + table[5]]
        ):
            at = names + name
            if content.startswith(RUNTIME + b"\0", at):
                return (value, True) if kind == ET_EXEC else (value - first, False)
    return None
