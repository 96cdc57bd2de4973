"""Read code objects of another process: their names, and the tables of their lines."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from profkit.eye.layout import Layout
from profkit.eye.memory import Memory, Piece

MOST_CODES = 20_000
LARGEST_TEXT, LARGEST_TABLE, LARGEST_CODE = 4_096, 65_536, 1 << 24

HEAD = 144
"""Bytes of a code object that hold what is read of it."""


class Code:
    """A code object: its names, and the bytes by which it is known again."""

    __slots__ = ("begins", "co_filename", "co_qualname", "first", "flat", "known", "lines",
                 "size", "table")  # fmt: skip

    def __init__(self, file: str, name: str, flat: list[int], known: bytes) -> None:
        self.co_filename, self.co_qualname = file, name
        self.flat, self.known = flat, known
        """Addresses and sizes of what was read, and its bytes."""
        self.table, self.first = b"", 0
        self.size, self.begins = 0, -1
        """Number of its instructions, and of the first one that has a line."""
        self.lines: dict[int, int] = {}


class CodeReader:
    """Reads each code object once. It may be freed and its place used again, without a word."""

    def __init__(self, memory: Memory, layout: Layout) -> None:
        self._memory, self._layout = memory, layout
        self._types: set[int] = set()
        self.known: dict[int, Code] = {}

    def forget(self, addresses: Iterable[int]) -> None:
        for address in addresses:
            self.known.pop(address, None)

    def learn(self, address: int) -> None:
        """Read a code object that is not known yet; what is none stays unknown."""
        layout = self._layout
        file_at, name_at, table_at, first_at, instructions = layout.code
        head = self._memory.read([(address, HEAD)])
        if head is None or not self._is_code(struct.unpack_from("Q", head, 8)[0]):
            return
        file = self._text(struct.unpack_from("Q", head, file_at)[0])
        name = self._text(struct.unpack_from("Q", head, name_at)[0])
        table = self._bytes(struct.unpack_from("Q", head, table_at)[0])
        if file is None or name is None or table is None:
            return
        pieces = [(address + 8, HEAD - 8), file[1], name[1], table[0]]
        known = head[8:] + file[2] + name[2] + table[1]
        code = Code(file[0], name[0], [number for piece in pieces for number in piece], known)
        code.table, code.first = table[1][16:], struct.unpack_from("i", head, first_at)[0]
        if layout.owner is None:
            size = self._memory.number(struct.unpack_from("Q", head, instructions)[0] + 16)
            code.size = -1 if size is None else size // 2
        else:
            code.size = struct.unpack_from("Q", head, 16)[0]
            begins = self._memory.read([(address + instructions - 16, 4)])
            code.begins = -1 if begins is None else struct.unpack("i", begins)[0]
        if 0 < code.size < LARGEST_CODE:
            if len(self.known) >= MOST_CODES:
                self.known.clear()
            self.known[address] = code

    def _is_code(self, kind: int) -> bool:
        if kind in self._types:
            return True
        name = self._memory.number(kind + 24)
        if not name or self._memory.read([(name, 5)]) != b"code\0":
            return False
        self._types.add(kind)
        return True

    def _text(self, address: int) -> tuple[str, Piece, bytes] | None:
        """Return a string, the place of its content, and its bytes there."""
        size = self._layout.ascii_size
        head = self._memory.read([(address, size)])
        if head is None:
            return None
        length, _, state = struct.unpack_from("QQI", head, 16)
        if self._layout.version >= (3, 14):  # two bytes come before the kind
            state = state >> 16 << 2
        kind, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if not is_compact or kind not in {1, 2, 4} or length > LARGEST_TEXT:
            return None
        offset = size
        if not is_ascii:  # three or two fields more
            offset += 24 if size == 48 else 16
        piece = address + 16, offset - 16 + length * kind
        content = self._memory.read([piece])
        if content is None:
            return None
        coding = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind]
        try:
            text = content[offset - 16 :].decode(coding, "surrogatepass" if kind > 1 else "strict")
        except UnicodeDecodeError:  # it is no string any more
            return None
        return text, piece, content

    def _bytes(self, address: int) -> tuple[Piece, bytes] | None:
        size = self._memory.number(address + 16)
        if size is None or size > LARGEST_TABLE:
            return None
        piece = address + 16, 16 + size
        content = self._memory.read([piece])
        return None if content is None else (piece, content)
