"""Reads a plain or gzipped file in blocks, with bounded memory also for gzip bombs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from profkit.errors import UnreadableError
from profkit.plain_file import unpacks_too_far
from profkit.text import byte_size, safe_text

BLOCK_BYTES = 4 << 20
LARGEST_BYTES = 64 << 30

_GZIP = b"\x1f\x8b"


class TornError(UnreadableError):
    """The compressed data ends early or is damaged; the blocks before it have been yielded."""


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the file's text; a thread reads and decompresses the next block meanwhile."""
    blocks = _read_blocks(path)
    with ThreadPoolExecutor(1, "profkit-read") as thread:
        coming = _submit(thread, blocks)
        while block := coming.result():
            coming = _submit(thread, blocks)
            yield block


def read_lines(path: Path, longest: int) -> Iterator[bytes]:
    """Yield the file's lines; one without an end in so many bytes is cut."""
    rest = b""
    for block in read_blocks(path):
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
        rest = rest[:longest]
    if rest:
        yield rest


def read_beginning(path: Path, most: int) -> Iterator[bytes]:
    """Yield the file's first bytes in blocks; nothing if it cannot be read."""
    left = most
    try:
        for block in read_blocks(path):
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return
    except UnreadableError:
        return


def _submit(thread: ThreadPoolExecutor, blocks: Iterator[bytes]) -> Future[bytes]:
    """Return the next block as a future."""
    try:
        return thread.submit(next, blocks, b"")
    except RuntimeError:
        # The interpreter is ending and starts no thread any more: read here.
        coming: Future[bytes] = Future()
    try:
        coming.set_result(next(blocks, b""))
    except UnreadableError as error:
        coming.set_exception(error)
    return coming


def _read_blocks(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            if file.peek(2)[:2] == _GZIP:
                yield from _inflate(file, safe_text(str(path)))
                return
            while block := file.read(BLOCK_BYTES):
                yield block
    except OSError as error:
        raise UnreadableError(f"{safe_text(str(path))}: {error.strerror}") from error


def _inflate(file: BinaryIO, shown: str) -> Iterator[bytes]:
    """Yield the text of all members of a gzip file, within the limits."""
    packed = text = 0
    rest, machine = b"", zlib.decompressobj(wbits=31)
    while piece := rest or file.read(BLOCK_BYTES // 8):
        if machine.eof:
            machine = zlib.decompressobj(wbits=31)
        if not rest:
            packed += len(piece)
        try:
            block = machine.decompress(piece, BLOCK_BYTES)
        except zlib.error as error:
            where = byte_size(text)
            raise TornError(f"{shown}: its gzip data is damaged after {where} of text") from error
        rest = machine.unused_data if machine.eof else machine.unconsumed_tail
        text += len(block)
        if text > LARGEST_BYTES or unpacks_too_far(packed, text):
            raise UnreadableError(
                f"{shown}: {byte_size(packed)} unpack to more than {byte_size(text)}, as in no "
                "trace; it is not read further"
            )
        if block:
            yield block
    if not machine.eof:
        raise TornError(f"{shown}: its gzip data ends early")
