"""A file's text, plain or gzipped, in blocks that are read ahead: memory stays bounded, and so does what a bomb can do."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from profkit.errors import UnreadableError
from profkit.text import byte_size, safe_text

BLOCK_BYTES = 4 << 20
HIGHEST_RATIO = 200
"""Text by compressed bytes: real traces have up to 60, deflate's bombs 1,000."""
FREE_BYTES = 64 << 20
"""Text for which no ratio is asked: short files of zeros do no harm."""
LARGEST_BYTES = 64 << 30

_GZIP = b"\x1f\x8b"


class TornError(UnreadableError):
    """The compressed data ends early or is damaged; what came before it has been handed out."""


def read_blocks(path: Path) -> Iterator[bytes]:
    """The file's text; the next block is read and decompressed on a thread while one is worked on."""
    blocks = _blocks(path)
    with ThreadPoolExecutor(1, "profkit-read") as thread:
        coming = _submit(thread, blocks)
        while block := coming.result():
            coming = _submit(thread, blocks)
            yield block


def _submit(thread: ThreadPoolExecutor, blocks: Iterator[bytes]) -> Future[bytes]:
    """The next block, in the future; at once where the interpreter is ending, for then no thread is started any more."""
    try:
        return thread.submit(next, blocks, b"")
    except RuntimeError:
        coming: Future[bytes] = Future()
    try:
        coming.set_result(next(blocks, b""))
    except UnreadableError as error:
        coming.set_exception(error)
    return coming


def _blocks(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            if file.peek(2)[:2] == _GZIP:
                yield from _inflate(file, path)
                return
            while block := file.read(BLOCK_BYTES):
                yield block
    except OSError as error:
        raise UnreadableError(f"{safe_text(str(path))}: {error.strerror}") from error


def _inflate(file: object, path: Path) -> Iterator[bytes]:
    """The text of all members of a gzip file, within the limits."""
    read = file.read  # type: ignore[attr-defined]  # any binary file
    packed = text = 0
    rest, machine = b"", zlib.decompressobj(wbits=31)
    while piece := rest or read(BLOCK_BYTES // 8):
        if machine.eof:
            machine = zlib.decompressobj(wbits=31)
        packed += 0 if rest else len(piece)
        try:
            block = machine.decompress(piece, BLOCK_BYTES)
        except zlib.error as error:
            raise TornError(
                f"{safe_text(str(path))}: its gzip data is damaged behind {byte_size(text)} of text"
            ) from error
        rest = machine.unused_data if machine.eof else machine.unconsumed_tail
        text += len(block)
        if text > LARGEST_BYTES or (text > FREE_BYTES and text > HIGHEST_RATIO * packed):
            raise UnreadableError(
                f"{safe_text(str(path))}: {byte_size(packed)} unpack to more than {byte_size(text)}; no trace does that, and it is not read on"
            )
        if block:
            yield block
    if not machine.eof:
        raise TornError(f"{safe_text(str(path))}: its gzip data ends early")
