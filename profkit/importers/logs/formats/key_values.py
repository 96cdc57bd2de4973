"""Grammar of trainers that print a line of names and values, whatever tool it is.

    iter 10: loss 3.1, time 120.1ms, mfu 30%
    [TRAIN] epoch: 1, iter: 20/80000, ... batch_cost: 0.5, reader_cost: 0.06, ips: 80.0 samples/sec

A line about training has a step and a time, or something from which the time follows: steps per
second, the time of all steps since the line before, the time since the start, or a throughput next
to the timestamps. What such a log does not state is not said: how many ranks it has, whether it
counts the samples of one of them, and whether a time is one step's or a mean. `DIALECTS` has what
is known of some tools. `lines.py` and `values.py` read the lines.
"""

from __future__ import annotations

import functools

from profkit.importers.logs.grammar import Grammar
from profkit.importers.logs.lines import RECORD, Dialect, read, read_training, settle
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.tables import A_ROW_IS_AN_EPOCH
from profkit.importers.reading.tensorboard import SIGN

_WORDS = {"unit": "words", "batch_in_name": False}
_OF_CARD = {"scope": Scope.CARD, "times": Mean.WINDOW}
_OF_ALL = {"scope": Scope.ALL, "times": Mean.WINDOW}
_ONE_STEP = {"scope": Scope.CARD, "times": Mean.STEP}
DIALECTS = (
    Dialect(r"interval_runtime", "paddlenlp_trainer", "PaddleNLP's Trainer", "paddle", _OF_ALL),
    Dialect(r"\[TRAIN\].*reader_cost", "paddleseg", "PaddleSeg", "paddle",
            {**_OF_CARD, "evaluates_apart": True}),
    Dialect(r"train step:\d+ .*elapse: ", "paddlevideo", "PaddleVideo", "paddle", _ONE_STEP),
    Dialect(r"eta: .*iter: \d+ +total_loss", "detectron2", "detectron2", "pytorch",
            {"scope": Scope.ALL, "times": Mean.RUN, "data_times": Mean.WINDOW, "first_step": 0,
             "steps_in_mean": lambda step: step - 2,  # without the first three
             "rounding_s": 5e-5, "warm_up_records": 0, "unit": "images"}),
    Dialect(A_ROW_IS_AN_EPOCH, "ultralytics", "Ultralytics: a step here is an epoch, with what "
            "it evaluates", "pytorch", {"times": Mean.WINDOW}),
    Dialect(r"step_idx.*words/sec", "paddlenlp_transformer", "PaddleNLP Transformer", "paddle",
            {**_OF_CARD, **_WORDS}),
    Dialect(r"ips_total", "paddlefleetx", "PaddleFleetX", "paddle", _OF_ALL),
    Dialect(r"(?:to[bt]al|global) step:? \d.*, batch: ", "paddlenlp_bert",
            "PaddleNLP language models", "paddle", _OF_CARD),
    Dialect(r"reader_cost|data_cost", "paddle", "a trainer of Paddle", "paddle", _OF_CARD),
    Dialect(r"\|avg tokens .*\|tokens/s ", "fairseq", "NVIDIA Transformer (fairseq)", "pytorch",
            {**_OF_ALL, **_WORDS}),
    Dialect(r"(?:Iter|Epoch) ?(?:\(train\))?\s{0,4}\[.*lr: .*[^_]time: ", "mmcv",
            "OpenMMLab (mmcv, mmengine: mmseg, mmdet, ...)", "pytorch", _OF_CARD),
    Dialect(r"Epoch: \[\d+\]\[ *\d+/\d+\].*Time", "mit_tsm",
            "mit-han-lab TSM, PyTorch's ImageNet example", "pytorch", _ONE_STEP),
    Dialect(r"\[Epoch \d+\]\[Batch \d+\].*Speed", "gluoncv", "GluonCV", "mxnet",
            {**_ONE_STEP, "scope": Scope.ALL}),
    Dialect(r"iter \d+: loss .*time .*ms", "nanogpt", "nanoGPT", "pytorch", _ONE_STEP),
    Dialect(r"(?:tps|wps): .*mfu", "torchtitan", "torchtitan", "pytorch", _OF_CARD),
    Dialect(r"current_steps.*total_time|current_steps.*elapsed_time", "llama_factory",
            "LLaMA-Factory", "pytorch", {"times": Mean.WINDOW, "scope": Scope.ALL}),
    Dialect(rf"{SIGN}, step", "tensorboard", "TensorBoard: a step is what the job counts", "",
            {"times": Mean.WINDOW}),
    Dialect(r"completed step", "maxtext", "MaxText", "jax", _ONE_STEP),
    Dialect(r"TimeHistory|tensorflow", "tensorflow", "TensorFlow", "tensorflow", _OF_ALL),
)  # fmt: skip


GRAMMAR = Grammar(
    name="key_values",
    title="a trainer's lines of names and values",
    framework="",
    marker="",
    pattern=RECORD,
    read=functools.partial(read, dialects=DIALECTS),
    scope=Scope.ALL,
    unit="samples",
    times=Mean.UNSAID,
    warm_up_records=1,
    knows=read_training,
    settle=settle,
)
