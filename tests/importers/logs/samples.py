"""Synthetic logs in each grammar: `STEPS` steps of known times, as the tool prints them.

A sample contains the values it was made from, so that tests can compare with them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from profkit.importers.logs.parsed import ParsedLog

BATCH = 40
STEP_S = 0.5
DATA_S = 0.0625
STEPS = 200
_START = datetime(2024, 3, 5, 6, 7, 8, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Sample:
    """A log, and what must come out of it."""

    grammar: str
    name: str
    text: str
    step_s: float = STEP_S
    data_s: float | None = DATA_S
    throughput: float = BATCH / STEP_S
    world_size: int = 1

    @property
    def data(self) -> bytes:
        return self.text.encode()


def mean_data_s(log: ParsedLog) -> float | None:
    """Return the mean wait for data, from means of whole epochs if the log has them."""
    waits = [(each.data_s, 1) for each in log.epochs if each.data_s is not None]
    if not waits:
        waits = [(each.data_s, each.steps) for each in log.steady if each.data_s is not None]
    if waits:
        return sum(wait * steps for wait, steps in waits) / sum(steps for _, steps in waits)
    return next((each.value for each in log.stated if each.what == "data time"), None)


def step_time(step: int) -> float:
    """Steps are not equal, but their mean over any ten is `STEP_S`."""
    return STEP_S * (1 + 0.1 * math.sin(2 * math.pi * (step + 0.5) / 10))


def clock(step: int) -> datetime:
    """Return the time at which a step ended."""
    return _START + timedelta(seconds=sum(step_time(each) for each in range(step + 1)))


def mean(first: int, last: int) -> float:
    """The mean time of the steps from `first` to `last`."""
    return sum(step_time(step) for step in range(first, last + 1)) / (last - first + 1)


def _windows(first: int = 0, size: int = 10) -> Iterator[tuple[int, float]]:
    """The last step of each window of ten, and the window's mean."""
    for last in range(first + size - 1, STEPS, size):
        yield last, mean(last - size + 1, last)


def loss(step: int) -> float:
    return round(7 / (1 + 0.01 * step), 4)


def paddleclas_2020() -> Sample:
    lines = []
    for step in range(STEPS):
        average = mean(0, step) if step < 5 else mean(5, step)
        lines.append(
            f"{clock(step):%Y-%m-%d %H:%M:%S} INFO: epoch:0   train step:{step:<5}loss: "
            f"{loss(step):7.4f} top1: 0.1000 top5: 0.2000 "
            f"lr: 0.100000 elapse: {average:.3f}s ips: {BATCH / average:.5f} images/sec."
        )
    lines.append(
        f"{clock(STEPS):%Y-%m-%d %H:%M:%S} INFO: END epoch:0   train loss:  3.1 elapse_sum: 99.9s "
        f"ips: {BATCH / mean(5, STEPS - 1):.5f} images/sec."
    )
    return Sample(
        "paddleclas",
        "paddle_gpu1_fp32_bs40.txt",
        _text(lines),
        data_s=None,
        step_s=mean(5, STEPS - 1),
        throughput=BATCH / mean(5, STEPS - 1),
    )


def _paddleclas(head: str, unit: str) -> list[str]:
    lines = []
    for step in range(10, STEPS, 10):
        average = mean(5, step)
        lines.append(
            f"{clock(step).strftime(head)} INFO: epoch:0   train step:{step:<5}lr: 0.100000, loss: "
            f"{loss(step):7.4f} top1:  0.1000 top5:  0.2000 "
            f"batch_cost: {average:.5f} s, reader_cost: {DATA_S:.5f} s, ips: {BATCH / average:.5f} "
            f"{unit}/sec."
        )
    return lines


def paddleclas_2021() -> Sample:
    lines = _paddleclas("%Y-%m-%d %H:%M:%S", "images")
    lines.append(
        f"2024-03-05 06:09:00 INFO: END epoch:0   train  loss:  3.1 batch_cost: 0.50000 s, "
        f"reader_cost: 0.06 s, batch_cost_sum: 99.1 s, ips: {BATCH / 10 / STEP_S:.5f} images/sec."
    )
    return Sample(
        "paddleclas",
        "paddle_gpu1_fp32_bs40.txt",
        _text(lines),
        step_s=mean(5, 190),
        throughput=BATCH / mean(5, 190),
    )


