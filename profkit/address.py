"""Addresses of runs on other machines, such as s3://bucket/key, read through `pyarrow.fs`."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import threading
import weakref
from collections.abc import Generator, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from profkit.errors import UnreadableError, UsageError
from profkit.text import safe_text

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

SCHEMES = ("s3", "gs", "hdfs")

READ_AT_ONCE_BYTES = 64_000_000
"""A larger file is copied in pieces of this size."""

LONGEST_PROBLEM = 200

_ROOT_MARK = quote("://", safe="")

_PROBLEMS = {
    "NO_SUCH_BUCKET": "no such bucket",
    "ACCESS_DENIED": "no permission to read it; check the credentials and their rights",
    "NETWORK_CONNECTION": "its server cannot be reached",
    "INVALID_ACCESS_KEY_ID": "its server does not know the access key",
    "SIGNATURE_DOES_NOT_MATCH": "the secret key is wrong",
}
"""Names of errors in Arrow's messages, and what they mean."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")

_credentials: dict[str, str] = {}
"""The user and the password that an address had, by root. No path contains them."""


def to_path(given: str | Path) -> Path:
    """Return a path, which is an `Address` if it names another machine's file system.

    A `Path` that was made of an address has one slash where the address has two.
    """
    scheme, mark, rest = str(given).partition(":/")
    # A query of SQL may contain an address, and is none.
    is_known = scheme in SCHEMES or (isinstance(given, str) and rest.startswith("/"))
    is_address = is_known and _SCHEME.fullmatch(scheme)
    if isinstance(given, Address) or not mark or not is_address:
        return Path(given) if isinstance(given, str) else given
    url = urlsplit(f"{scheme}://{rest.lstrip('/') if scheme != 'file' else rest[1:]}")
    if scheme == "file":
        return Path(unquote(url.path))
    if scheme not in SCHEMES or not scheme.isalnum():
        known = ", ".join(f"{each}://" for each in SCHEMES)
        shown = safe_text(str(given))
        raise UsageError(f"{shown}: unknown kind of address; known are {known} and file://")
    user, _, host = url.netloc.rpartition("@")
    root = f"{scheme}://{host}" + (f"?{url.query}" if url.query else "")
    if user:
        _credentials[root] = user
    return Address(quote(root, safe=""), unquote(url.path).strip("/"))


class Address(PosixPath):
    """A path in a file system that `pyarrow.fs` knows.

    Listings say what is there and how large it is. Where code opens a file, `os.fspath` makes a
    local copy: each file is read once, as a whole, when it is first opened. The first part of the
    path is the quoted root, so that what is below a path is in the same file system.
    """

    def __str__(self) -> str:
        root, *names = self.parts or ("",)
        if _ROOT_MARK not in root:  # relative to another address
            return super().__str__()
        host, mark, query = unquote(root).partition("?")
        return "/".join([host, *names]) + mark + query

    def __fspath__(self) -> str:
        return self._store.copy(self._key)

    @property
    def _store(self) -> _Store:
        return _open_store(unquote(self.parts[0]))

    @property
    def _key(self) -> str:
        return "/".join(self.parts[1:])

    def stat(self, **_: Any) -> Any:
        info = self._store.info(self._key)
        if info is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return SimpleNamespace(
            st_mode=(stat.S_IFREG if info.is_file else stat.S_IFDIR) | 0o600,
            st_size=info.size or 0,
            st_mtime_ns=info.mtime_ns or 0,
            st_mtime=(info.mtime_ns or 0) / 1e9,
        )

    def lstat(self) -> Any:
        return self.stat()

    def exists(self, **_: Any) -> bool:
        return self._store.info(self._key) is not None

    def is_file(self, **_: Any) -> bool:
        return self.exists() and stat.S_ISREG(self.stat().st_mode)

    def is_dir(self, **_: Any) -> bool:
        return self.exists() and stat.S_ISDIR(self.stat().st_mode)

    def resolve(self, strict: bool = False) -> Address:  # as in Path
        return self

    def absolute(self) -> Address:
        return self

    def iterdir(self) -> Generator[Address]:
        self._store.list_again(self._key)
        yield from self.glob("*")

    def glob(self, pattern: str) -> Generator[Address]:
        for name in self._store.find(self._key, pattern.split("/")):
            yield self / name

    def rglob(self, pattern: str) -> Generator[Address]:
        yield from self.glob(f"**/{pattern}")


