"""The exit codes, and the errors that a user can fix."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command line. A published interface: values never change."""

    DONE = 0
    UNFINISHED = 1
    USAGE = 2
    UNREADABLE = 3
    REGRESSION = 10
    NOT_JUDGED = 11
    HUNG = 12
    CANNOT_START = 125
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130


class ProfkitError(Exception):
    """An error that the user can fix: one line that names the place and the remedy."""

    exit_code = ExitCode.UNFINISHED


class UsageError(ProfkitError):
    """The command line, an environment variable or a configuration file is wrong."""

    exit_code = ExitCode.USAGE


class UnreadableError(ProfkitError):
    """A file cannot be read as what it should be."""

    exit_code = ExitCode.UNREADABLE