def paddleclas_2022() -> Sample:
    lines = [
        "LAUNCH INFO 2024-03-05 06:07:01,000 devices: 0,1,2,3",
        *_paddleclas("[%Y/%m/%d %H:%M:%S] ppcls", "samples"),
    ]
    lines.append(
        "[2024/03/05 06:09:00] ppcls INFO: END epoch:0   train  loss:  3.1 batch_cost: 0.50000 s, "
        "reader_cost: 0.06250 s, batch_cost_sum: 99.1 s,"
    )
    return Sample(
        "paddleclas",
        "paddle_N1C4_fp32_bs40.txt",
        _text(lines),
        step_s=mean(5, 190),
        throughput=BATCH / mean(5, 190),
        world_size=4,
    )


def paddleseg() -> Sample:
    lines = ["GPUs used: 2", "PaddlePaddle: 2.9.0", f"batch_size: {BATCH}"]
    for last, average in _windows():
        lines.append(
            f"{clock(last):%Y-%m-%d %H:%M:%S} [INFO]\t[TRAIN] epoch: 1, iter: {last + 1}/{STEPS}, "
            f"loss: {loss(last):.4f}, lr: 0.009, "
            f"batch_cost: {average:.4f}, reader_cost: {DATA_S:.5f}, ips: {BATCH / average:.4f} "
            f"samples/sec | ETA 00:01:00"
        )
    lines.append("2024-03-05 06:09:00 [INFO]\t[EVAL] #Images: 5 mIoU: 0.7930 Acc: 0.9 Kappa: 0.9")
    lines.append(
        "2024-03-05 06:09:00 [INFO]\tAI-Rank-log 1709618948.198982 avg_ips:76.19images/sec"
    )
    return Sample("paddleseg", "seg.log", _text(lines), world_size=2)


def paddlevideo() -> Sample:
    lines = ["- AI-Rank-log 1709618948.937296 load_data, checksum:234619"]
    for step in range(0, STEPS, 20):
        seconds = 4.0 if step == 0 else STEP_S
        lines.append(
            f"[03/05 {clock(step):%H:%M:%S}] epoch:[  1/50 ] \x1b[95mtrain step:{step:<4}\x1b[0m "
            f"\x1b[92mloss: {loss(step):.5f} lr: 0.02 "
            f"top1: 0.1 top5: 0.2 elapse: {seconds:.3f} reader: {DATA_S:.3f}\x1b[0ms ips: "
            f"{BATCH / seconds:.5f} instance/sec."
        )
    lines.insert(2, "Found inf or nan, current scale is: 16384.0, decrease to: 16384.0*0.5")
    return Sample("paddlevideo", "GPUx1_AMP.log", _text(lines), data_s=0.062)


def paddlevideo_with_end() -> Sample:
    plain = paddlevideo()
    end = (
        "[03/05 06:09:00] END epoch:1   train loss_avg: 3.1  top1_avg: 0.3 elapse_avg: 0.520 "
        "reader_avg: 0.070 elapse_sum: 104.0s ips: 76.92308 instance/sec.\n"
    )
    return Sample(
        "paddlevideo",
        "GPUx1_AMP.log",
        plain.text + end,
        step_s=0.52,
        data_s=0.07,
        throughput=BATCH / 0.52,
    )


def paddlenlp_bert() -> Sample:
    lines = []
    for last, average in _windows():
        lines.append(
            f"total step: {last + 1}, epoch: 0, batch: {last}, loss: {loss(last):.6f}, "
            f"avg_reader_cost: {DATA_S:.5f} sec, "
            f"avg_batch_cost: {average:.5f} sec, avg_samples: {BATCH:.5f}, ips: "
            f"{BATCH / average:.5f} sequences/sec"
        )
    return Sample("paddlenlp_bert", "base_bs40_fp32_gpu1.log", _text(lines))


def paddlenlp_bert_2020() -> Sample:
    lines = [
        f"global step {last + 1}, epoch: 0, batch: {last}, loss: {loss(last):.6f}, speed: "
        f"{1 / average:.2f} step/s, ips :{BATCH / average:.2f} sequences/s"
        for last, average in _windows()
    ]
    return Sample("paddlenlp_bert", "base_bs40_fp32_gpu1.log", _text(lines), data_s=None)


