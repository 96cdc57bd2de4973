"""Grammar of Megatron-LM, and of GPT-NeoX and Megatron-DeepSpeed.

     iteration      100/  1000 | consumed samples: 25600 | elapsed time per iteration (ms): 1234.5 |
    throughput per GPU (TFLOP/s/GPU): 180.2 | ... | global batch size:   256 | lm loss: 5.9E+00 |
    samples/sec: 7.799 | iteration 34/ 10000 | elapsed time per iteration (ms): 4103.1 | ...
    iteration=  2/ 317892 | ... | elapsed_time_per_iteration_ms=16030.6 | ... global_batch_size= 256

The time is the mean over the iterations since the line before, in present versions without
evaluations and checkpoints. Samples are sequences, and the batch is that of all cards, of which
those that split the model share it. A block of timers may follow a line, see `timers.py`.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.knobs import PREFIX
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.timers import forget_timers, read_timers
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"(?<!\w)iteration(?:=|\s)\s{0,12}(\d{1,12})/\s{0,12}(\d{1,12}) {0,4}\|"
    r".{0,400}?elapsed[ _]time[ _]per[ _]iteration[ _](?:\(ms\): |ms=)"
)
_WORLD = re.compile(
    r"using world size: (\d{1,6})(?:, data-parallel[- ]size: (\d{1,6}))?"
    r"(?:, sequence-parallel size: (\d{1,6}))?(?:, context-parallel size: (\d{1,6}))?"
    r"(?:.{0,160}?(?<!-)tensor-model-parallel size: (\d{1,6}))?"
    r"(?:.{0,160}?(?<!-)pipeline-model-parallel size: (\d{1,6}))?"
)
"""Some releases print `sizes: Nonetensor-model-parallel size: 4, encoder-tensor-model-...`."""
_SIZES = [f"{PREFIX}{name}_parallel" for name in ("sequence", "context", "tensor", "pipeline")]
_ARGUMENT = re.compile(r"(?:^|\s)(\w{2,60}) \.{2,60} (\S{1,60})$")
_COUNTS = {"world_size": "world_size", "data_parallel_size": "data_ranks"}
_KNOBS = {
    "micro_batch_size": "micro_batch_size", "seq_length": "sequence_length",
    "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "context_parallel_size": "context_parallel", "ds_sequence_parallel_size": "sequence_parallel",
    "recompute_granularity": "recompute", "num_layers": "layers", "hidden_size": "hidden_size",
}  # fmt: skip
_TYPES = ("bf16", "fp16")
_NOT_FINITE = "a step with a loss or gradients that are not finite"


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        _read_record(line, match, found)
    elif match := _WORLD.search(text):
        found.header_lines.append(line.number)
        forget_timers(found)
        world, data_ranks, *sizes = match.groups()
        found.add_facts(world_size=as_count(world) or None, data_ranks=as_count(data_ranks) or None)
        found.add_facts(**dict(zip(_SIZES, sizes, strict=True)))
    elif " .." in text and (match := _ARGUMENT.search(text)):
        name, value = match[1], match[2]
        if name in _COUNTS:
            found.add_facts(**{_COUNTS[name]: as_count(value) or None})
        elif name in _TYPES and value == "True":
            found.add_facts(data_type=name)
        elif name in _KNOBS and value != "None":
            found.add_facts(**{PREFIX + _KNOBS[name]: value})
    elif "validation loss at" in text or "saving checkpoint at" in text:
        found.evaluation_lines.append(line.number)
    else:
        read_timers(line, found)


def _read_record(line: Line, match: re.Match[str], found: Found) -> None:
    text, step = line.text, as_count(match[1]) or 0
    elapsed_ms = _first(text, "elapsed time per iteration (ms):", "elapsed_time_per_iteration_ms=")
    skipped = _first(text, "number of skipped iterations:", "number_of_skipped_iterations=")
    if found.records and step < found.records[-1].step:
        forget_timers(found)
        found.memory["skipped"] = 0
    found.memory["skipped"] = found.memory.get("skipped", 0) + int(skipped or 0)
    if _first(text, "number of nan iterations:", "number_of_nan_iterations="):
        found.warn(_NOT_FINITE, line.number)
    found.add_record(
        line,
        step,
        time_s=find_time(text),
        step_s=None if elapsed_ms is None else elapsed_ms / 1000,
        throughput=_first(text, "samples per second:", "samples/sec:", "samples_per_second="),
        samples=_first(text, "global batch size:", "global_batch_size="),
        loss=_first(text, "lm loss:", "lm loss=", "lm_loss:", "loss:"),
        lr=_first(text, "learning rate:", "learning_rate="),
        skipped=found.memory["skipped"],
    )
    found.add_facts(last_step=as_count(match[2]))


def _first(text: str, *labels: str) -> float | None:
    """Return the number after the first of these labels that the text has."""
    for label in labels:
        if label in text:
            return number_after(text, label)
    return None


GRAMMAR = Grammar(
    name="megatron",
    title="Megatron-LM, GPT-NeoX and Megatron-DeepSpeed",
    framework="pytorch",
    marker="elapsed",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="samples",
    times=Mean.WINDOW,
    restarts_each_epoch=False,
    first_step=1,
    warm_up_records=1,
    rounding_s=5e-5,
)
