"""Grammar of NVIDIA's BERT in TensorFlow.

    DLL ... - Iteration: 1  throughput_train : 4327.281 seq/s mlm_loss : ...

Figures are of all cards. A line is one update of accumulated gradients. `Iteration` stands still
while the loss scaler skips updates, so lines are counted. The result is printed twice, with and
without overhead.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import read_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(r"DLL .{1,30} - Iteration: (\d{1,12})\s{1,4}throughput_train : ")
_SEQUENCES = re.compile(r"\+\+ expr (\d{1,9}) / \d{1,7} / \d{1,5}")
_AVERAGE = "Throughput Average (sentences/sec)"


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        text = text[match.start() :]
        throughput = number_after(text, "throughput_train :")
        if throughput is None:
            return
        found.add_record(
            line,
            as_count(match[1]),
            time_s=find_time(text),
            throughput=throughput,
            loss=number_after(text, "total_loss :"),
            lr=number_after(text, "learning_rate :"),
        )
    elif match := _SEQUENCES.search(text):
        found.add_facts(global_batch_size=as_count(match[1]))
    elif found.records and not found.memory.get("results"):
        read_results(line, found)


def read_results(line: Line, found: Found) -> None:
    """Take the results of the training.

    The evaluation prints the same words later, after a line of DLLogger.
    """
    what, how = "throughput with overhead", "of all cards, over the whole training"
    read_result(line, found, f"{_AVERAGE} with overhead =", what, "sequences/s", how)
    what, how = "throughput", "of all cards, without checkpoints and start-up"
    read_result(line, found, f"{_AVERAGE} =", what, "sequences/s", how)
    if " -  throughput_train :" in line.text:
        read_result(line, found, "throughput_train :", what, "sequences/s", how)
        found.memory["results"] = True


GRAMMAR = Grammar(
    name="tf_bert",
    title="NVIDIA BERT in TensorFlow (DLLogger)",
    framework="tensorflow",
    marker="throughput_train :",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="sequences",
    times=Mean.STEP,
    counts_steps=False,
    batch_in_name=False,
    warm_up_records=1,
)