def paddlenlp_transformer() -> Sample:
    lines = [
        " 'max_iter': 191,",
        (
            "INFO:root:step_idx: 0, epoch: 0, batch: 0, avg loss: 11.1, normalized loss: 9.7, ppl: "
            "68909.5"
        ),
    ]
    for last, average in _windows(first=1):
        lines.append(
            f"{clock(last):%Y-%m-%d %H:%M:%S},123-INFO: step_idx: {last}, epoch: 0, batch: {last}, "
            f"avg loss: {loss(last):.6f}, normalized loss: 9.9, ppl: 900.5, "
            f"avg_speed: {1 / average:.2f} step/s, batch_cost: {average:.5f} sec, reader_cost: "
            f"{DATA_S:.5f} sec, tokens: {BATCH * 100}, ips: {BATCH * 10 / average:.5f} words/sec"
        )
    return Sample(
        "paddlenlp_transformer",
        "paddle_gpu1_fp32_bs2560",
        _text(lines),
        throughput=BATCH * 10 / STEP_S,
    )


def mmcv() -> Sample:
    lines = [
        "GPU 0,1: Tesla V100-SXM2-32GB",
        f"    samples_per_gpu={BATCH},",
        "gpu_ids = range(0, 2)",
        "fp16 = dict()",
    ]
    for last, average in _windows():
        lines.append(
            f"Mon May 31 00:15:06 2021[1,0]<stderr>:{clock(last):%Y-%m-%d %H:%M:%S},274 - mmseg - "
            f"INFO - Iter [{last + 1}/{STEPS}]\tlr: 9.653e-03, eta: 0:09:03, "
            f"time: {average:.3f}, data_time: {DATA_S:.4f}, memory: 13479, decode.loss_ce: 2.1390, "
            f"decode.acc_seg: 38.56, loss: {loss(last):.4f}"
        )
    return Sample("mmcv", "hrnet_c2_fp16.log", _text(lines), world_size=2)


def detectron2() -> Sample:
    lines = ["  IMS_PER_BATCH: 40"]
    lines += [
        f"[03/05 {clock(last):%H:%M:%S}] d2.utils.events INFO:  eta: 6:09:40  iter: {last}  "
        f"total_loss: {loss(last)}  loss_cls: 0.5  "
        f"time: {mean(3, last):.4f}  data_time: {DATA_S:.4f}  lr: 0.00079922  max_mem: 2723M"
        for last in range(19, STEPS, 20)
    ]
    lines.append(
        "[03/05 06:09:00] d2.engine.hooks INFO: Overall training speed: 198 iterations in 0:01:39 "
        "(0.5001 s / it)"
    )
    return Sample(
        "detectron2",
        "rcnn_gpu1.log",
        _text(lines),
        step_s=round(mean(3, 199), 4),
        throughput=BATCH / round(mean(3, 199), 4),
    )


def mit_tsm() -> Sample:
    lines = [f"video number:{BATCH * STEPS + 3}"]
    for step in range(0, STEPS, 20):
        seconds = 3.0 if step == 0 else STEP_S
        lines.append(
            f"Epoch: [0][{step}/{STEPS}], lr: 0.00250\tTime {seconds:.3f} ({seconds:.3f})\tData "
            f"{DATA_S:.4f} (0.044)\tLoss {loss(step):.4f} (6.2)\t"
            f"Prec@1 0.000 (0.595)\tPrec@5 0.000 (2.381)\t{clock(step):%Y-%m-%d %H:%M:%S.%f}"
        )
    return Sample("mit_tsm", "GPUx1_FP32.log", _text(lines))


def _dll(step: int, words: str) -> str:
    return f"DLL {clock(step):%Y-%m-%d %H:%M:%S.%f} - {words}"


def dllogger_pytorch() -> Sample:
    lines = [
        _dll(
            0,
            f"PARAMETER data : /x  arch : resnet50  batch_size : {BATCH}  amp : True  world_size : "
            f"4 ",
        )
    ]
    lines += [
        _dll(
            step,
            f"Epoch: 0 Iteration: {step + 1}  train.loss : {loss(step)}  train.total_ips : "
            f"{4 * BATCH / step_time(step):.2f} img/s",
        )
        for step in range(STEPS)
    ]
    total = sum(4 * BATCH / step_time(step) for step in range(STEPS)) / STEPS
    lines.append(_dll(STEPS, f"Summary: train.loss : 6.4  train.total_ips : {total:.2f} img/s"))
    lines.append(
        _dll(
            STEPS,
            f"Summary: lr : 0.1  train.compute_ips : 350.0 img/s train.data_time : {DATA_S} s "
            f"train.compute_time : 0.4 s",
        )
    )
    return Sample(
        "dllogger_pytorch",
        "pytorch_gpu4_amp_bs40.txt",
        _text(lines),
        throughput=4 * BATCH / STEP_S,
        world_size=4,
    )


