"""Collectives at places where steps are missing: a rank may have them in the step before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from profkit.frame.exchange import match_collectives
from tests.analysis.tables import rows_table

MESSAGES = 4
STEPS = 12
CONTROL = (6, 7)
USED = np.array([step for step in range(2, STEPS - 1) if step not in CONTROL])


def message(rank: int, sequence: int, step: int, *, name: str = "0:0>1") -> dict[str, Any]:
    return {
        "communicator": name,
        "sequence": sequence,
        "op": "recv" if rank else "send",
        "bytes": 100,
        "dtype": "float32",
        "group_size": 2,
        "start_ns": 1_000 * sequence,
        "end_ns": 1_000 * sequence + (500 if rank else 100),
        "backend": "gloo",
        "step": step,
        "rank": rank,
    }


def hand_written(*lost: int) -> pa.Table:
    """A pipeline in which the second stage receives the first message before its step begins.

    Steps in which recording is off have no rows, nor have those that are `lost`.
    """
    rows = []
    for sequence in range(STEPS * MESSAGES):
        step = sequence // MESSAGES
        late_step = step - 1 if sequence % MESSAGES == 0 else step
        if step not in CONTROL:
            rows.append(message(0, sequence, step))
        if late_step >= 0 and late_step not in CONTROL and sequence not in lost:
            rows.append(message(1, sequence, late_step))
    return rows_table("collectives", rows)


def test_a_message_that_one_rank_has_in_a_missing_step_does_not_count() -> None:
    found = match_collectives(hand_written(), USED)
    assert found.count == found.matched_count
    whole = {row["sequence"] for row in found.rows.to_pylist()}
    expected = {
        sequence
        for sequence in range(STEPS * MESSAGES)
        if sequence // MESSAGES in USED
        and (sequence % MESSAGES or sequence // MESSAGES - 1 in USED)
    }
    assert whole == expected


def test_a_message_that_a_rank_has_lost_is_still_missing() -> None:
    lost = 4 * MESSAGES + 2
    found = match_collectives(hand_written(lost), USED)
    assert found.count == found.matched_count + 1
    assert found.rows.filter(pa.array(~found.matched))["sequence"].to_pylist() == [lost]


def test_a_rank_without_any_row_is_still_missing() -> None:
    rows = [message(0, number, number, name="alone") for number in range(STEPS)]
    found = match_collectives(rows_table("collectives", rows), USED)
    assert (found.count, found.matched_count) == (len(USED), 0)
