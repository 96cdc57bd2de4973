"""Tells the job's own code from that of packages, of Python and of profkit."""

from __future__ import annotations

import os
import sys
import sysconfig

from profkit.vocab import OWN_CODE, PACKAGE_CODE, PYTHON_CODE

_PACKAGE_FOLDERS = ("/site-packages/", "/dist-packages/")

_TYPED_IN = ("<stdin>", "<ipython-input-", "<console>")
"""What an interpreter names code that the user has typed."""

_PROMPTS = ("/bin/ipython", "/bin/ipython3")
"""Scripts whose frame is below all code that the user types."""

_SYSTEMS = ("workloads",)
"""Folders of profkit whose code is what a job runs: its reference systems."""

MAX_CHARS = 300
"""Longer names of files and functions are cut: generated ones have no limit."""


class Origins:
    """Names the origin of files and shortens their paths. It opens no file.

    The files are those of this process, or of one with another folder and another Python.
    """

    def __init__(self, folder: str = "", python: str = "", own: str = "") -> None:
        self._folder = folder
        own = own or os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self._profkit = tuple({own + os.sep, os.path.realpath(own) + os.sep})
        folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")} | {python}
        both = {path for folder in folders if folder for path in (folder, os.path.realpath(folder))}
        self._python = tuple(folder + os.sep for folder in both)
        self._home = os.path.expanduser("~").rstrip(os.sep)

    def of(self, file: str) -> str:
        """Return whose code a file holds; empty for that of profkit itself."""
        if file.startswith("<"):
            return OWN_CODE if file.startswith(_TYPED_IN) else PYTHON_CODE
        if file.startswith(self._profkit):
            for own in self._profkit:
                if file.removeprefix(own).startswith(_SYSTEMS):
                    return OWN_CODE
            return ""
        if any(folder in file for folder in _PACKAGE_FOLDERS) or file.endswith(_PROMPTS):
            return PACKAGE_CODE
        return PYTHON_CODE if file.startswith(self._python) else OWN_CODE

    def shown(self, file: str) -> str:
        """Return the path as it is stored: whole, with `~` for the user's home."""
        path = file
        if not file.startswith("<"):
            path = os.path.abspath(os.path.join(self._folder, file))
        if self._home and path.startswith(self._home + os.sep):
            path = "~" + path.removeprefix(self._home)
        return cut(path)


def cut(name: str) -> str:
    """Return a name without what is beyond the limit; of a path, the end is kept."""
    if len(name) <= MAX_CHARS:
        return sys.intern(name)
    return "..." + name[-MAX_CHARS:]
