"""Every command in the documentation and in the help texts is one that profkit accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from profkit.cli import VERBS, build_parser, load_command
from profkit.errors import UsageError
from tests.workloads.test_documented_commands import PAGES, lines_of

COMMAND = re.compile(rf"(?:^|([\s`']))profkit ({'|'.join(VERBS)})((?: |$|`)[^`]*)")
REMARK = re.compile(r"\s{2,}|\s[#>|]\s|;|&&|`")
"""What follows a command on its line."""

PLACEHOLDERS = {"N": "1", "SHELL": "bash"}
"""Words that stand for a value of a kind that the parser checks."""


def documented() -> Iterator[tuple[str, str]]:
    """Yield the verb and the words of each command."""
    lines = []
    for page in PAGES:
        lines += list(lines_of(page.read_text(encoding="utf-8")))
    for verb in VERBS:
        lines += (load_command(verb).__doc__ or "").splitlines()
    for line in lines:
        for quote, verb, words in COMMAND.findall(line):
            said = words.partition("'")[0] if quote == "'" else words
            if "--help" not in said:
                yield verb, REMARK.split(said)[0].strip()


COMMANDS = sorted(set(documented()))


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) > 40
    assert {verb for verb, _ in COMMANDS} >= {"run", "trace", "explain", "verify", "why", "tui"}


@pytest.mark.parametrize(("verb", "words"), COMMANDS)
def test_a_documented_command_is_accepted(verb: str, words: str) -> None:
    """Brackets mark what may be missing, and three dots what may be repeated."""
    plain = words.replace("…", "").replace("...", "")
    for given in {re.sub(r"[\[\]]", "", plain), re.sub(r"\[[^]]*\]", "", plain)}:
        values = [PLACEHOLDERS.get(word, word) for word in shlex.split(given)]
        assert _find_error([verb, *values]) == ""


def _find_error(arguments: list[str]) -> str:
    """Return why the parser refuses; an option that a text only names needs no value."""
    try:
        build_parser(arguments[:1]).parse_args(arguments)
    except UsageError as error:
        found = str(error)
        is_mention = "required" in found or "expected one argument" in found
        return "" if is_mention else found
    return ""
