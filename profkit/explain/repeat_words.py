"""The words for a change that the machine may have made, and the command that repeats it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from profkit.analysis.device_times import is_own
from profkit.command_words import LEFT_OUT
from profkit.explain.rules.base import MIN_COST_SHARE
from profkit.explain.verdict import Basis
from profkit.text import percent, plural, safe_text, significant
from profkit.trace import Trace

if TYPE_CHECKING:
    from profkit.explain.slowness import Slowness

LONGEST_COMMAND = 120
"""A longer command is not repeated in a sentence."""

BUSY_SHARE = 0.05
"""From this share on, the load by other processes is worth a sentence."""


def doubt_words(slowness: Slowness, side: str, base: Trace, target: Trace) -> str:
    """Return why the machine may be behind a change, and what tells; `side` is the slower one."""
    state, basis = slowness.state, slowness.basis
    slow = base if side == "base" else target
    reasons = []
    if basis is Basis.EARLIER and slowness.spread is not None:
        half, runs = slowness.spread
        reasons.append(
            f"by {plural(runs, 'earlier run')} of the same job, two of its runs differ by up to "
            f"{percent(half)} in 95 % of cases"
        )
    elif basis is Basis.READINGS:
        usual = percent(slowness.usual + MIN_COST_SHARE, 0)
        reasons.append(f"two runs on a quiet {_kind_of_machine(slow)} may differ by {usual}")
    elif basis is Basis.DEVICE:
        usual = percent(slowness.device + MIN_COST_SHARE, 0)
        reasons.append(
            f"two runs on one device may differ by {usual}, and more if launches are late"
        )
    elif basis is Basis.NOTHING:
        reasons.append(f"nothing was recorded of what else the {side}'s machine did")
    if state is not None and state.share_of_others >= BUSY_SHARE:
        words = (
            f"other processes used {significant(state.others, 2)} of "
            f"{significant(state.cores, 2)} cores during the {side}"
        )
        if state.waited and state.waited >= BUSY_SHARE:
            waited = significant(state.waited, 2)
            words += f", whose threads together waited {waited} s per second for a core"
        reasons.append(words)
    if slowness.slower:
        reasons.append(
            f"a probe of a core or of memory took {percent(slowness.slower, 0)} longer before and "
            f"after the {side}"
        )
    if basis is Basis.REPEATS:
        return (
            f"the {side}'s machine was busier or slower, and that may be the change: "
            f"{'; '.join(reasons)}; "
            f"repeat the runs of both sides in turn: {repeat_command(base, target)}"
        )
    return (
        "the interval holds the noise within each run, and one run per side cannot tell this "
        f"change from the machine: {'; '.join(reasons)}; repeat: {repeat_command(base, target)}"
    )


def _kind_of_machine(trace: Trace) -> str:
    is_virtual = trace.manifest.environment.get("virtual")
    if is_virtual is None:
        return "machine that may be a virtual one"
    return "virtual machine" if is_virtual else "machine"


def repeat_command(base: Trace, target: Trace) -> str:
    """Return the command that repeats both sides in turn, as far as their commands are known."""
    groups = "profkit explain BASE1,BASE2,BASE3 TARGET1,TARGET2,TARGET3"
    if not (is_own(base) and is_own(target)):
        return f"give several runs per side: {groups}"
    first, second = _command_of(base), _command_of(target)
    if not first or not second:
        return f"record each side three times: {groups}"
    is_one_command = first == second
    if len(first) > LONGEST_COMMAND or len(second) > LONGEST_COMMAND:
        first, second = "BASE COMMAND", "TARGET COMMAND"
    if is_one_command:
        second = second.removeprefix("TARGET ")
        return f"with the code of each side, profkit run --repeats 3 --name NAME -- {second}"
    quoted = shlex.quote(first)
    if " " in first and not set(first) & set('"$`\\!'):
        quoted = f'"{first}"'
    return f"profkit run --repeats 3 --against {quoted} -- {second}"


def _command_of(trace: Trace) -> str:
    """Return the command of a run as a shell reads it; empty if it is not known in full."""
    words = trace.manifest.config.get("command")
    if not isinstance(words, list) or LEFT_OUT in " ".join(map(str, words)):
        return ""
    if words and str(words[0]).endswith(".py"):  # recorded from inside the job
        words = ["python", *words]
    return safe_text(shlex.join(map(str, words)))