class _Store:
    """A file system, what was listed of it, and copies of the files that were opened."""

    def __init__(self, root: str) -> None:
        import shutil
        import tempfile

        import pyarrow.fs

        scheme, mark, host = root.partition("://")
        user = _credentials.get(root)
        self._root = root.partition("?")[0]
        with self._errors(""):
            uri = scheme + mark + (f"{user}@" if user else "") + host
            self._files, base = pyarrow.fs.FileSystem.from_uri(uri)
        self._base = base.rstrip("/")
        self._known: dict[str, FileInfo] = {}
        self._names: dict[str, list[str]] = {}
        """The names in each folder that was listed, which are complete for those in `_listed`."""
        self._listed: set[str] = set()
        self._copies = tempfile.mkdtemp(prefix="profkit-")
        weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)
        self._copied: dict[str, tuple[int, int]] = {}

    def info(self, key: str) -> FileInfo | None:
        """Return what is known of a file or a folder, or `None` if it does not exist."""
        if key not in self._known and not self._is_listed(os.path.dirname(key)):
            with self._errors(key):
                self._keep(key, self._files.get_file_info(self._path(key)))
        return self._known.get(key)

    def list_again(self, key: str) -> None:
        """List all that is in a folder, unless a folder that contains it was listed."""
        import pyarrow.fs

        info = self.info(key)
        if info is not None and info.is_file:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), key)
        if key and self._is_listed(os.path.dirname(key)):
            return
        with self._errors(key):
            selector = pyarrow.fs.FileSelector(self._path(key), recursive=True)
            found = self._files.get_file_info(selector)
        for old in [each for each in self._known if each.startswith(f"{key}/" if key else "")]:
            del self._known[old]
        self._names.clear()
        self._listed.add(key)
        for info in found:
            self._keep(info.path.removeprefix(self._base).strip("/"), info)
        for each in sorted(self._known):
            self._names.setdefault(os.path.dirname(each), []).append(os.path.basename(each))

    def find(self, key: str, pattern: list[str]) -> Iterator[str]:
        """Yield the names below a folder that fit; `*/NAME` lists one level only."""
        if not self._is_listed(key):
            with contextlib.suppress(FileNotFoundError):
                if len(pattern) == 2 and pattern[0] == "*" and "*" not in pattern[1]:
                    yield from self._find_in_each(key, pattern[1])
                    return
                self.list_again(key)
        yield from self._match(key, pattern)

    def _find_in_each(self, key: str, name: str) -> Iterator[str]:
        import pyarrow.fs

        with self._errors(key):
            selector = pyarrow.fs.FileSelector(self._path(key))
            folders = [each for each in self._files.get_file_info(selector) if not each.is_file]
            wanted = sorted(f"{each.base_name}/{name}" for each in folders)
            paths = []
            for each in wanted:
                paths.append(self._path(f"{key}/{each}"))
            found = self._files.get_file_info(paths)
        for each, info in zip(wanted, found, strict=True):
            if self._keep(f"{key}/{each}".strip("/"), info):
                yield each

    def _match(self, key: str, pattern: list[str]) -> Iterator[str]:
        first, *rest = pattern
        for name in self._names.get(key, ()):
            below = f"{key}/{name}".strip("/")
            if first == "**":
                deeper = [*self._match(below, pattern)]
                if fnmatchcase(name, rest[0]):
                    yield name
            elif fnmatchcase(name, first):
                deeper = [*self._match(below, rest)] if rest else []
                if not rest:
                    yield name
            else:
                continue
            for each in deeper:
                yield f"{name}/{each}"

    def copy(self, key: str) -> str:
        """Return the path of a copy of a file, or of a folder with all that is in it."""
        info = self.info(key)
        if info is None:
            shown = f"{self._root}/{key}"
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown)
        path = os.path.join(self._copies, "files", key)
        if not info.is_file:
            os.makedirs(path, exist_ok=True)
            for name in [*self.find(key, ["**", "*"])]:
                self.copy(f"{key}/{name}".strip("/"))
            return path
        state = (info.size or 0, info.mtime_ns or 0)
        if self._copied.get(key) != state:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            partial = os.path.join(self._copies, str(threading.get_ident()))
            with open(partial, "wb") as file:
                file.writelines(self._read(key, state[0]))
            os.utime(partial, ns=(state[1], state[1]))
            os.replace(partial, path)
            self._copied[key] = state
        return path

    def _read(self, key: str, size: int) -> Iterator[Any]:
        with self._errors(key), self._files.open_input_file(self._path(key)) as source:
            for start in range(0, size, READ_AT_ONCE_BYTES):
                yield source.read_at(min(READ_AT_ONCE_BYTES, size - start), start)

    def _keep(self, key: str, info: FileInfo) -> bool:
        """Remember what is there, unless its name would lead a copy out of the folder of copies."""
        from pyarrow.fs import FileType

        is_kept = info.type != FileType.NotFound and ".." not in key.split("/")
        if is_kept:
            self._known[key] = info
        return is_kept

    def _is_listed(self, key: str) -> bool:
        """Return true if all that is in a folder is known."""
        while key and key not in self._listed:
            key = os.path.dirname(key)
        return key in self._listed

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}".rstrip("/")

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Make one clear line of the errors of a file system."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise
        except (OSError, ValueError, NotImplementedError) as error:
            words = str(error).partition("\n")[0]
            name = re.search(r"AWS Error (\w+)", words)
            problem = _PROBLEMS.get(name[1] if name else "", words[:LONGEST_PROBLEM])
            raise UnreadableError(safe_text(f"{self._root}/{key}: {problem}")) from error


@functools.cache
def _open_store(root: str) -> _Store:
    return _Store(root)
