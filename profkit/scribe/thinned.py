"""When and how the older steps of a long run are summed, in the job or in the scribe."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from profkit.attached import FULL_VARIABLE
from profkit.instrument.garbage import collection_paused
from profkit.vocab import FULL_BYTES

if TYPE_CHECKING:
    from pyarrow import Table

    from profkit.analysis.thinning import PartThinner


def new_thinner(steps: Table, spans: Table) -> PartThinner:
    """Return what sums the older steps of a long run; short runs do not import it."""
    with collection_paused():
        import pyarrow as pa

        from profkit.analysis.thinning import PartThinner

        pa.array([True])  # imports pandas where it is installed
    return PartThinner(steps, spans)


def full_bytes() -> int:
    """Return the size of a rank's tables from which on its older steps are thinned."""
    try:
        return int(float(os.environ[FULL_VARIABLE]) * 1e6)
    except (KeyError, ValueError, OverflowError):
        return FULL_BYTES
