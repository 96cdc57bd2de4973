"""Published figures of the five reference systems, with their source and statistic.

Figures were read in public reports. Missing details are marked as such; a cell that a report leaves
open has no figure. `find_contradictions` of `consistency.py` reports which of them contradict each
other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from profkit.analysis.estimate import Estimate
from profkit.analysis.matrix import Cell, Setting

UNNAMED: Final = "not named"

_V100_16: Final = "V100-SXM2-16GB"
_V100_32: Final = "V100-SXM2-32GB"
_V100: Final = "V100"
_A100: Final = "A100"

_IMAGES: Final = "images/sec"
_SAMPLES: Final = "samples/sec"

_REPORT_HRNET: Final = "PaddleSeg HRNetW18 report"
_REPORT_MASK: Final = "NGC PyTorch Mask R-CNN report"
_REPORT_PSENET: Final = "PSENet report"
_REPORT_RESNET: Final = "Paddle ResNet50V1.5 report"
_REPORT_TSM: Final = "Paddle TSM report"
_PERF_HRNET: Final = "PaddlePaddle/Perf at bca2114, HRNetW18/README.md"
_PERF_RESNET: Final = "PaddlePaddle/Perf at c1ad14b, ResNet50V1.5/README.md"
_PERF_RESNET_OTHER: Final = "PaddlePaddle/Perf at c1ad14b, ResNet50V1.5/OtherReports"
_PERF_RESNET_TF: Final = "PaddlePaddle/Perf at 8d0ca2f, ResNet50V1.5/OtherReports"
_NGC_MASK: Final = "NVIDIA/DeepLearningExamples at 99b1c89, PyTorch/Segmentation/MaskRCNN"
_NGC_RESNET: Final = (
    "NVIDIA/DeepLearningExamples at 99b1c89, PyTorch/Classification/ConvNets/resnet50v1.5"
)

_WHOLE_RUN: Final = "iterations x batch / total time, first steps and the last checkpoint included"
_TOTAL_IPS: Final = "mean of total_ips"
_COMPUTE_IPS: Final = "mean of compute_ips, the wait for data left out"
_TOTAL_IPS_LATER: Final = "mean of total_ips after 8 records"
_CUMULATIVE: Final = "mean, after 8 to 10 records, of averages since the start"
_LAST_RESULT: Final = "mean of samples / (reader + run time), the first record left out"

_CITYSCAPES_STEPS_8: Final = 98_000
"""Iterations after which the run on 8 GPUs reached its target and stopped."""
_CITYSCAPES_STEPS_32: Final = 32_000
"""Iterations after which the run on 32 GPUs reached its target and stopped."""

_KINETICS_VIDEOS: Final = 234_619
_KINETICS_EPOCHS: Final = 50
_ICDAR_IMAGES: Final = 1_000
_ICDAR_EPOCHS: Final = 600
_FOURTEEN_HOURS_S: Final = 14 * 3600.0


@dataclass(frozen=True)
class _Sheet:
    """One source's figures of one framework on one device.

    Each is (GPUs, precision, batch per GPU, throughput or `None`).
    """

    workload: str
    framework: str
    device: str
    source: str
    figures: tuple[tuple[int, str, int, float | None], ...]
    unit: str = _IMAGES
    statistic: str = UNNAMED
    loader: str = ""
    loader_said: str = ""

    def cells(self) -> Iterator[Cell]:
        for gpus, precision, batch, throughput in self.figures:
            yield Cell(
                self.workload,
                self.framework,
                self.device,
                Setting(gpus, precision, batch, self.loader),
                Estimate(math.nan if throughput is None else throughput),
                self.unit,
                self.statistic,
                self.source,
                loader_said=self.loader_said,
            )


_TRAINED = (
    Cell(
        "hrnet_w18", "PaddlePaddle", _V100_32, Setting(1, "fp32", 8), Estimate(17), _SAMPLES,
        UNNAMED, _REPORT_HRNET,
    ),
    Cell(
        "hrnet_w18", "PaddlePaddle", _V100_32, Setting(8, "fp32", 8), Estimate(96), _SAMPLES,
        UNNAMED, _REPORT_HRNET,
        time_to_train_s=82322.66, samples_trained=_CITYSCAPES_STEPS_8 * 8 * 8,
        accuracy="79.3 % mIoU", speed_up=5.65,
    ),
    Cell(
        "hrnet_w18", "PaddlePaddle", _V100_32, Setting(16, "fp32", 2), unit=_SAMPLES,
        statistic=UNNAMED, source=_REPORT_HRNET, nodes=2,
    ),
    Cell(
        "hrnet_w18", "PaddlePaddle", _V100_32, Setting(32, "fp32", 4), Estimate(272), _SAMPLES,
        UNNAMED, _REPORT_HRNET, 4,
        time_to_train_s=22300.63, samples_trained=_CITYSCAPES_STEPS_32 * 32 * 4,
        accuracy="78.29 % mIoU", speed_up=16,
    ),
    Cell(
        "psenet", "PyTorch", _V100, Setting(1, "fp32", 8), Estimate(11.523), _SAMPLES, _LAST_RESULT,
        _REPORT_PSENET + ", sample result",
    ),
    Cell(
        "psenet", "PyTorch", _V100_32, Setting(1, "fp32", 16), unit=_SAMPLES, statistic=UNNAMED,
        source=_REPORT_PSENET,
        time_to_train_s=_FOURTEEN_HOURS_S, samples_trained=_ICDAR_IMAGES * _ICDAR_EPOCHS,
        accuracy="loss 0.05",
    ),
    Cell(
        "tsm", "PaddlePaddle", _V100_32, Setting(1, "amp", 16), Estimate(80.222), _SAMPLES, UNNAMED,
        _REPORT_TSM,
    ),
    Cell(
        "tsm", "PaddlePaddle", _V100_32, Setting(8, "amp", 16), Estimate(549.176), _SAMPLES,
        UNNAMED, _REPORT_TSM,
        time_to_train_s=22549.33, samples_trained=_KINETICS_VIDEOS * _KINETICS_EPOCHS,
        accuracy="71.00 % top-1",
    ),
    Cell(
        "tsm", "PaddlePaddle", _V100_32, Setting(32, "amp", 16), Estimate(2042.24), _SAMPLES,
        UNNAMED, _REPORT_TSM, 4,
        time_to_train_s=5909.33, samples_trained=_KINETICS_VIDEOS * _KINETICS_EPOCHS,
        accuracy="71.02 % top-1",
    ),
)  # fmt: skip  # a cell a block

_SHEETS = (
    _Sheet(
        "hrnet_w18", "PaddlePaddle", _V100, _PERF_HRNET,
        ((1, "fp32", 8, 19.428), (8, "fp32", 8, 117.205), (1, "amp", 8, 22.115),
        (8, "amp", 8, 115.468)), unit=_SAMPLES,
    ),
    _Sheet(
        "hrnet_w18", "PyTorch (mmseg)", _V100, _PERF_HRNET,
        ((1, "fp32", 8, 15.49), (8, "fp32", 8, 60.299), (1, "amp", 8, 17.448),
        (8, "amp", 8, 59.709)), unit=_SAMPLES,
    ),
    _Sheet(
        "mask_rcnn", "NGC PyTorch", _V100_16, _REPORT_MASK,
        (
            (1, "fp32", 2, 9.2), (1, "fp32", 4, 9.8), (1, "amp", 2, 10.4), (1, "amp", 4, 12.5),
            *itertools.product((8, 32), ("fp32", "amp"), (2, 4), (None,)),
        ),
        statistic=_WHOLE_RUN,
    ),
    _Sheet(
        "mask_rcnn", "NGC PyTorch", _V100_16, _NGC_MASK,
        ((1, "fp32", 4, 12), (4, "fp32", 4, 38), (8, "fp32", 4, 70), (1, "amp", 4, 15),
        (4, "amp", 4, 46), (8, "amp", 4, 89)),
    ),
    _Sheet(
        "mask_rcnn", "NGC PyTorch", _V100_32, _NGC_MASK,
        (
            (1, "fp32", 4, 12), (4, "fp32", 4, 39), (8, "fp32", 4, 75), (16, "fp32", 4, 148),
            (1, "amp", 4, 16), (4, "amp", 4, 50), (8, "amp", 4, 92), (16, "amp", 4, 218),
        ),
    ),
    _Sheet(
        "mask_rcnn", "NGC PyTorch", _A100, _NGC_MASK,
        ((1, "tf32", 8, 21), (4, "tf32", 8, 74), (8, "tf32", 8, 145), (1, "amp", 8, 25),
        (4, "amp", 8, 84), (8, "amp", 8, 161)),
    ),
    _Sheet(
        "resnet50", "PaddlePaddle", _V100_32, _REPORT_RESNET,
        tuple(itertools.product((1, 8, 32), ("fp32", "amp"), (128, 256), (None,))), loader="DALI",
    ),
    _Sheet(
        "resnet50", "NGC TensorFlow 1.15", _V100_32, _REPORT_RESNET,
        ((1, "fp32", 128, 398.257), (1, "amp", 256, 985.466)), loader="off", loader_said="DALI",
    ),
    _Sheet(
        "resnet50", "NGC PyTorch", _V100_32, _REPORT_RESNET, ((1, "fp32", 128, 355.69),),
        statistic=_TOTAL_IPS, loader="dali-cpu",
    ),
    _Sheet(
        "resnet50", "NGC PyTorch", _V100_32, _REPORT_RESNET, ((1, "amp", 256, 797.38),),
        statistic=_COMPUTE_IPS, loader="dali-cpu",
    ),
    _Sheet(
        "resnet50", "NGC MXNet", _V100_32, _REPORT_RESNET,
        ((1, "fp32", 128, 376.18), (1, "amp", 256, 1398.8)), loader="dali-gpu",
    ),
    _Sheet(
        "resnet50", "PaddlePaddle", _V100, _PERF_RESNET,
        ((1, "fp32", 256, 393.561), (8, "fp32", 256, 3019.361)),
        statistic=_CUMULATIVE, loader="off", loader_said="DALI",
    ),
    _Sheet(
        "resnet50", "PaddlePaddle", _V100, _PERF_RESNET,
        ((1, "fp16_O2", 256, 1438.518), (8, "fp16_O2", 256, 10936.815)), statistic=_CUMULATIVE,
        loader="DALI",
    ),
    _Sheet(
        "resnet50", "PaddlePaddle", _A100, _PERF_RESNET,
        ((1, "fp32", 256, 908.244), (8, "fp32", 256, 5333.558)),
        statistic=_CUMULATIVE, loader="off", loader_said="DALI",
    ),
    _Sheet(
        "resnet50", "PaddlePaddle", _A100, _PERF_RESNET,
        ((1, "fp16_O2", 256, 2602.629), (8, "fp16_O2", 256, 17587.654)), statistic=_CUMULATIVE,
        loader="DALI",
    ),
    _Sheet(
        "resnet50", "NGC PyTorch", _V100, _PERF_RESNET,
        ((1, "fp32", 256, 370.194), (8, "fp32", 256, 2791.98), (1, "amp", 256, 790.033),
        (8, "amp", 256, 5889.05)),
        statistic=_TOTAL_IPS_LATER, loader="dali-cpu",
    ),
    _Sheet(
        "resnet50", "NGC PyTorch", _A100, _PERF_RESNET,
        ((1, "fp32", 256, 924.989), (8, "fp32", 256, 7020.9), (1, "amp", 256, 1449.65),
        (8, "amp", 256, 10744.6)),
        statistic=_TOTAL_IPS_LATER, loader="dali-cpu",
    ),
    _Sheet(
        "resnet50", "NGC MXNet", _V100, _PERF_RESNET,
        ((1, "fp32", 256, 389.54), (8, "fp32", 256, 2957.8), (1, "amp", 256, 1471.9),
        (8, "amp", 256, 10336.0)), loader="dali-gpu",
    ),
    _Sheet(
        "resnet50", "NGC MXNet", _V100, _PERF_RESNET_OTHER,
        ((1, "fp32", 128, 389.54), (8, "fp32", 128, 2957.8)), loader="dali-gpu",
    ),
    _Sheet(
        "resnet50", "NGC MXNet", _A100, _PERF_RESNET,
        ((1, "fp32", 256, 1015.8), (8, "fp32", 256, 7848.2), (1, "amp", 256, 3046.4),
        (8, "amp", 256, 22690.0)), loader="dali-gpu",
    ),
    _Sheet(
        "resnet50", "NGC TensorFlow 1.15", _A100, _PERF_RESNET_TF,
        ((1, "fp32", 256, 975.374), (1, "amp", 256, 2064.8)), loader="off", loader_said="DALI",
    ),
    _Sheet(
        "resnet50", "NGC PyTorch", _V100_16, _NGC_RESNET,
        ((1, "fp32", 256, 373.21), (8, "fp32", 256, 2899.62), (1, "amp", 256, 856.52),
        (8, "amp", 256, 6635.9)), loader="dali-cpu",
    ),
    _Sheet(
        "resnet50", "NGC PyTorch", _V100_32, _NGC_RESNET,
        ((1, "fp32", 256, 359.76), (8, "fp32", 256, 2813.23), (1, "amp", 256, 816.0),
        (8, "amp", 256, 6347.26)), loader="dali-cpu",
    ),
    _Sheet(
        "resnet50", "NGC PyTorch", _A100, _NGC_RESNET,
        ((1, "tf32", 256, 680.15), (8, "tf32", 256, 5379.82), (1, "amp", 256, 1240.81),
        (8, "amp", 256, 9604.92)), loader="dali-cpu",
    ),
)  # fmt: skip  # a sheet a block

PUBLISHED: Final[tuple[Cell, ...]] = (
    *_TRAINED,
    *itertools.chain.from_iterable(map(_Sheet.cells, _SHEETS)),
)


def published_cells(workload: str) -> tuple[Cell, ...]:
    """Return all that was published of a workload."""
    return tuple(cell for cell in PUBLISHED if cell.workload == workload)
