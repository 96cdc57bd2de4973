"""Reads images, and counts, names and replaces those that cannot be read."""

from __future__ import annotations

import os
import secrets
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.errors import UnreadableError
from profkit.text import safe_text

if TYPE_CHECKING:
    from PIL import Image

Size = tuple[int, int]
"""Width and height."""

GREY = (124, 116, 104)
"""ImageNet's mean colour, so that padding is near zero after normalisation."""

UNKNOWN_SIZE = (64, 64)
"""The size of a grey image if nobody knows the size of the broken one."""

BILINEAR = 2
"""Pillow's number of the filter; Pillow itself is imported later."""

MAX_SKIPPED = 100
"""Bad samples in a row after which the data set counts as broken."""


class BadSampleError(UnreadableError):
    """A sample that cannot be used; the message names the file."""


def as_raised(error: UnreadableError) -> UnreadableError:
    """Return the error as a loader's worker raised it.

    The frameworks pass it on with the worker's traceback as its message.
    """
    text = str(error).strip()
    if "Traceback" not in text:
        return error
    return type(error)(text.splitlines()[-1].partition("Error: ")[2])


def header_size(path: str | os.PathLike[str]) -> Size | None:
    """Return the size in an image's header, if that can be read."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.width, image.height
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _remove(book: Path, owner: int) -> None:
    """Remove the file of bad samples, in the process that made its name."""
    if os.getpid() == owner:
        book.unlink(missing_ok=True)


class BadSamples:
    """The policy for bad samples, and a file that lists those that were found.

    Loader workers and the training process append to one file, a line with one `write` call each,
    so that nothing is lost however workers start and end. The training loop reads on from where
    it was. The first bad sample creates the file, and the process that made it removes it.
    """

    def __init__(self, policy: str = "error", book: Path | None = None) -> None:
        self.policy = policy
        if book is None:
            book = Path(tempfile.gettempdir(), f"profkit-samples-{secrets.token_hex(8)}")
            weakref.finalize(self, _remove, book, os.getpid())
        self.book = book
        self._read = 0
        self._rest = b""

    def image(self, path: str | os.PathLike[str], size: Size | None = None) -> Image.Image:
        """Decode the file to RGB.

        With the policy `pad` a broken file becomes a grey image of the size in its header, else
        of `size`. With the other policies it is a `BadSampleError`.
        """
        from PIL import Image

        try:
            with Image.open(path) as image:
                decoded: Image.Image = image.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = str(getattr(error, "strerror", None) or error) or type(error).__name__
        else:
            return decoded
        name = os.fspath(path)
        if self.policy != "pad":
            raise BadSampleError(
                f"{safe_text(name)}: not a whole image: {reason}; "
                "use --bad-samples skip or pad to go on without it"
            )
        self.note(name, reason)
        return Image.new("RGB", header_size(name) or size or UNKNOWN_SIZE, GREY)

    def note(self, path: str, why: str) -> None:
        """Append a bad sample to the file."""
        line = f"{safe_text(path)}\t{' '.join(safe_text(why).split())}\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(self.book, flags, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def note_or_raise(self, error: BadSampleError) -> None:
        """Note a sample that is to be skipped; with the other policies raise its error."""
        if self.policy != "skip":
            raise error
        path, _, why = str(error).partition(": ")
        self.note(path, why.partition(";")[0])

    def news(self) -> list[BadSample]:
        """Return the bad samples since the last call."""
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


@dataclass(frozen=True)
class BadSample:
    """The file and the reason of one bad sample."""

    path: str
    why: str


@dataclass(frozen=True)
class Guarded:
    """A data set in which the next good sample takes the place of one that is skipped."""

    dataset: object
    bad: BadSamples

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: Sequence[int]) -> object:
        epoch, index = key
        tried = index
        for offset in range(min(MAX_SKIPPED, len(self))):
            tried = (index + offset) % len(self)
            try:
                return self.dataset[epoch, tried]  # type: ignore[index]
            except BadSampleError as error:
                self.bad.note_or_raise(error)
        raise UnreadableError(
            f"{MAX_SKIPPED} bad samples in a row, the last tried is number {tried}; "
            "the data set is broken"
        )
