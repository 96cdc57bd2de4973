"""Grammar of NVIDIA's BERT in PyTorch.

    DLL ... - Training Epoch: 0 Training Iteration: 19  average_loss : 8.59 ... skipped_steps : 10

An iteration is one update of accumulated gradients. The counter stands still or goes back if the
scaler skips an update, so lines are counted. Times are those between the timestamps. The
throughput of all cards is stated once at the end, over the raw training time. `train_batch_size`
is the batch of an update of one card in NVIDIA's scripts, and a micro batch in others.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import read_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"DLL .{1,30} - Training Epoch: (\d{1,9}) Training Iteration: (\d{1,12})\s{1,4}"
    r"(?:average|final)_loss : "
)
_SEQUENCES = re.compile(r"\+\+ expr (\d{1,9}) / \d{1,7} / \d{1,5}")
_BATCH = re.compile(r"train_batch_size[= :]{1,3}(\d{1,8})")
_ACCUMULATION = re.compile(r"gradient_accumulation_steps[= :]{1,3}(\d{1,7})")
_STEPS = re.compile(r"--max_steps[ =](\d{1,9})|(?<!\w)max_steps=(\d{1,9})")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        read_record(line, match, found)
        return
    if match := _SEQUENCES.search(text):
        found.add_facts(global_batch_size=as_count(match[1]))
    elif "train_batch_size" in text and (match := _BATCH.search(text)):
        found.add_facts(batch_size=as_count(match[1]))
    if "gradient_accumulation_steps" in text and (match := _ACCUMULATION.search(text)):
        found.add_facts(accumulation=as_count(match[1]))
    if "max_steps" in text and (match := _STEPS.search(text)):
        found.add_facts(last_step=as_count(match[1] or match[2]))
    label = "training_sequences_per_second :"
    how = "of all cards, over the raw training time"
    read_result(line, found, label, "throughput", "sequences/s", how)
    read_result(line, found, "e2e_train_time :", "time of the whole training", "s", "")
    read_result(line, found, "raw_train_time :", "raw training time", "s", "")


def read_record(line: Line, match: re.Match[str], found: Found) -> None:
    text = line.text[match.start() :]
    loss = number_after(text, "step_loss :") or number_after(text, "average_loss :")
    skipped = number_after(text, "skipped_steps :")
    if skipped is not None:
        skipped = int(skipped)
    found.add_record(
        line,
        as_count(match[2]),
        as_count(match[1]),
        time_s=find_time(text),
        loss=loss or number_after(text, "final_loss :"),
        lr=number_after(text, "learning_rate :"),
        skipped=skipped,
    )


GRAMMAR = Grammar(
    name="dllogger_bert",
    title="NVIDIA BERT in PyTorch (DLLogger)",
    framework="pytorch",
    marker="Training Iteration:",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="sequences",
    times=Mean.WINDOW,
    counts_steps=False,
    timed_by_clock=True,
    batch_in_name=False,
    warm_up_records=1,
)
