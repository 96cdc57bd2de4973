"""PaddleNLP's Transformer: `step_idx: 300, epoch: 1, batch: 124, avg loss: ..., tokens: 457069, ips: 8336.29 words/sec`.

Means over the steps since the line before, of one card; `tokens` are all of the window's, so a
step's differ from window to window. The first line, of step 0, has no times.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"step_idx: (\d{1,12}), epoch: (\d{1,9}), batch: (\d{1,12}), avg loss: .{0,300}?batch_cost:"
)
_FACT = re.compile(r"^[ {]'(use_amp|use_pure_fp16|max_iter|is_distributed)': (\w{1,12})")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step, throughput, step_s = (
            as_count(match[1]),
            number_after(text, "ips:"),
            number_after(text, "batch_cost:"),
        )
        if step is None or step_s is None:
            return
        samples = throughput * step_s if throughput else None
        if samples and not _fits(number_after(text, "tokens:"), samples, found):
            found.notice(
                "a throughput that contradicts the tokens and the step time beside it", line.number
            )
        found.add(
            Record(
                line.number,
                step,
                as_count(match[2]),
                find_time(text),
                step_s,
                number_after(text, "reader_cost:"),
                throughput,
                number_after(text, "avg loss:"),
                samples=samples,
            )
        )
    elif match := _FACT.match(text):
        _read_fact(match, found)


def _fits(tokens: float | None, samples: float, found: Found) -> bool:
    """Whether the window's tokens are those of as many steps as the first window has."""
    if tokens is None:
        return True
    steps: float = found.memory.setdefault("steps", tokens / samples)
    return abs(tokens / samples - steps) <= 0.02 * steps


def _read_fact(match: re.Match[str], found: Found) -> None:
    if match[1] == "max_iter":
        found.tell(last_step=as_count(match[2]))
    elif match[2] == "True" and match[1] != "is_distributed":
        found.tell(precision="amp")


GRAMMAR = Grammar(
    name="paddlenlp_transformer",
    title="PaddleNLP Transformer",
    framework="paddle",
    marker="step_idx: ",
    pattern=_RECORD,
    read=read,
    scope=Scope.CARD,
    unit="words",
    times=Mean.WINDOW,
    restarts=False,
    batch_in_name=False,
    warm_up_records=1,
)