def dllogger_tensorflow() -> Sample:
    lines = [_dll(0, f"PARAMETER arch : resnet50  batch_size : {BATCH}  num_iter : 200  ")]
    lines += [
        _dll(step, f"(0, {step + 200}) total_ips : {2 * BATCH / step_time(step)!r} ")
        for step in range(STEPS)
    ]
    total = sum(2 * BATCH / step_time(step) for step in range(STEPS)) / STEPS
    lines.append(_dll(STEPS, f"() train_throughput : {total} "))
    return Sample(
        "dllogger_tensorflow",
        "tf_gpu2_fp32_bs40.txt",
        _text(lines),
        data_s=None,
        throughput=2 * BATCH / STEP_S,
        world_size=2,
    )


def nvlog_tensorflow() -> Sample:
    lines = []
    for step in range(9, STEPS, 10):
        lines.append(
            f":::NVLOGv0.2.3 resnet {clock(step).timestamp():.9f} (benchmark_hooks.py:59) "
            f"iteration: {step + 1}"
        )
        lines.append(
            f":::NVLOGv0.2.3 resnet {clock(step).timestamp():.9f} (benchmark_hooks.py:60) "
            f"total_ips: {BATCH / STEP_S}"
        )
    lines.append(
        f":::NVLOGv0.2.3 resnet {clock(STEPS).timestamp():.9f} (benchmark_hooks.py:66) Average "
        f"total_ips: {BATCH / STEP_S}"
    )
    return Sample("dllogger_tensorflow", "tf_gpu1_amp_bs40.txt", _text(lines), data_s=None)


def dllogger_mxnet() -> Sample:
    lines = [
        "[1,0]<stdout>:"
        + _dll(
            0,
            f"PARAMETER arch : resnetv15  gpus : [0, 1]  dtype : float32  amp : False  batch_size "
            f": {2 * BATCH}  ",
        )
    ]
    lines += [
        "[1,0]<stdout>:"
        + _dll(
            last,
            f"Epoch: 0 Iteration: {last}  train.loss : {loss(last)}  train.ips : "
            f"{2 * BATCH / average!r} images/s train.lr : 0.9 ",
        )
        for last, average in _windows()
    ]
    lines += [
        "train.ips",
        "           |    80    |",
        "------------------------",
        "     2     |   160.0  |",
    ]
    return Sample(
        "dllogger_mxnet",
        "mxnet_gpu2_fp32_bs40.txt",
        _text(lines),
        data_s=None,
        throughput=2 * BATCH / STEP_S,
        world_size=2,
    )


def mxnet_2020() -> Sample:
    lines = [
        (
            "[1,0]<stderr>:2024-03-05 06:07:08,640:INFO: Start with arguments "
            f"Namespace(amp=False, arch='resnetv15', batch_size={BATCH}, lr=0.1)"
        )
    ]
    lines += [
        f"[1,0]<stderr>:{clock(last):%Y-%m-%d %H:%M:%S},123:INFO: Epoch[0] Batch "
        f"[{last - 9}-{last}]\tSpeed: {BATCH / average!r} samples/sec\tLR: 0"
        for last, average in _windows()
    ]
    return Sample("dllogger_mxnet", "mxnet_gpu1_fp32_bs40.txt", _text(lines), data_s=None)


def dllogger_maskrcnn() -> Sample:
    lines = [
        _dll(0, "PARAMETER gpu_count : 1 "),
        "  IMS_PER_BATCH: 40",
        "  MAX_ITER: 200",
        "DTYPE: float16",
        "  IMS_PER_BATCH: 8",
    ]
    lines += [
        _dll(
            last,
            f"Training Iteration: {last + 1}  eta : 0:16:36  learning_rate : 3.8e-04  memory : "
            f"2787.4  loss : {loss(last)} (2.4747)  ",
        )
        + f"time : 0.4800 ({mean(0, last):.4f})  data : 0.0163 ({DATA_S:.4f}) "
        for last in range(19, STEPS, 20)
    ]
    lines.append(_dll(STEPS, " e2e_train_time : 100.5  train_perf_fps : 79.602 "))
    return Sample("dllogger_maskrcnn", "pytorch_gpu1_amp_bs40.txt", _text(lines))


