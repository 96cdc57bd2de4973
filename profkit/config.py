"""Where an option's value comes from: flag, then `PROFKIT_*`, then project file, then user file."""

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


@dataclass(frozen=True)
class Setting:
    """A value for one option, and where it was found."""

    value: Any
    source: str


def apply_settings(
    parser: argparse.ArgumentParser, verb: str, environ: Mapping[str, str], folder: Path
) -> None:
    """Make what environment and files say the defaults of the parser's options.

    Flags win because argparse lets them. A file's table `[verb]` holds the options of one verb, and
    `[defaults]` those of any verb that has them. A wrong value or an unknown name is a `UsageError`
    that says where it stands.
    """
    options = {
        action.dest: action
        for action in parser._actions
        if action.option_strings and action.dest not in {"help", "json"}
    }
    for dest, setting in _settings(verb, options, environ, folder).items():
        parser.set_defaults(**{dest: _convert(options[dest], setting)})


def _settings(
    verb: str, options: Mapping[str, argparse.Action], environ: Mapping[str, str], folder: Path
) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for path, content in _files(environ, folder):
        found.update(_from_file(path, content, verb, options))
    for dest in options:
        name = PREFIX + dest.upper()
        if environ.get(name):
            found[dest] = Setting(environ[name], f"environment variable {name}")
    return found


def _files(environ: Mapping[str, str], folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The files that exist, weakest first."""
    home = Path(
        environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/nonexistent")) / ".config"
    )
    for path in (
        home / "profkit" / "config.toml",
        folder / "pyproject.toml",
        folder / "profkit.toml",
    ):
        if os.path.isfile(path):  # unlike Path.is_file, false for a home that is not ours
            content = _read_toml(path)
            yield path, _own_table(path, content) if path.name == "pyproject.toml" else content


def _own_table(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    table: Any = content.get("tool", {}).get("profkit", {})
    if not isinstance(table, dict):
        raise UsageError(
            f"{safe_text(str(path))}: 'tool.profkit' must be a table, written [tool.profkit]"
        )
    return table


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
    for section in ("defaults", verb):
        table = content.get(section, {})
        if not isinstance(table, dict):
            raise UsageError(
                f"{safe_text(str(path))}: '{section}' must be a table, written [{section}]"
            )
        for key, value in table.items():
            dest = key.replace("-", "_")
            if dest in options:
                yield dest, Setting(value, f"{safe_text(str(path))}: [{section}] {key}")
            elif section == verb:
                raise UsageError(
                    f"{safe_text(str(path))}: [{section}] has no option '{safe_text(key)}'{did_you_mean(dest, options)}"
                )


def _convert(action: argparse.Action, setting: Setting) -> Any:
    """The value in the option's own type, through the converter that its flag goes through."""
    if isinstance(action, argparse._StoreTrueAction):
        return _truth(setting)
    try:
        value = action.type(str(setting.value)) if callable(action.type) else setting.value
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise UsageError(f"{setting.source}: {error}") from error
    if action.choices is not None and value not in action.choices:
        raise UsageError(
            f"{setting.source}: '{value}' is none of {', '.join(map(str, action.choices))}"
        )
    return value


def _truth(setting: Setting) -> bool:
    word = str(setting.value).lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off"}:
        return False
    raise UsageError(f"{setting.source}: '{setting.value}' is neither true nor false")


def from_process() -> tuple[Mapping[str, str], Path]:
    return os.environ, Path.cwd()
