"""Grammar of PaddleNLP's Transformer.

    step_idx: 300, epoch: 1, batch: 124, avg loss: ..., tokens: 457069, ips: 8336.29 words/sec

Figures are of one card, and means over the steps since the line before. `tokens` are those of the
whole window, so a step's differ from window to window. The first line, of step 0, has no times.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"step_idx: (\d{1,12}), epoch: (\d{1,9}), batch: (\d{1,12}), avg loss: .{0,300}?batch_cost:"
)
_FACT = re.compile(r"^[ {]'(use_amp|use_pure_fp16|max_iter|is_distributed)': (\w{1,12})")
_TOLERANCE = 0.02
"""The steps of a window, as tokens over samples, may differ by this share."""


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        read_record(line, match, found)
    elif match := _FACT.match(text):
        if match[1] == "max_iter":
            found.add_facts(last_step=as_count(match[2]))
        elif match[2] == "True" and match[1] != "is_distributed":
            found.add_facts(precision="amp")


def read_record(line: Line, match: re.Match[str], found: Found) -> None:
    text = line.text
    step, step_s = as_count(match[1]), number_after(text, "batch_cost:")
    throughput, tokens = number_after(text, "ips:"), number_after(text, "tokens:")
    if step is None or step_s is None:
        return
    samples = throughput * step_s if throughput else None
    if samples and tokens is not None:
        steps = tokens / samples
        first_steps: float = found.memory.setdefault("steps", steps)
        if abs(steps - first_steps) > _TOLERANCE * first_steps:
            what = "a throughput that contradicts the tokens and the step time of its line"
            found.warn(what, line.number)
    found.add_record(
        line,
        step,
        as_count(match[2]),
        time_s=find_time(text),
        step_s=step_s,
        data_s=number_after(text, "reader_cost:"),
        throughput=throughput,
        loss=number_after(text, "avg loss:"),
        samples=samples,
    )


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
    restarts_each_epoch=False,
    batch_in_name=False,
    warm_up_records=1,
)
