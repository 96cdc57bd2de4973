"""The load of a run on several hosts is that of one of them, with the ranks that are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from profkit.explain.evidence import Evidence
from profkit.testing.synthetic import RANKS_PER_HOST, synthetic_trace
from profkit.testing.synthetic_tables import CORES
from profkit.trace import Trace

OTHERS = 7.0


def evidence_of(run: Path, busy: str = "") -> Evidence:
    """Return a run's evidence; on the host `busy`, other processes use some cores."""
    trace = Trace.open(run)
    samples = trace.samples
    here = [rank.rank for rank in trace.ranks if rank.manifest.host == busy]
    is_here = np.isin(samples["rank"].to_numpy(), here)
    is_load = samples["metric"].cast(pa.string()).to_numpy(zero_copy_only=False)
    factor = np.where(is_here & (is_load == "cpu_busy_seconds"), 1 + OTHERS / RANKS_PER_HOST, 1.0)
    place = samples.schema.get_field_index("value")
    changed = pa.array(samples["value"].to_numpy() * factor)
    vars(trace)["samples"] = samples.set_column(place, samples.schema.field(place), changed)
    return Evidence(trace)


def test_the_load_is_that_of_the_fullest_host(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=2 * RANKS_PER_HOST, steps=60)
    load = evidence_of(run, busy="host1").load
    assert load is not None
    assert (load.host, load.ranks, load.cores) == ("host1", RANKS_PER_HOST, CORES)
    assert load.own == pytest.approx(RANKS_PER_HOST)
    assert load.others == pytest.approx(OTHERS)
    assert load.where == " on its fullest host, host1, if it has as many as host0"
    first = evidence_of(run, busy="host0").load
    assert first is not None
    assert first.where == " on its fullest host, host0"


def test_ranks_of_two_hosts_do_not_fill_one(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=2 * RANKS_PER_HOST, steps=60)
    evidence = evidence_of(run)
    assert evidence.load is not None
    assert evidence.load.used == pytest.approx(RANKS_PER_HOST)
    assert evidence.own_ns(1.0) == pytest.approx(evidence.step_ns)


def test_one_host_is_not_named(tmp_path: Path) -> None:
    load = evidence_of(synthetic_trace(tmp_path / "run", ranks=2, steps=60), busy="host0").load
    assert load is not None
    assert (load.host, load.where) == ("", "")