def tf_maskrcnn() -> Sample:
    lines = []
    for last, _ in _windows():
        lines += [
            f"[1,0]<stdout>:[MaskRCNN] INFO    : timestamp: {clock(last).timestamp():.6f}",
            f"[1,0]<stdout>:[MaskRCNN] INFO    : iteration: {last + 1}",
            f"[1,0]<stdout>:[MaskRCNN] INFO    : throughput: {BATCH / STEP_S:.1f} samples/sec",
            f"[1,0]<stdout>:[MaskRCNN] INFO    : Total loss: {loss(last)}",
        ]
    lines.append(
        f"[1,0]<stdout>:[MaskRCNN] INFO    : Average throughput: {BATCH / STEP_S:.1f} samples/sec"
    )
    lines.append(
        f"horovodrun -np 2 python /workspace/mask_rcnn_main.py --total_steps 200 "
        f"--train_batch_size {BATCH // 2} "
    )
    return Sample("tf_maskrcnn", "tf_gpu2_fp32_bs20.txt", _text(lines), data_s=None, world_size=2)


def dllogger_bert() -> Sample:
    lines = ["+ num_gpus=1", "+ precision=fp16", f"++ expr {BATCH} / 4 / 1"]
    for step in range(60):
        shown = max(0, step - 5)
        lines.append(
            _dll(
                step,
                f"Training Epoch: 0 Training Iteration: {shown}  average_loss : {loss(step)}  "
                f"learning_rate : 0.001  skipped_steps : {min(step, 5)} ",
            )
        )
    lines.append(
        _dll(
            60,
            f" e2e_train_time : 33.1  training_sequences_per_second : {BATCH / STEP_S}  final_loss "
            f": 8.1  raw_train_time : 30.1 ",
        )
    )
    return Sample("dllogger_bert", "bert_fp16_bs4_gpu1.log", _text(lines), data_s=None)


def tf_bert() -> Sample:
    lines = [f"++ expr {BATCH} / 4 / 1"]
    lines += [
        _dll(
            step,
            f"Iteration: {max(1, step - 5)}  throughput_train : {BATCH / step_time(step):.3f} "
            f"seq/s mlm_loss : 9.1  nsp_loss : 0.7  total_loss : {loss(step)}  learning_rate : 0.0 "
            f"",
        )
        for step in range(61)
    ]
    lines.append("INFO:tensorflow:Throughput Average (sentences/sec) with overhead = 70.00")
    lines.append(_dll(70, f" throughput_train : {BATCH / STEP_S:.3f} seq/s"))
    return Sample("tf_bert", "tf_bert_fp16_bs4_gpu1.log", _text(lines), data_s=None)


def fairseq() -> Sample:
    lines = ["| training on 8 GPUs"]
    lines += [
        f"Transformer | epoch 0 | step {last + 1} |avg loss {loss(last)} |avg tokens 4000.000 |"
        f"tokens/s {4000 / average:.3f} |walltime {(clock(last) - _START).total_seconds():.3f} |"
        for last, average in _windows()
    ]
    lines.append("| done training in 101.5 seconds")
    return Sample(
        "fairseq",
        "transformer_gpu8",
        _text(lines),
        data_s=None,
        throughput=4000 / STEP_S,
        world_size=8,
    )


def gluoncv() -> Sample:
    lines = [f"Namespace(amp=False, batch_size={BATCH}, data_shape=416, gpus='0', lr=0.001)"]
    lines += [
        f"AI-Rank-log [Epoch 0][Batch {step}], LR: 3.41E-07, Speed: {BATCH / STEP_S:.3f} "
        f"samples/sec, ObjLoss=6561.729"
        for step in range(9, STEPS, 10)
    ]
    lines.append("[Epoch 0] Training cost: 101.527, ObjLoss=43.448")
    return Sample("gluoncv", "GPUx1_time2train_ips.log", _text(lines), data_s=None)


