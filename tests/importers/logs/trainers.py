"""Lines of trainers that have no grammar of their own, each with the truth it was made from.

The shapes are those of published logs. `HELD_OUT` was not tried before the grammar was finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

LINES = 12
EVERY = 10
_START = datetime(2024, 3, 5, 6, 7, 8, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Case:
    """A template of a record line; times and rates are those of `step_s` and `batch`."""

    template: str
    step_s: float = 0.5
    data_s: float | None = None
    batch: float | None = None
    unit: str = "samples"
    every: int = EVERY
    zero: bool = False
    """Whether the first line is of step 0."""
    head: str = ""
    between: str = ""
    """A line after each record that is not about training."""

    @property
    def text(self) -> str:
        lines = [self.head] if self.head else []
        for line in range(LINES):
            step = line * self.every if self.zero else (line + 1) * self.every
            step_s = self.step_s
            clock = _START + timedelta(seconds=step * step_s)
            batch = self.batch or 0
            shown = {
                "step": step,
                "t": step_s,
                "ms": step_s * 1000,
                "d": self.data_s or 0,
                "rate": batch / step_s,
                "card": batch / step_s / 8,
                "per_s": 1 / step_s,
                "window": step_s * self.every,
                "total": step * step_s,
                "batch": batch,
                "slash": f"{clock:%Y/%m/%d %H:%M:%S}",
                "dash": f"{clock:%Y-%m-%d %H:%M:%S},{clock.microsecond // 1000:03d}",
                "short": f"{clock:%m/%d %H:%M:%S}",
                "before": step - self.every,
                "samples": step * 8,
            }
            lines.append(self.template.format(**shown))
            if self.between:
                lines.append(self.between.format(**shown))
        return "\n".join(lines) + "\n"


TRAINERS = {
    "paddleclas_engine": Case(
        "[{slash}] ppcls INFO: [Train][Epoch 1/120][Iter: {step}/5005]lr(PiecewiseDecay): "
        "0.10000000, top1: 0.00142, CELoss: 8.36165, loss: 8.36165, batch_cost: {t:.5f}s, "
        "reader_cost: {d:.5f}, ips: {rate:.5f} samples/s, eta: 5 days, 12:52:01",
        data_s=0.02113,
        batch=64,
        zero=True,
        between="[{slash}] ppcls INFO: [Eval][Epoch 1][Iter: {step}/66]CELoss: 0.89, loss: 0.9, "
        "batch_cost: 4.55685s, reader_cost: 3.68328, ips: 42.13440 images/sec",
    ),
    "paddledetection": Case(
        "[{short}] ppdet.engine INFO: Epoch: [0] [{step:4d}/1929] learning_rate: 0.064000 "
        "loss_vfl: 1.180627 loss: 2.628206 eta: 2 days, 12:18:53 batch_cost: {t:.4f} data_cost: "
        "{d:.4f} ips: {rate:.4f} images/s max_mem_reserved: 3988 MB",
        data_s=0.0125,
        batch=24,
        unit="images",
        zero=True,
    ),
    "paddleocr": Case(
        "[{slash}] ppocr INFO: epoch: [1/200], global_step: {step}, lr: 0.000006, loss: 1.871535, "
        "avg_reader_cost: {d:.5f} s, avg_batch_cost: {t:.5f} s, avg_samples: {batch:.1f}, ips: "
        "{rate:.5f} samples/s, eta: 0:51:59",
        data_s=0.04,
        batch=8,
    ),
    "paddlenlp_trainer": Case(
        "[{dash}] [    INFO] - loss: 3.25806541, learning_rate: 2.9e-05, global_step: {step}, "
        "interval_runtime: {window:.4f}, interval_samples_per_second: {rate:.3f}, "
        "interval_steps_per_second: {per_s:.3f}, epoch: 0.0265",
        batch=8,
        head="[2024-03-05 06:07:01,747] [    INFO] -   Total train batch size (w. parallel, "
        "distributed & accumulation) = 8",
    ),
    "paddlefleetx": Case(
        "[{dash}] [    INFO] - global step {step}, epoch: 0, batch: {before}, loss: 11.052017212, "
        "avg_reader_cost: {d:.5f} sec, avg_batch_cost: {t:.5f} sec, speed: {per_s:.2f} step/s, "
        "ips_total: {rate:.0f} tokens/s, ips: {card:.0f} tokens/s, learning rate: 5.55556e-09",
        data_s=0.0571,
        batch=65536,
        unit="tokens",
    ),
    "paddle_reference": Case(
        "[Epoch 1, iter: {step}] top1: 0.10312, top5: 0.27344, lr: 0.01000, loss: 5.34719, "
        "avg_reader_cost: {d:.5f} sec, avg_batch_cost: {t:.5f} sec, avg_samples: {batch:.1f}, "
        "avg_ips: {rate:.5f} images/sec.",
        data_s=0.03644,
        batch=64,
        unit="images",
    ),
    "paddlerec": Case(
        "{dash} - INFO - epoch: 0, batch_id: {step}, auc:0.682062, loss:[0.50682473], "
        "avg_reader_cost: {d:.5f} sec, avg_batch_cost: {t:.5f} sec, avg_samples: {batch:.5f}, "
        "ips: {rate:.5f} ins/s, loss: 0.506825",
        data_s=0.00037,
        batch=5120,
        unit="ins",
        zero=True,
    ),
    "modded_nanogpt": Case(
        "step:{step}/1395 train_loss:4.2887 train_time:{total:.3f}s step_avg:{ms:.2f}ms",
    ),
    "modded_nanogpt_ms": Case(
        "step:{step}/1750 train_time:{total:.0f}000ms step_avg:{ms:.2f}ms",
    ),
    "nanogpt": Case(
        "iter {step}: loss 3.1012, time {ms:.2f}ms, mfu 30.12%",
        zero=True,
        between="step {step}: train loss 2.1, val loss 2.2",
    ),
    "torchtitan": Case(
        "[rank0]:[titan] {dash} - root - INFO - step: {step:2d}  loss:  7.62585  grad_norm: "
        "26.6250  memory: 66.91GiB(37.51%)  tps: {rate:,.0f}  tflops: 314.71  mfu: 13.99%",
        batch=16384,
        unit="tokens",
        every=1,
    ),
    "torchtitan_of_all_ranks": Case(
        "[titan] {dash} - root - INFO - step: {step:2d}  loss:  7.62585  memory: 66.91GiB(37.51%)"
        "  tps: {rate:,.0f}  mfu: 13.99%\n"
        "[titan] {dash} - root - INFO - step: {step:2d}  loss:  7.62585  memory: 66.91GiB(37.51%)"
        "  tps: {rate:,.0f}  mfu: 13.99%",
        batch=16384,
        unit="tokens",
        every=1,
    ),
    "maxtext": Case(
        "completed step: {step}, seconds: {t:.3f}, TFLOP/s/device: 97.566, Tokens/s/device: "
        "{rate:.3f}, total_weights: 31457280, loss: 12.409",
        batch=16384,
        unit="tokens",
        every=1,
    ),
    "timm": Case(
        "Train: 0 [{step:4d}/1251 ( 18%)]  Loss: 6.953 (6.95)  Time: {t:.3f}s, {rate:>7.2f}/s  "
        "(0.713s,  359.04/s)  LR: 1.000e-06  Data: {d:.3f} (0.066)",
        data_s=0.014,
        batch=256,
        zero=True,
    ),
    "metric_logger": Case(
        "Epoch: [0]  [{step:4d}/1000]  eta: 0:10:00  lr: 0.000100  loss: 5.3011 (6.1210)  time: "
        "{t:.4f}  data: {d:.4f}  max mem: 2000",
        data_s=0.0102,
        zero=True,
    ),
    "llm_c": Case(
        "step {step:4d}/19560 | loss 7.577051 (+nanz)| norm 1.1461 (+nanz)| lr 2.40e-06 | "
        "{ms:.2f} ms | 49.0% bf16 MFU | {rate:.0f} tok/s",
        batch=524288,
        unit="tokens",
        every=1,
    ),
    "dlrm": Case(
        "Finished training it {step}/1000 of epoch 0, {ms:.2f} ms/it, loss 0.083371, accuracy "
        "75.1 %"
    ),
    "tf_estimator": Case(
        "INFO:tensorflow:loss = 0.35228056, step = {step} ({window:.3f} sec)",
        between="INFO:tensorflow:global_step/sec: {per_s:.4f}",
    ),
    "tf_time_history": Case(
        "I0324 07:55:20.594147 140348344015936 keras_utils.py:145] TimeHistory: {window:.2f} "
        "seconds, {rate:.2f} examples/second between steps {before} and {step}",
        batch=128,
        unit="examples",
    ),
    "tf_benchmarks": Case(
        "INFO|2020-05-19T07:21:15|/opt/launcher.py|27| {step}\timages/sec: {rate:.1f} +/- 0.4 "
        "(jitter = 0.7)\t8.343",
        batch=32,
        unit="images",
        head="Batch size:  32 global",
    ),
    "tf_cifar": Case(
        "{dash}: step {step}, loss = 4.67 ({rate:.1f} examples/sec; {t:.3f} sec/batch)",
        batch=128,
        unit="examples",
    ),
    "espnet": Case(
        "[host] {dash} (trainer:793) INFO: 1epoch:train:{before}-{step}batch: iter_time={d:.3f}, "
        "forward_time=0.095, loss_ctc=557.480, loss=80.856, backward_time=0.041, "
        "optim_step_time=0.010, optim0_lr0=6.250e-07, train_time={t:.3f}",
        data_s=0.003,
    ),
    "transformer_xl": Case(
        "| epoch   1 step {step:8d} | {step:6d} batches | lr 0.00025 | ms/batch {ms:5.2f} | loss "
        " 6.91 | ppl  1002.1"
    ),
    "slowfast": Case(
        'json_stats: {{"_type": "train_iter", "dt": {t:.5f}, "dt_data": {d:.5f}, "dt_net": 0.4, '
        '"epoch": "1/22", "eta": "1:00:00", "iter": "{step}/1000", "loss": 1.2}}',
        data_s=0.01,
    ),
    "yolox": Case(
        "{dash} | INFO | yolox.core.trainer:261 - epoch: 1/300, iter: {step}/7329, mem: 2000Mb, "
        "iter_time: {t:.3f}s, data_time: {d:.3f}s, total_loss: 15.1, lr: 1.0e-05, size: 640, "
        "ETA: 1 day, 2:03:04",
        data_s=0.002,
    ),
}
HELD_OUT = {
    "open_clip": Case(
        "{dash} | INFO | Train Epoch: 0 [{samples:>6}/10000 (1%)] Data (t): {d:.3f} Batch (t): "
        "{t:.3f}, {rate:.1f}/s, {card:.1f}/s/gpu LR: 0.000001 Logit Scale: 14.286 "
        "Contrastive_loss: 6.9 (6.9)",
        data_s=0.1,
        batch=512,
    ),
    "swin": Case(
        "[{dash} swin_tiny] (main.py 219): INFO Train: [0/300][{step}/1251]\teta 0:10:00 lr "
        "0.000001\t wd 0.0500\ttime {t:.4f} (0.9121)\tloss 6.9421 (6.9533)\tgrad_norm 1.1 (inf)\t"
        "mem 2000MB",
        zero=True,
    ),
    "fairseq_json": Case(
        '{dash} | INFO | train_inner | {{"epoch": 1, "update": 0.1, "loss": "10.2", "ppl": '
        '"1200.1", "wps": "{rate:.1f}", "ups": "{per_s:.3f}", "wpb": "{batch}", "bsz": "8", '
        '"num_updates": "{step}", "lr": "0.0001", "train_wall": "50", "wall": "70"}}',
        batch=4000,
        unit="tokens",
    ),
    "opennmt": Case(
        "[{dash} INFO] Step {step}/100000; acc:   3.01; ppl: 9812.1; xent: 9.2; lr: 0.0001; bsz: "
        "3000/3100/64; {rate:.0f}/9000 tok/s;      {total:.0f} sec",
        batch=4000,
        unit="tokens",
    ),
    "marian": Case(
        "[{dash}] Ep. 1 : Up. {step} : Sen. 60,000 : Cost 5.12 : Time {window:.2f}s : {rate:.2f} "
        "words/s",
        batch=4000,
        unit="words",
    ),
    "lerobot": Case(
        "INFO {dash} ot_train.py:351 step:{step} smpl:2K ep:3 epch:0.06 loss:2.806 grdn:14.267 "
        "lr:1.0e-05 updt_s:{t:.3f} data_s:{d:.3f}",
        data_s=0.01,
    ),
    "litgpt": Case(
        "Epoch 1 | iter {step} step 5 | loss train: 3.102, val: n/a | iter time: {ms:.2f} ms (step)"
    ),
    "openpcdet": Case(
        "{dash}   INFO  Train:    1/3 ( 33%) [{step:4d}/323 ( 15%)]  Loss: 36.77 (81.7)  LR: "
        "1.351e-04  Time cost: 00:15/01:25 [00:15/04:48]  Acc_iter 50  Data time: {d:.2f}(0.02)  "
        "Forward time: 0.31(0.29)  Batch time: {t:.2f}(0.31)",
        data_s=0.02,
    ),
    "mxnet_speedometer": Case(
        "INFO:root:Epoch[0] Batch [{before}-{step}]\tSpeed: {rate:.2f} samples/sec\t"
        "accuracy=0.101562",
        batch=256,
        head="INFO:root:start with arguments Namespace(batch_size=256, gpus='0,1')",
    ),
    "paddle_custom": Case(
        "Epoch [1/2], Iter [{step:02d}/500], reader_cost: {d:.5f} s, batch_cost: {t:.5f} s, ips: "
        "{rate:.5f} samples/s, eta: 0:45:32",
        data_s=0.29,
        batch=4096,
    ),
    "wenet": Case(
        "{dash} DEBUG TRAIN Batch 0/{step} loss 80.1 loss_att 70.2 loss_ctc 100.1 lr 0.00001 rank 0"
        " steps/sec {per_s:.1f}",
    ),
    "imagenet_example": Case(
        "Epoch: [0][{step:4d}/5005]\tTime  {t:.3f} ( 1.002)\tData  {d:.3f} ( 0.080)\tLoss "
        "6.9e+00 (6.9e+00)\tAcc@1   0.39 (  0.12)",
        data_s=0.021,
        zero=True,
    ),
}
