"""Reads images, and deals with those that cannot be read: counted, named, and handled as the user said."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.errors import UnreadableError
from profkit.text import safe_text

if TYPE_CHECKING:
    from PIL import Image

POLICIES = ("error", "skip", "pad")
"""What becomes of a bad sample: the job ends, the next good one takes its place, or grey does."""

GREY = (124, 116, 104)
"""ImageNet's mean colour, so that padding is near zero after normalisation."""

MOST_IN_A_ROW = 100


class BadSampleError(UnreadableError):
    """A sample that cannot be used; the message names the file."""


def as_raised(error: UnreadableError) -> UnreadableError:
    """The error as a loader's worker raised it: the frameworks hand it on with the worker's traceback for a message."""
    text = str(error).strip()
    return (
        type(error)(text.splitlines()[-1].partition("Error: ")[2]) if "Traceback" in text else error
    )


class BadSamples:
    """The policy for bad samples, and the book of those that were met.

    Loader workers and the training process write into one file, a line with one `write` call each, so that nothing
    is lost whatever way workers are started and ended. The training loop reads on from where it was.
    """

    def __init__(self, policy: str = "error", book: Path | None = None) -> None:
        self.policy = policy
        if book is None:
            handle, name = tempfile.mkstemp(prefix="profkit-samples-")
            os.close(handle)
            book = Path(name)
        self.book = book
        self._read = 0
        self._rest = b""

    def image(
        self, path: str | os.PathLike[str], size: tuple[int, int] | None = None
    ) -> Image.Image:
        """The file decoded to RGB. Where it is broken and the policy is `pad`: grey, of the size in its header, else of `size` (width, height).

        With the other policies a broken file is a `BadSampleError`.
        """
        from PIL import Image

        try:
            with Image.open(path) as image:
                decoded: Image.Image = image.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            return self._broken(os.fspath(path), _reason(error), size)
        return decoded

    def note(self, path: str, why: str) -> None:
        """Write a bad sample into the book."""
        line = f"{safe_text(path)}\t{' '.join(safe_text(why).split())}\n"
        descriptor = os.open(self.book, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def news(self) -> list[BadSample]:
        """The bad samples that were met since the last call."""
        try:
            if os.stat(self.book).st_size == self._read:
                return []
            with self.book.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:
            return []
        self._read += len(text)
        *lines, self._rest = (self._rest + text).split(b"\n")
        return [BadSample(*line.decode(errors="replace").partition("\t")[::2]) for line in lines]

    def close(self) -> None:
        self.book.unlink(missing_ok=True)

    def _broken(self, path: str, why: str, size: tuple[int, int] | None) -> Image.Image:
        if self.policy != "pad":
            raise BadSampleError(
                f"{safe_text(path)}: not a whole image: {why}; --bad-samples skip or pad goes on without it"
            )
        self.note(path, why)
        return _grey(path, size)


@dataclass(frozen=True)
class BadSample:
    """One bad sample as the book has it."""

    path: str
    why: str


class Guarded:
    """A data set in which another sample takes the place of one that is skipped."""

    def __init__(self, dataset: object, bad: BadSamples) -> None:
        self.dataset = dataset
        self.bad = bad

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: Sequence[int]) -> object:
        epoch, index = key
        for offset in range(min(MOST_IN_A_ROW, len(self))):
            try:
                return self.dataset[epoch, (index + offset) % len(self)]  # type: ignore[index]
            except BadSampleError as error:
                if self.bad.policy != "skip":
                    raise
                path, _, why = str(error).partition(": ")
                self.bad.note(path, why.partition(";")[0])
        raise UnreadableError(
            f"{MOST_IN_A_ROW} bad samples in a row, the last tried is number {(index + offset) % len(self)}; the data set is broken"
        )


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def _grey(path: str, size: tuple[int, int] | None) -> Image.Image:
    """In place of a broken image: of its own size where its header tells one, as annotations go by that."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            size = image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        size = size or (64, 64)
    return Image.new("RGB", size, GREY)