def psenet() -> Sample:
    lines = ["Epoch: [1 | 2]"]
    for step in range(0, STEPS, 2):
        average = step_time(0) if step == 0 else mean(step - 1, step)
        lines.append(
            f"({step + 1}/{STEPS}) LR: 0.001000 | Batch: {mean(0, step):.3f}s | Total: 0min | ETA: "
            f"1min | Loss: 0.951 | "
            f"Loss(text/kernel): 0.667/0.284 | IoU(text/kernel): 0.1/0.0 | Acc rec: 0.000 | ips: "
            f"{BATCH / average:.5f}"
        )
    return Sample(
        "psenet",
        "psenet_gpu1.log",
        _text(lines),
        data_s=None,
        step_s=mean(1, 198),
        throughput=BATCH / mean(1, 198),
    )


_WORLD = (
    "using world size: 8, data-parallel size: 2, context-parallel size: 1, tensor-model-parallel "
    "size: 2, pipeline-model-parallel size: 2"
)


def megatron() -> Sample:
    """A job whose model is split among four cards, with its timers."""
    lines = [_WORLD, "  bf16 ............................................ True"]
    for last, average in _windows():
        lines.append(
            f" [{clock(last):%Y-%m-%d %H:%M:%S}] iteration {last + 1:8d}/{STEPS:8d} | consumed "
            f"samples: {(last + 1) * BATCH:12d} | elapsed time per iteration (ms): "
            f"{average * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): 180.2 | learning rate: "
            f"1.500000E-06 | global batch size: {BATCH:5d} | lm loss: {loss(last):.6E} | "
            "load_balancing_loss: 1.041994E+00 | loss scale: 1.0 | grad norm: 5.960 | number of "
            "skipped iterations:   0 | number of nan iterations:   0 |"
        )
        lines += [
            "(min, max) time across ranks (ms):",
            f"    forward-backward ...............................: (380.10, {last + 400:.2f})",
            f"    forward-compute ................................: (120.00, {last + 130:.2f})",
            "    optimizer ......................................: (30.25, 31.50)",
        ]
    return Sample("megatron", "pretrain.log", _text(lines), data_s=None, world_size=8)


def gpt_neox() -> Sample:
    lines = []
    for last, average in _windows():
        parts = [
            f" samples/sec: {BATCH / average:.3f} | iteration {last + 1:8d}/{STEPS:8d}",
            f"elapsed time per iteration (ms): {average * 1000:.1f} | learning rate: 2.111E-06",
            f"approx flops per GPU: 112.9TFLOPS | lm_loss: {loss(last):.6E}",
            "number of skipped iterations:   0 | number of nan iterations:   0 |",
        ]
        timers = "time (ms) | forward: 659.86 | backward: 2164.69 | optimizer: 1172.51"
        lines += [" | ".join(parts), timers]
    return Sample("megatron", "neox_gpu1.log", _text(lines), data_s=None)


def megatron_deepspeed() -> Sample:
    lines = []
    for last, average in _windows():
        head = f"[{clock(last):%Y-%m-%d %H:%M:%S}][INFO][training:1251] -  iteration="
        parts = [
            f"{head}{last + 1:8d}/{STEPS:8d} | consumed_samples={last:12d}",
            f"elapsed_time_per_iteration_ms={average * 1000:.1f} | learning_rate=9.4372e-09",
            f"global_batch_size={BATCH:5d} | lm loss={loss(last):.6f} | loss_scale=1.0",
            "number_of_skipped_iterations=  0 | number_of_nan_iterations=  0 |",
        ]
        world = "  world_size ...................................... 4"
        lines += [" | ".join(parts), world]
    return Sample("megatron", "alcf.log", _text(lines), data_s=None, world_size=4)


def _head(step: int) -> str:
    return f"[{clock(step):%Y-%m-%d %H:%M:%S},{clock(step).microsecond // 1000:03d}] [INFO]"


