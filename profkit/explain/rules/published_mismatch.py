"""A run's throughput is not what was published for its setting."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.matrix import FULL_PRECISIONS, Cell
from profkit.analysis.published import published_cells
from profkit.explain.rules.base import Case, Finding
from profkit.text import percent, significant
from profkit.trace import RunManifest

TOLERANCE = 0.05
"""The publishers' own: their pipelines take no smaller difference for a change."""

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
"""The system that a grammar of logs belongs to."""

_FRAMEWORKS = {
    "torch": "pytorch",
    "pytorch": "pytorch",
    "paddle": "paddle",
    "paddlepaddle": "paddle",
    "tensorflow": "tensorflow",
    "mxnet": "mxnet",
}
_REMEDY = "see which statistic was published (profkit bench --published) and which steps are in it; then which setting differs from the published one"


def find(case: Case) -> Finding | None:
    """Where the device is known it must be the published one; a log that does not tell its device is held against all of them."""
    ledger = case.ledger
    sides = (
        (case.base_name, case.base, ledger.total.base),
        (case.target_name, case.target, ledger.total.target),
    )
    said = [
        words
        for name, run, own in sides
        if ledger.per_sample and own.value > 0
        for words in _differs(name, run, 1e9 * run.world_size / own.value)
    ]
    return Finding("published_mismatch", None, None, "; ".join(said), _REMEDY) if said else None


def _differs(name: str, run: RunManifest, throughput: float) -> Iterator[str]:
    cells = list(_published(run))
    nearest = min(cells, key=lambda cell: abs(cell.throughput.value / throughput - 1), default=None)
    if nearest is not None and abs(throughput / nearest.throughput.value - 1) > TOLERANCE:
        yield (
            f"{name}: {significant(throughput, 4)} samples/s; published for this setting is {significant(nearest.throughput.value, 4)} on {nearest.device} "
            f"({nearest.statistic}; {nearest.source}), {percent(abs(throughput / nearest.throughput.value - 1), 0)} away"
        )


def _published(run: RunManifest) -> Iterator[Cell]:
    grammar, device = str(run.config.get("log_grammar", "")), str(run.config.get("device", ""))
    workload, framework = (
        _WORKLOADS.get(grammar, run.workload),
        _FRAMEWORKS.get(run.framework.lower(), run.framework),
    )
    if not device and not grammar:
        return
    for cell in published_cells(workload):
        fits = (cell.setting.gpus, cell.setting.batch_size) == (
            run.world_size,
            run.config.get("batch_size"),
        )
        mixed = str(run.config.get("precision", "fp32")) not in FULL_PRECISIONS
        on_it = not device or cell.device.split("-")[0] in device
        if (
            cell.measured
            and fits
            and on_it
            and cell.setting.mixed is mixed
            and framework
            and framework.lower() in cell.framework.lower()
        ):
            yield cell
