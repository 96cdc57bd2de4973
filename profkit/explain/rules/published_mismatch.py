"""A run's throughput is not what was published for its setting."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.matrix import FULL_PRECISIONS, Cell
from profkit.analysis.published import UNNAMED, published_cells
from profkit.analysis.published_file import device_model
from profkit.explain.ledger import Ledger
from profkit.explain.rules.base import FRAMEWORKS, Case, Cause
from profkit.text import percent, significant
from profkit.trace import RunManifest

MIN_DIFFERENCE = 0.05
"""A smaller difference is not one: the publishers' own pipelines tolerate as much."""


_WORKLOADS = {
    "paddleclas": "resnet50",
    "dllogger_pytorch": "resnet50",
    "dllogger_tensorflow": "resnet50",
    "dllogger_mxnet": "resnet50",
    "paddleseg": "hrnet_w18",
    "paddlevideo": "tsm",
    "psenet": "psenet",
    "dllogger_maskrcnn": "mask_rcnn",
}
"""The reference system that a log grammar belongs to."""

_REMEDY = (
    "see which statistic was published (profkit bench --published) and which steps are in it; then "
    "which setting differs from the published one"
)


def find(case: Case) -> Cause | None:
    """Compare both sides with the figures published for their setting and device.

    A log that does not state its device is compared with the figures of all devices.
    """
    said = [
        *_mismatch(case.base_name, case.base, case.ledger, case.ledger.total.base.value),
        *_mismatch(case.target_name, case.target, case.ledger, case.ledger.total.target.value),
    ]
    if not said:
        return None
    return Cause("published_mismatch", None, None, "; ".join(said), _REMEDY)


def _mismatch(name: str, run: RunManifest, ledger: Ledger, sample_ns: float) -> Iterator[str]:
    """Yield what is wrong if even the nearest published figure is too far away."""
    cells = list(_published(run))
    if not cells or not ledger.per_sample or sample_ns <= 0:
        return
    throughput = 1e9 * run.world_size / sample_ns
    nearest = min(cells, key=lambda cell: abs(cell.throughput.value / throughput - 1))
    difference = abs(throughput / nearest.throughput.value - 1)
    if difference <= MIN_DIFFERENCE:
        return
    unit = str(run.config.get("sample_unit", "samples"))
    statistic = nearest.statistic
    if statistic == UNNAMED:
        statistic = "its statistic is not named"
    words = (
        f"{name}: {significant(throughput, 4)} {unit}/s; published for this setting is "
        f"{significant(nearest.throughput.value, 4)} on {nearest.device} "
        f"({statistic}; {nearest.source}), {percent(difference, 0)} away"
    )
    if "precision" not in run.config:
        words += "; the log does not state its precision, and fp32 is assumed"
    if not device_model(run):
        words += "; its device is not known"
        if len(cells) > 1:
            words += f", and of {len(cells)} published figures this is the nearest"
    yield words


def reference_system(run: RunManifest) -> str:
    """Return the reference system that a run trained; the log of a known tool says which."""
    return _WORKLOADS.get(str(run.config.get("log_grammar", "")), run.workload)


def _published(run: RunManifest) -> Iterator[Cell]:
    """Yield the published figures of a run's setting, on its device if that is known."""
    grammar, device = str(run.config.get("log_grammar", "")), device_model(run)
    if not device and not grammar:
        return
    framework = FRAMEWORKS.get(run.framework.lower(), run.framework).lower()
    is_mixed = str(run.config.get("precision", "fp32")) not in FULL_PRECISIONS
    size = run.world_size, run.config.get("batch_size")
    for cell in published_cells(reference_system(run)):
        if (
            cell.measured
            and (cell.setting.gpus, cell.setting.batch_size) == size
            and cell.setting.mixed is is_mixed
            and (not device or cell.device.split("-")[0] in device)
            and framework
            and framework in cell.framework.lower()
        ):
            yield cell
