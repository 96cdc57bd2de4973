"""The rows of what a rank did after its last step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

HOST: Final = "cpu"
"""The device of ranks whose rows begin while their step is open; a device may work on later."""

OF_STEPS: Final = frozenset(["spans", "collectives"])
"""The tables whose rows name the step that was open when they began."""


def release_last(rows: pa.Table, steps: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return the rows with no step for those that begin after the end of the rank's last one.

    The end of a loop without a loader is known only when the job ends. A barrier or an evaluation
    after it was noted for the last step, which does not contain it.
    """
    batch = next((each for each in reversed(steps) if each.num_rows), None)
    if batch is None:
        return rows
    last, end_ns = batch["step"][-1], batch["end_ns"][-1]
    is_later = pc.and_(pc.equal(rows["step"], last), pc.greater(rows["start_ns"], end_ns))
    if not pc.any(is_later).as_py():
        return rows
    place = rows.schema.get_field_index("step")
    step = pc.if_else(pc.fill_null(is_later, fill_value=False), None, rows["step"])
    return rows.set_column(place, rows.schema.field("step"), step)
