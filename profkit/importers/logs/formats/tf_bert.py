"""NVIDIA's BERT in TensorFlow: `DLL ... - Iteration: 1  throughput_train : 4327.281 seq/s mlm_loss : ...`.

Of all cards, one update of accumulated gradients a line; `Iteration` stands still while the loss
scaler skips updates, so lines are counted. The result is printed twice, with and without overhead.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import take_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(r"DLL .{1,30} - Iteration: (\d{1,12})\s{1,4}throughput_train : ")
_SEQUENCES = re.compile(r"\+\+ expr (\d{1,9}) / \d{1,7} / \d{1,5}")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        text = text[match.start() :]
        step, throughput = as_count(match[1]), number_after(text, "throughput_train :")
        if step is not None and throughput is not None:
            loss, lr = number_after(text, "total_loss :"), number_after(text, "learning_rate :")
            found.add(
                Record(line.number, step, None, find_time(text), None, None, throughput, loss, lr)
            )
    elif match := _SEQUENCES.search(text):
        found.tell(global_batch_size=as_count(match[1]))
    elif found.records and not found.memory.get("results"):
        _read_results(line, found)


def _read_results(line: Line, found: Found) -> None:
    """The training's results; the evaluation prints the same words after the line of DLLogger."""
    take_result(
        line,
        found,
        "Throughput Average (sentences/sec) with overhead =",
        "throughput with overhead",
        "sequences/s",
        "of all cards, over the whole training",
    )
    take_result(
        line,
        found,
        "Throughput Average (sentences/sec) =",
        "throughput",
        "sequences/s",
        "of all cards, without checkpoints and start-up",
    )
    if " -  throughput_train :" in line.text:
        take_result(
            line,
            found,
            "throughput_train :",
            "throughput",
            "sequences/s",
            "of all cards, without checkpoints and start-up",
        )
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
    counts=False,
    batch_in_name=False,
    warm_up_records=1,
)