def deepspeed() -> Sample:
    lines = [
        f"{_head(0)} [config.py:960:print] DeepSpeedEngine configuration:",
        f"{_head(0)} [config.py:964:print]   bfloat16_enabled ............. True",
        f"{_head(0)} [config.py:964:print]   train_batch_size ............. {BATCH}",
        f"{_head(0)} [config.py:964:print]   train_micro_batch_size_per_gpu  5",
        f"{_head(0)} [config.py:964:print]   world_size ................... 4",
    ]
    for last, _ in _windows():
        lines += [
            (
                f"{_head(last)} [logging.py:96:log_dist] [Rank 0] step={last + 1}, skipped=1, "
                "lr=[4.998e-05, 4.998e-05], mom=[(0.9, 0.95), (0.9, 0.95)]"
            ),
            (
                f"{_head(last)} [timer.py:260:stop] epoch=0/micro_step={last + 1}/global_step="
                f"{last + 1}, RunningAvgSamplesPerSec={BATCH / STEP_S}, CurrSamplesPerSec="
                f"{BATCH / STEP_S}, MemAllocated=4.32GB, MaxMemAllocated=38.49GB"
            ),
            (
                f"{_head(last)} [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 54.66 | bwd: "
                "67.97 | bwd_inner: 50.40 | bwd_allreduce: 17.40 | step: 9.19"
            ),
        ]
    return Sample("deepspeed", "run.log", _text(lines), data_s=None, world_size=4)


def deepspeed_pipeline() -> Sample:
    lines = []
    for last, average in _windows():
        lines += [
            (
                f"{_head(last)} [logging.py:68:log_dist] [Rank 0] step={last + 1}, skipped=0, "
                "lr=[0.001], mom=[[0.9, 0.999]]"
            ),
            (
                f"steps: {last + 1} loss: {loss(last):.4f} iter time (s): {average:.3f} "
                f"samples/sec: {BATCH / average:.3f}"
            ),
        ]
    return Sample("deepspeed", "pipeline_gpu1.log", _text(lines), data_s=None)


def mark(time_s: float, key: str, value: object = None, **more: object) -> str:
    """Return a line of MLPerf's logger."""
    event = {"namespace": "", "time_ms": round(time_s * 1000), "event_type": "POINT_IN_TIME"}
    event |= {"key": key, "value": value, "metadata": {"file": "train.py", "lineno": 1, **more}}
    return f":::MLLOG {json.dumps(event)}"


def mlperf() -> Sample:
    now = _START.timestamp()
    lines = [mark(now, "init_start")] * 4 + [
        mark(now, "submission_benchmark", "bert"),
        mark(now, "global_batch_size", BATCH),
        mark(now, "run_start"),
    ]
    for last, average in _windows():
        lines.append(mark(now, "block_start", samples_count=BATCH * (last - 9)))
        now += 10 * average
        done = BATCH * (last + 1)
        lines += [
            mark(now, "block_stop", samples_count=BATCH * 10),
            mark(now, "eval_start", samples_count=done),
            mark(now + 3, "eval_stop", samples_count=done),
        ]
        now += 3
    lines.append(mark(now, "run_stop", samples_count=BATCH * STEPS))
    return Sample("mlperf", "result_0.txt", _text(lines), data_s=None, world_size=4)


def huggingface() -> Sample:
    lines = [f"  Total train batch size (w. parallel, distributed & accumulation) = {BATCH}"]
    for step in range(20, STEPS + 1, 20):
        minutes, seconds = divmod(round(step * STEP_S), 60)
        lines.append(f" 10%|█ | {step}/{STEPS} [{minutes:02d}:{seconds:02d}<05:24,  2.00it/s]")
        lines.append("{'loss': 2.9, 'grad_norm': 1.0, 'learning_rate': 7.2e-06, 'epoch': 0.1}")
    return Sample("huggingface", "train.log", _text(lines), data_s=None)


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


MAKERS: tuple[Callable[[], Sample], ...] = (
    paddleclas_2020,
    paddleclas_2021,
    paddleclas_2022,
    paddleseg,
    paddlevideo,
    paddlevideo_with_end,
    paddlenlp_bert,
    paddlenlp_bert_2020,
    paddlenlp_transformer,
    mmcv,
    detectron2,
    mit_tsm,
    dllogger_pytorch,
    dllogger_tensorflow,
    nvlog_tensorflow,
    dllogger_mxnet,
    mxnet_2020,
    dllogger_maskrcnn,
    tf_maskrcnn,
    dllogger_bert,
    tf_bert,
    fairseq,
    gluoncv,
    psenet,
    megatron,
    gpt_neox,
    megatron_deepspeed,
    deepspeed,
    deepspeed_pipeline,
    mlperf,
    huggingface,
)
SAMPLES = {maker.__name__: maker() for maker in MAKERS}
