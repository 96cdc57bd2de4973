"""Parquet for DuckDB, polars, Spark and the like, one file per table."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from profkit.exporters.base import Window

_DELTA = {
    "start_ns",
    "end_ns",
    "time_ns",
    "launch_ns",
    "correlation",
    "device_start_ns",
    "device_end_ns",
    "ready_ns",
}
"""Columns of growing numbers, which are small as differences."""


class Parquet:
    """A folder; names are dictionaries, times are deltas, and all is compressed with zstd."""

    name = "parquet"
    title = "Parquet, a file a table"
    suffix = ""
    is_folder = True
    name_copies = 0
    row_bytes = MappingProxyType(
        {"steps": 20, "spans": 20, "kernels": 24, "collectives": 20, "samples": 12}
        | {"stacks": 12, "frames": 20, "sums": 24}
    )

    def write(self, window: Window, path: Path) -> None:
        import pyarrow.parquet as pq

        path.mkdir(mode=0o700)
        for name, table in window.tables.items():
            if not table.num_rows:
                continue
            encodings, dictionaries = {}, []
            for field in table.schema:
                if field.name in _DELTA:
                    encodings[field.name] = "DELTA_BINARY_PACKED"
                elif pa.types.is_dictionary(field.type):
                    dictionaries.append(field.name)
            pq.write_table(
                table,
                path / f"{name}.parquet",
                compression="zstd",
                use_dictionary=dictionaries,
                column_encoding=encodings,
            )


EXPORTER = Parquet()
