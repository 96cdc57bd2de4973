"""Published figures, from a CSV file or known, and those of them that are for one run.

The first line names the columns, in any order. `gpus`, `precision`, `batch_per_gpu` and
`throughput` are needed. `model`, `framework` and `gpu` narrow a row down to a system; an empty cell
fits every run. `source`, `version` and `unit` are shown, and `loader` and other columns are
ignored. An empty `throughput` is a figure that the publication leaves open.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.analysis.matrix import FULL_PRECISIONS
from profkit.analysis.published import published_cells
from profkit.errors import UnreadableError
from profkit.text import safe_text
from profkit.trace import RunManifest

NEEDED = ("gpus", "precision", "batch_per_gpu", "throughput")
MOST_ROWS = 10_000
LARGEST_FILE = 8 << 20
_MOST_GPUS, _LARGEST_BATCH = 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class PublishedFigure:
    """One row of the file; `line` is its place there, or 0 for a figure that profkit knows."""

    line: int
    gpus: int
    precision: str
    batch_per_gpu: int
    throughput: float
    unit: str = "samples/sec"
    model: str = ""
    framework: str = ""
    gpu: str = ""
    source: str = ""

    def fits(self, run: RunManifest) -> bool:
        """Return true if this was published for the run's setting, as far as both state it."""
        config = run.config
        is_mixed = str(config.get("precision", "fp32")) not in FULL_PRECISIONS
        own_model = f"{run.workload} {config.get('model', '')}"
        # The tool of a log that does not name its model is the workload's name.
        is_title = run.workload == config.get("log_of")
        return (
            self.gpus == run.world_size
            and self.batch_per_gpu == config.get("batch_size")
            and (self.precision.lower() not in FULL_PRECISIONS) is is_mixed
            and self._is_for_device(run)
            and _alike(self.framework, run.framework)
            and (is_title or _alike(self.model, own_model))
        )

    def _is_for_device(self, run: RunManifest) -> bool:
        """Return true if this was measured on the run's device, or a log does not state it."""
        model = device_model(run)
        if not model and str(run.config.get("device", "")) and self.gpu:
            return False
        return _alike(self.gpu, model)


def device_model(run: RunManifest) -> str:
    """Return the model of a run's devices, or its device's name if no model is recorded."""
    device = str(run.config.get("device", ""))
    models = set(run.environment.get("gpu_models") or ())
    if not device.startswith("cuda"):
        return device
    return str(models.pop()) if len(models) == 1 else ""


def known_figures(workload: str) -> tuple[PublishedFigure, ...]:
    """Return the figures that profkit knows to be published of a reference system."""
    figures = []
    for cell in published_cells(workload):
        if cell.measured:
            figures.append(
                PublishedFigure(
                    line=0,
                    gpus=cell.setting.gpus,
                    precision=cell.setting.precision,
                    batch_per_gpu=cell.setting.batch_size,
                    throughput=cell.throughput.value,
                    unit=cell.unit,
                    model=cell.workload,
                    framework=cell.framework,
                    gpu=cell.device,
                    source=f"{cell.source}; statistic: {cell.statistic}",
                )
            )
    return tuple(figures)


def _alike(published: str, own: str) -> bool:
    """Return true if two names can be of one thing; an empty name can be of anything."""
    words = [re.sub(r"[^a-z0-9]", "", word) for word in re.split(r"[\s(),/]+", published.lower())]
    plain = re.sub(r"[^a-z0-9]", "", own.lower())
    if not plain or not any(words):
        return True
    joined = "".join(words)
    if joined.startswith(plain) or plain.startswith(joined):
        return True
    return any(len(word) > 2 and (word in plain or plain in word) for word in words)


def read_published(path: Path) -> tuple[PublishedFigure, ...]:
    """Return the file's figures; raise one clear line for a file that is not such a table."""
    name = safe_text(str(path))
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UnreadableError(f"{name}: {error.strerror}") from error
    if len(data) > LARGEST_FILE:
        raise UnreadableError(f"{name}: over {LARGEST_FILE >> 20} MiB; not a table of figures")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableError(f"{name}: not UTF-8 text; save the table as CSV") from None
    try:
        return tuple(_read_rows(name, text.splitlines()))
    except csv.Error as error:
        raise UnreadableError(f"{name}: not CSV ({error})") from None


def _read_rows(name: str, lines: Sequence[str]) -> Iterator[PublishedFigure]:
    reader = csv.DictReader(lines)
    columns = [column.strip().lower() for column in reader.fieldnames or []]
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise UnreadableError(
            f"{name}: no column {', '.join(missing)}; the first line must name the columns "
            f"{', '.join(NEEDED)}"
        )
    reader.fieldnames = columns
    count = 0
    for row in reader:
        count += 1
        if count > MOST_ROWS:
            raise UnreadableError(f"{name}: over {MOST_ROWS:,} rows; not a table of figures")
        figure = _read_row(name, reader.line_num, row)
        if figure is not None:
            yield figure
    if not count:
        raise UnreadableError(f"{name}: no row below the names of the columns")


def _read_row(name: str, line: int, row: Mapping[str, Any]) -> PublishedFigure | None:
    """Return a row's figure, or `None` if the publication leaves it open."""
    if any(row.get(column) is None for column in NEEDED):
        raise UnreadableError(f"{name}, line {line}: has fewer cells than there are columns")
    cells = {}
    for column, cell in row.items():
        cells[column] = cell.strip() if isinstance(cell, str) else ""
    if cells["throughput"] in {"", "-"}:
        return None
    gpus = _whole(name, line, "gpus", cells, _MOST_GPUS)
    batch = _whole(name, line, "batch_per_gpu", cells, _LARGEST_BATCH)
    try:
        throughput = float(cells["throughput"])
    except ValueError:
        throughput = math.nan
    if not (math.isfinite(throughput) and throughput > 0):
        raise _bad_cell(name, line, "throughput", cells, "a number above 0, or empty")
    if not cells["precision"]:
        raise _bad_cell(name, line, "precision", cells, "a precision such as fp32 or amp")
    source = " ".join(filter(None, (cells.get("source"), cells.get("version"))))
    return PublishedFigure(
        line=line,
        gpus=gpus,
        precision=cells["precision"],
        batch_per_gpu=batch,
        throughput=throughput,
        unit=cells.get("unit") or "samples/sec",
        model=cells.get("model", ""),
        framework=cells.get("framework", ""),
        gpu=cells.get("gpu", ""),
        source=source,
    )


def _whole(name: str, line: int, column: str, cells: Mapping[str, str], most: int) -> int:
    word = cells[column]
    if word.isascii() and word.isdigit() and len(word) < 12 and 0 < int(word) <= most:
        return int(word)
    raise _bad_cell(name, line, column, cells, "a whole number above 0")


def _bad_cell(
    name: str, line: int, column: str, cells: Mapping[str, str], wanted: str
) -> UnreadableError:
    found = safe_text(cells[column][:40]) or "nothing"
    return UnreadableError(f"{name}, line {line}: {column} is {found}, not {wanted}")
