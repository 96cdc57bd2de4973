"""Default values of options: from `PROFKIT_*` variables, a project file, or a user file.

A flag on the command line wins over all of them, then the order is as above.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.errors import UsageError
from profkit.text import did_you_mean, safe_text

PREFIX = "PROFKIT_"
TRUE, FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


@dataclass(frozen=True)
class Setting:
    """A value for one option, and where it was found."""

    value: Any
    source: str


def apply_settings(
    parser: argparse.ArgumentParser, verb: str, environ: Mapping[str, str], folder: Path
) -> None:
    """Make the values of environment and files the defaults of the parser's options.

    Flags win because argparse lets them. The table `[verb]` of a file holds the options of one
    verb, and `[defaults]` those of any verb that has them. A wrong value or an unknown name is a
    `UsageError` that names its place.
    """
    options = {}
    for action in parser._actions:
        if action.option_strings and action.dest not in {"help", "json"}:
            options[action.dest] = action
    found: dict[str, Setting] = {}
    for path, content in _files(environ, folder):
        found.update(_from_file(path, content, verb, options))
    for dest in options:
        name = PREFIX + dest.upper()
        if environ.get(name):
            found[dest] = Setting(environ[name], f"environment variable {name}")
    for dest, setting in found.items():
        parser.set_defaults(**{dest: _convert(options[dest], setting)})


def _files(environ: Mapping[str, str], folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the content of each file that exists; later ones win."""
    home = Path(environ.get("HOME", "/nonexistent"))
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "profkit" / "config.toml"
    project = folder / "pyproject.toml"
    for path in (user, project, folder / "profkit.toml"):
        if not os.path.isfile(path):  # unlike Path.is_file, false for a home that we may not read
            continue
        content = _read_toml(path)
        if path is project:
            content = content.get("tool", {}).get("profkit", {})
            if not isinstance(content, dict):
                raise UsageError(
                    f"{safe_text(str(path))}: 'tool.profkit' must be a table, "
                    "written [tool.profkit]"
                )
        yield path, content


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{safe_text(str(path))}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{safe_text(str(path))}: not valid TOML: {error}") from error
    return content


def _from_file(
    path: Path, content: Mapping[str, Any], verb: str, options: Mapping[str, argparse.Action]
) -> Iterator[tuple[str, Setting]]:
    place = safe_text(str(path))
    for section in ("defaults", verb):
        table = content.get(section, {})
        if not isinstance(table, dict):
            raise UsageError(f"{place}: '{section}' must be a table, written [{section}]")
        for key, value in table.items():
            dest = key.replace("-", "_")
            if dest in options:
                yield dest, Setting(value, f"{place}: [{section}] {key}")
            elif section == verb:
                raise UsageError(
                    f"{place}: [{section}] has no option '{safe_text(key)}'"
                    f"{did_you_mean(dest, options)}"
                )


def _convert(action: argparse.Action, setting: Setting) -> Any:
    """Convert the value as the option's flag would."""
    if isinstance(action, argparse._StoreTrueAction | argparse.BooleanOptionalAction):
        word = str(setting.value).lower()
        if word not in TRUE | FALSE:
            raise UsageError(f"{setting.source}: '{setting.value}' is neither true nor false")
        return word in TRUE
    value = setting.value
    try:
        if callable(action.type):
            value = action.type(str(value))
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise UsageError(f"{setting.source}: {error}") from error
    if action.choices is not None and value not in action.choices:
        choices = ", ".join(map(str, action.choices))
        raise UsageError(f"{setting.source}: '{value}' is none of {choices}")
    return value


def from_process() -> tuple[Mapping[str, str], Path]:
    return os.environ, Path.cwd()
