"""Files of several ranks: which of their collectives are the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain
from profkit.importers.kineto import IMPORTER
from profkit.trace import Trace
from tests.documents import report_json, report_text
from tests.importers.conftest import (
    BASE_US,
    Event,
    Import,
    host,
    kernel,
    two_steps,
    us,
    write_trace,
)

PER_STEP = 4
UNMATCHED = "could not be matched over the ranks"


def exchange(number: int, at: int, **args: Any) -> Event:
    """All-reduces of 4 MB and 4 KB in turn; the large ones take long."""
    elements, length = (1_000_000, 20) if number % 2 == 0 else (1000, 4)
    stated = {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
    }
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return kernel(name, us(f"{at}.0"), str(length), number + 1, stream=9, **{**stated, **args})


def file_of(
    path: Path,
    *,
    without: int = 0,
    count: int = 24,
    late_us: int = 0,
    steps: bool = True,
    numbered: bool = False,
    base: bool = True,
    rank: int = 0,
) -> Path:
    """One of two ranks; the first collectives may be missing, and its clock may be late."""
    start = 0 if base else -BASE_US
    events = []
    for step in range(count // PER_STEP):
        at = start + late_us + step * 1000
        if steps:
            events.append(host("user_annotation", f"ProfilerStep#{step}", us(f"{at}.0"), "1000"))
        for place in range(PER_STEP):
            number = step * PER_STEP + place
            if number >= without:
                args = {"Seq": number + 1} if numbered else {}
                launch = us(f"{at + 10 + place * 50}.0")
                events.append(
                    host("cuda_runtime", "cudaLaunchKernel", launch, "2", correlation=number + 1)
                )
                events.append(exchange(number, at + 20 + place * 50, **args))
    return write_trace(path, events, distributedInfo={"rank": rank, "world_size": 2})


def pairs_of(run: Path) -> set[tuple[int, ...]]:
    """Return the sizes that are taken for one collective."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in Trace.open(run).collectives.to_pylist():
        found.setdefault((row["communicator"], row["sequence"]), []).append(row["bytes"])
    return {tuple(sizes) for sizes in found.values() if len(sizes) > 1}


@pytest.mark.parametrize("without", [0, 1, 2, 5])
@pytest.mark.parametrize("other_first", [False, True])
@pytest.mark.parametrize(
    "told", [{"steps": True}, {"steps": False}, {"steps": False, "numbered": True, "base": False}]
)
def test_captures_that_begin_at_different_collectives_are_matched(
    without: int, other_first: bool, told: dict[str, bool], tmp_path: Path, import_files: Import
) -> None:
    """The marked steps, the clocks, or torch's own numbers say which are the same ones."""
    cut = {int(not other_first): without}
    paths = [
        file_of(tmp_path / f"{rank}.json", rank=rank, without=cut.get(rank, 0), **told)
        for rank in range(2)
    ]
    (made,) = import_files(IMPORTER, *paths)
    assert pairs_of(made.run) == {(4_000_000, 4_000_000), (4000, 4000)}
    assert not [flag for flag in made.flags if UNMATCHED in flag]
    view = build_overview(Trace.open(made.run))
    assert view.late_rank is None
    found = Trace.open(made.run).collectives.to_pylist()
    numbers = [{row["sequence"] for row in found if row["rank"] == rank} for rank in range(2)]
    assert len(numbers[0] & numbers[1]) == 24 - without


def test_without_any_evidence_nobody_is_matched(tmp_path: Path, import_files: Import) -> None:
    """Sizes that alternate fit every second shift, and these files share no clock."""
    paths = [
        file_of(tmp_path / f"{rank}.json", rank=rank, without=rank, steps=False, base=False)
        for rank in range(2)
    ]
    (made,) = import_files(IMPORTER, *paths)
    assert pairs_of(made.run) == set()
    (flag,) = [flag for flag in made.flags if UNMATCHED in flag]
    assert "capture the same steps on all ranks" in flag
    view = build_overview(Trace.open(made.run))
    assert view.late_rank is None
    assert view.exchange is None or not view.exchange.waited_for


