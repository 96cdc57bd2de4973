"""Parquet, a file a table: for DuckDB, polars, Spark and the like."""

from __future__ import annotations

from pathlib import Path

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


class Parquet:
    """A folder; names are dictionaries, times are deltas, everything is zstd."""

    name = "parquet"
    title = "Parquet, a file a table"
    suffix = ""
    is_folder = True
    name_copies = 0
    row_bytes = {"steps": 20, "spans": 20, "kernels": 24, "collectives": 20, "samples": 12}  # noqa: RUF012  # read only

    def write(self, window: Window, path: Path) -> None:
        import pyarrow.parquet as pq

        path.mkdir(mode=0o700)
        for name, table in window.tables.items():
            if table.num_rows:
                encodings = {
                    column: "DELTA_BINARY_PACKED"
                    for column in table.column_names
                    if column in _DELTA
                }
                dictionaries = [
                    field.name for field in table.schema if pa.types.is_dictionary(field.type)
                ]
                pq.write_table(
                    table,
                    path / f"{name}.parquet",
                    compression="zstd",
                    use_dictionary=dictionaries,
                    column_encoding=encodings,
                )


EXPORTER = Parquet()