def test_other_collectives_are_not_matched(tmp_path: Path, import_files: Import) -> None:
    one = file_of(tmp_path / "0.json")
    other = tmp_path / "1.json"
    file_of(other, rank=1)
    other.write_text(other.read_text().replace('nelems": 1000,', 'nelems": 500,'))
    (made,) = import_files(IMPORTER, one, other)
    assert pairs_of(made.run) == set()
    assert [flag for flag in made.flags if UNMATCHED in flag]


def test_clocks_of_two_hosts_are_a_little_apart(tmp_path: Path, import_files: Import) -> None:
    paths = [
        file_of(tmp_path / f"{rank}.json", rank=rank, late_us=rank * 10, without=rank, steps=False)
        for rank in range(2)
    ]
    (made,) = import_files(IMPORTER, *paths)
    assert pairs_of(made.run) == {(4_000_000, 4_000_000), (4000, 4000)}


def test_messages_among_several_ranks_are_not_matched_by_counting(
    tmp_path: Path, import_files: Import
) -> None:
    paths = []
    for rank in range(3):
        args = {"Collective name": "send" if rank == 0 else "recv", "Group size": 3}
        step = host("user_annotation", "ProfilerStep#0", us("0"), "1000")
        messages = [exchange(number, 10 + number * 50, **args) for number in range(rank + 1)]
        events = [step, *messages, exchange(8, 500, **{"Group size": 3})]
        info = {"rank": rank, "world_size": 3}
        paths.append(write_trace(tmp_path / f"{rank}.json", events, distributedInfo=info))
    (made,) = import_files(IMPORTER, *paths)
    assert pairs_of(made.run) == {(4_000_000,) * 3}
    assert any("which send belongs to which receive" in flag for flag in made.flags)


def test_a_throughput_of_some_ranks_is_not_that_of_the_job(
    tmp_path: Path, import_files: Import
) -> None:
    info = {"rank": 3, "world_size": 8}
    path = write_trace(tmp_path / "rank3.json", two_steps(), distributedInfo=info)
    (made,) = import_files(IMPORTER, path, samples_per_step=32)
    trace = Trace.open(made.run)
    view = build_overview(trace)
    assert (view.silent_ranks, view.judged) == (7, False)
    found = report_json(view)
    assert found["throughput_covers"] == "of 1 of 8 ranks"
    assert found["throughput_samples_per_s"]["value"] == pytest.approx(32_000)
    text = " ".join(report_text(view).split())
    assert "of 1 of 8 ranks" in text
    assert (
        "there are no steps of 7 of 8 ranks in the imported files, so the throughput of the whole "
        "job is not known" in text
    )
    caveats = " ".join(explain(trace, trace).caveats)
    assert "there are no steps of 7 of 8 ranks in the imported files" in caveats


def test_a_throughput_of_all_ranks_is_that_of_the_job(tmp_path: Path, import_files: Import) -> None:
    paths = [file_of(tmp_path / f"{rank}.json", rank=rank) for rank in range(2)]
    (made,) = import_files(IMPORTER, *paths, samples_per_step=32)
    view = build_overview(Trace.open(made.run))
    assert view.silent_ranks == 0
    assert report_json(view)["throughput_covers"] is None


@pytest.mark.parametrize("stated", [{}, {"distributedInfo": {"rank": 7, "world_size": 8}}])
def test_all_ranks_know_the_same_number_of_ranks(
    stated: dict[str, Any], tmp_path: Path, import_files: Import
) -> None:
    """The last file may be the one that states it, or that has the largest rank."""
    events = two_steps()
    for event in events:
        event["args"].pop("Group size", None)
    paths = [
        write_trace(tmp_path / "rank0.json", events),
        write_trace(tmp_path / "rank7.json", events, **stated),
    ]
    (made,) = import_files(IMPORTER, *paths)
    trace = Trace.open(made.run)
    assert [rank.manifest.world_size for rank in trace.ranks] == [8, 8]
    assert trace.manifest.world_size == 8
    assert set(trace.collectives["group_size"].to_pylist()) == {8}
