"""Times inside data loaders: times planted in data sets appear in the right rows."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils import fetch, pin_memory, worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.pytorch.workers import hook_workers
from profkit.instrument.guard import FAILURES, Patches
from profkit.instrument.loading import fetching, worker_loop
from profkit.instrument.loading.loaders import Loaders
from profkit.instrument.loading.ring import Ring, find_ring
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import BatchTimes
from profkit.instrument.tracking.tracker import Tracker
from profkit.trace import Trace
from profkit.vocab import QUEUE_DEPTH
from tests.instrument.jobs.own_clock import BATCH_SIZE, COLLATE_MS, DECODE_MS, READ_MS, OwnBatch
from tests.recorded import newest_run, run_to_end

JOBS = Path(__file__).parent / "jobs"
BATCHES = 8
PLANTED_MS = {"read": READ_MS, "decode": DECODE_MS, "collate": COLLATE_MS}
MAKING = tuple(PLANTED_MS)
TOLERANCE_MS = 1.0
PATIENCE_S = 300
OWN = OwnBatch()
FAULT = "a planted fault"


class Span(NamedTuple):
    """A row of `spans`."""

    name: str
    thread: str
    depth: int
    start_ns: int
    end_ns: int

    @property
    def ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(frozen=True)
class Seen:
    """The rows that an opened loader left."""

    spans: list[Span]
    depths: list[float]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def errors_ms(self, own: list[list[float]]) -> dict[str, float]:
        """Return the median difference between the rows and the batches' own times, in ms."""
        found = {
            name: [
                abs(span.ms - figures[at])
                for span, figures in zip(self.named(name), own, strict=True)
            ]
            for at, name in enumerate(MAKING)
        }
        found["made"] = [
            abs(span.end_ns - figures[-1]) / 1e6
            for span, figures in zip(self.named("collate"), own, strict=True)
        ]
        return {name: statistics.median(errors) for name, errors in found.items()}

    def shows(self, own: list[list[float]]) -> bool:
        """True if each row has what its batch saw itself: what was planted, and a busy machine."""
        for at, name in enumerate(MAKING):
            assert statistics.median(figures[at] for figures in own) >= 0.9 * PLANTED_MS[name]
        return self.errors_ms(own) == pytest.approx(
            dict.fromkeys((*MAKING, "made"), 0), abs=TOLERANCE_MS
        )


class Planted(Dataset[torch.Tensor]):
    """The first sample of each batch takes its time."""

    def __init__(
        self, read_ms: float = READ_MS, decode_ms: float = DECODE_MS, batches: int = BATCHES
    ) -> None:
        self.read_ms, self.decode_ms, self.count = read_ms, decode_ms, batches * BATCH_SIZE

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        OWN.read(index, read_ms=self.read_ms, decode_ms=self.decode_ms)
        info = get_worker_info()
        return torch.tensor(
            [float(index), float(info.id if info else -1), *torch.randn(3).tolist()],
            dtype=torch.float64,
        )


class PlantedTogether(Planted):
    """Hands out whole batches."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Stream(IterableDataset[torch.Tensor]):
    """Each worker's share of the same samples; the first has more."""

    def __init__(self, data: Planted) -> None:
        self.data = data

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        half = len(self.data) // 2 + BATCH_SIZE
        share = (
            range(len(self.data))
            if info is None
            else (range(half), range(half, len(self.data)))[info.id]
        )
        return (self.data[index] for index in share)


def slow_collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """The batch, with what it saw of its making in each row."""
    OWN.collate()
    batch = torch.stack(samples)
    return torch.hstack(
        [batch, torch.tensor(OWN.figures(), dtype=torch.float64).expand(len(batch), -1)]
    )


def own_figures(batches: list[torch.Tensor]) -> list[list[float]]:
    """Each batch's own record of how it was made."""
    return [batch[0, -len(OWN.figures()) :].tolist() for batch in batches]


def make_loader(data: Any, *, workers: int, **options: Any) -> DataLoader[torch.Tensor]:
    return DataLoader(data, batch_size=BATCH_SIZE, num_workers=workers, **options)


@contextlib.contextmanager
def opened() -> Iterator[MemorySink]:
    """The loader's hooks alone; the rows are there when the block has ended."""
    patches, sink = Patches(), MemorySink()
    tracker = Tracker(Recorder(sink))
    hook_workers(patches, Seams(tracker, sink.appender("collectives"), sink.appender("samples")))
    try:
        yield sink
    finally:
        patches.undo()
        tracker.finish()


def iterate(
    loader: DataLoader[torch.Tensor], *, epochs: int = 1, most: int | None = None
) -> list[torch.Tensor]:
    """The batches, each copied out of the workers' memory; at most so many an epoch."""
    batches: list[torch.Tensor] = []
    for _ in range(epochs):
        batches.extend(batch.clone() for batch in itertools.islice(loader, most))
    return batches


def watch(loader: DataLoader[torch.Tensor], **how: Any) -> tuple[list[torch.Tensor], Seen]:
    with opened() as sink:
        batches = iterate(loader, **how)
    return batches, seen_in(sink)


def seen_in(sink: MemorySink) -> Seen:
    spans = [
        Span(name, thread, depth, start, end)
        for _, phase, name, depth, thread, start, end, *_ in sink.rows["spans"]
        if phase == "data"
    ]
    return Seen(
        spans,
        [
            value
            for _, source, metric, _, value in sink.rows["samples"]
            if (source, metric) == ("loader", QUEUE_DEPTH)
        ],
    )


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)
    )


@pytest.fixture(autouse=True)
def nothing_fails() -> Iterator[None]:
    """No hook may fail; a test that plants a fault clears what it has caused."""
    FAILURES.clear()
    yield
    assert not FAILURES


LOADERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "no workers": (Planted, {"workers": 0}),
    "no workers, whole batches": (PlantedTogether, {"workers": 0}),
    "no workers, iterable": (lambda: Stream(Planted()), {"workers": 0}),
    "forks": (Planted, {"workers": 2}),
    "forks, whole batches": (PlantedTogether, {"workers": 2}),
    "forks, persistent": (Planted, {"workers": 2, "persistent_workers": True}),
    "forks, iterable": (lambda: Stream(Planted()), {"workers": 2}),
    "forks, iterable, persistent": (
        lambda: Stream(Planted()),
        {"workers": 2, "persistent_workers": True},
    ),
}


@pytest.mark.measured
@pytest.mark.parametrize("kind", LOADERS)
def test_planted_times_show_in_the_right_rows(kind: str) -> None:
    data, options = LOADERS[kind]
    epochs = 2 if "persistent_workers" in options else 1
    batches, seen = watch(make_loader(data(), collate_fn=slow_collate, **options), epochs=epochs)
    assert len(batches) == epochs * BATCHES
    assert seen.shows(own_figures(batches))
    names = (*MAKING, "queue") if options["workers"] else MAKING
    assert {name: len(seen.named(name)) for name in names} == dict.fromkeys(names, len(batches))
    assert (
        len(seen.named("queue")) == len(seen.depths) == (len(batches) if options["workers"] else 0)
    )


@pytest.mark.parametrize("kind", ["no workers", "forks"])
def test_a_batchs_rows_follow_each_other(kind: str) -> None:
    data, options = LOADERS[kind]
    _, seen = watch(make_loader(data(), collate_fn=slow_collate, **options))
    for read, decode, collate in zip(*map(seen.named, MAKING), strict=True):
        assert read.end_ns == decode.start_ns
        assert decode.end_ns <= collate.start_ns < collate.end_ns
        assert {read.depth, decode.depth, collate.depth} == {1}
    if options["workers"]:
        assert [queue.start_ns for queue in seen.named("queue")] == [
            collate.end_ns for collate in seen.named("collate")
        ]


def test_without_workers_the_rows_lie_in_the_wait_for_the_batch() -> None:
    loader, waits = make_loader(Planted(1, 1), workers=0), []
    with opened() as sink:
        iterator = iter(loader)
        for _ in range(BATCHES):
            start = time.perf_counter_ns()
            next(iterator)
            waits.append((start, time.perf_counter_ns()))
    seen = seen_in(sink)
    assert {span.thread for span in seen.spans} == {"MainThread"}
    for (start, end), read, collate in zip(
        waits, seen.named("read"), seen.named("collate"), strict=True
    ):
        assert start <= read.start_ns <= collate.end_ns <= end


@pytest.mark.parametrize(
    "options", [{}, {"in_order": False}, {"persistent_workers": True}], ids=str
)
def test_each_row_names_the_worker_that_made_the_batch(options: dict[str, Any]) -> None:
    batches, seen = watch(make_loader(Planted(2, 0, batches=20), workers=2, **options), epochs=2)
    makers = [f"loader worker {int(batch[0, 1])}" for batch in batches]
    assert set(makers) == {"loader worker 0", "loader worker 1"}
    for name in (*MAKING, "queue"):
        assert [span.thread for span in seen.named(name)] == makers


@pytest.mark.measured
def test_a_starved_loop_finds_nothing_and_takes_at_once() -> None:
    own, taken = [], []
    with opened() as sink:
        for batch in make_loader(
            Planted(READ_MS, 0, batches=20), workers=1, collate_fn=slow_collate
        ):
            taken.append(time.perf_counter_ns())
            own.extend(own_figures([batch]))
    seen = seen_in(sink)
    assert statistics.median(seen.depths) == 0
    queued_ms = [(end - made) / 1e6 for end, (*_, made) in zip(taken, own, strict=True)]
    assert (
        statistics.median(
            abs(span.ms - ms) for span, ms in zip(seen.named("queue"), queued_ms, strict=True)
        )
        < TOLERANCE_MS
    )


def test_a_slow_loop_finds_all_that_may_be_prefetched() -> None:
    full = [min(2 * 3, left) for left in range(20, 0, -1)]
    with opened() as sink:
        iterator: Any = iter(make_loader(Planted(0, 0, batches=20), workers=2, prefetch_factor=3))
        for prefetched in full:
            wait_until_finished(iterator, prefetched)
            next(iterator)
        iterator._shutdown_workers()
    assert seen_in(sink).depths == full


def wait_until_finished(iterator: Any, batches: int) -> None:
    """The batches that the loop has not taken: those in the loader, and those in the queue."""
    end = time.monotonic() + PATIENCE_S
    while (
        sum(len(task) == 2 for task in iterator._task_info.values())
        + iterator._worker_result_queue.qsize()
        < batches
    ):
        assert time.monotonic() < end, "the workers do not finish them"
        time.sleep(0.001)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [None, 3])
def test_batches_are_the_same_to_the_bit(workers: int, stop: int | None) -> None:
    def all_batches() -> list[torch.Tensor]:
        torch.manual_seed(7)
        return iterate(
            make_loader(
                Planted(0, 0), workers=workers, shuffle=True, persistent_workers=workers > 0
            ),
            epochs=3,
            most=stop,
        )

    bare = all_batches()
    with opened() as sink:
        assert same(all_batches(), bare)
    assert len(seen_in(sink).named("collate")) == len(bare) == 3 * (stop or BATCHES)


class Broken(Planted):
    """Ends with an error in the third batch."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2 * BATCH_SIZE + 1:
            raise LookupError("the job's own error")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_the_data_goes_through(workers: int) -> None:
    def run() -> tuple[list[torch.Tensor], str]:
        batches: list[torch.Tensor] = []
        torch.manual_seed(7)
        iterator: Any = iter(make_loader(Broken(0, 0), workers=workers))
        with pytest.raises(LookupError, match="the job's own error") as caught:
            batches.extend(iterator)
        if workers:
            iterator._shutdown_workers()  # left to the garbage collector, it takes ten seconds
        return batches, str(caught.value).splitlines()[0]

    bare, message = run()
    with opened() as sink:
        batches, told = run()
    assert (same(batches, bare), told) == (True, message)
    assert len(seen_in(sink).named("read")) == 2


class Nested(Planted):
    """Reads each sample through a loader of its own."""

    def __getitem__(self, index: int) -> torch.Tensor:
        sample: torch.Tensor = next(iter(DataLoader(Planted(0, 0), batch_size=1)))[0]
        return sample


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_inside_the_data_is_part_of_the_batch(workers: int) -> None:
    batches, seen = watch(make_loader(Nested(), workers=workers))
    assert len(seen.named("read")) == len(seen.named("collate")) == len(batches)


@pytest.mark.measured
def test_a_batch_that_is_pinned_on_its_way_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[object] = []

    def pin(data: object, device: object = None) -> object:
        pinned.append(device)
        return data

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(pin_memory, "pin_memory", pin)
    batches, seen = watch(
        make_loader(Planted(), workers=2, pin_memory=True, collate_fn=slow_collate)
    )
    assert len(batches) == len(pinned) == len(seen.named("queue")) == BATCHES
    assert seen.shows(own_figures(batches))


def _boom(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(FAULT)


FAULTS = [
    (fetching.WaitClock, "read"),
    (fetching.WaitClock, "__init__"),
    (fetching.Fetch, "__init__"),
    (fetching.Fetch, "close"),
    (Ring, "create"),
    (Ring, "name_workers"),
    (Ring, "write"),
    (Ring, "read"),
    (Ring, "count_finished"),
    (worker_loop.WorkerMeter, "__init__"),
    (worker_loop.WorkerMeter, "numbered"),
    (Loaders, "keep"),
    (Loaders, "take"),
    (fetching, "_processor_ns"),
    (worker_loop, "hook_fetch"),
    (fetch, "_MapDatasetFetcher"),
    (worker, "_worker_loop"),
]


@pytest.mark.parametrize(
    ("owner", "name"), FAULTS[:-2], ids=lambda value: getattr(value, "__name__", value)
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_fault_of_ours_costs_rows_and_nothing_else(
    owner: Any, name: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_batches() -> list[torch.Tensor]:
        torch.manual_seed(7)
        return iterate(make_loader(Planted(0, 0), workers=workers, shuffle=True))

    bare = all_batches()
    monkeypatch.setattr(owner, name, _boom)
    with opened():
        assert same(all_batches(), bare)
    FAILURES.clear()


def test_a_batch_that_cannot_be_timed_leaves_the_fetcher_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = make_loader(Planted(0, 0), workers=0)
    iterator: Any = iter(loader)
    monkeypatch.setattr(fetching, "_processor_ns", _boom)
    with opened():
        next(iterator)
        assert iterator._dataset_fetcher.collate_fn is loader.collate_fn
    assert FAILURES.pop("loader: begin of a batch") == 1


def test_a_fault_where_a_batch_is_collated_costs_rows_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_batches() -> list[torch.Tensor]:
        torch.manual_seed(7)
        return iterate(make_loader(Planted(0, 0), workers=0, shuffle=True))

    def fail_inside_collate() -> int:
        return int(_boom()) if sys._getframe(1).f_code.co_name == "collate" else 0

    bare = all_batches()
    monkeypatch.setattr(fetching, "_processor_ns", fail_inside_collate)
    with opened():
        assert same(all_batches(), bare)
    assert FAILURES.pop("loader: collate")


@pytest.mark.parametrize(
    ("owner", "name"), FAULTS[-2:], ids=lambda value: getattr(value, "__name__", value)
)
def test_another_loader_inside_is_left_alone(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(owner, name)
        with opened():
            assert FAILURES.pop("loader: hooks") == 1


def test_everything_is_taken_back() -> None:
    places = [
        *(
            (_MultiProcessingDataLoaderIter, name)
            for name in ("__init__", "_reset", "_next_data", "_get_data")
        ),
        *((kind, "fetch") for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)),
        (worker, "_worker_loop"),
    ]
    before = [vars(owner)[name] for owner, name in places]
    loader = make_loader(Planted(0, 0), workers=0)
    iterator: Any = iter(loader)
    with opened():
        next(iterator)
        assert all(
            vars(owner)[name] is not original
            for (owner, name), original in zip(places, before, strict=True)
        )
    assert [vars(owner)[name] for owner, name in places] == before
    assert iterator._dataset_fetcher.collate_fn is loader.collate_fn


def _descriptors() -> list[str]:
    names = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(names)


def test_no_descriptor_and_no_file_is_left() -> None:
    gc.collect()
    before, files = _descriptors(), set(os.listdir("/dev/shm"))
    for workers in (0, 2):
        watch(make_loader(Planted(0, 0), workers=workers), most=3)
    gc.collect()
    # The threads that feed the workers' queues close their pipes when they end, and nobody waits.
    deadline = time.monotonic() + 20
    while _descriptors() != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _descriptors() == before
    assert {name for name in set(os.listdir("/dev/shm")) - files if "profkit" in name} == set()


# -- the ring ------------------------------------------------------------------------------------

TIMES = BatchTimes(1, 10, 20, 30, 4, 5)


def test_a_slot_is_read_by_the_batch_that_it_holds() -> None:
    ring = Ring.create(2, 4)
    assert ring.read(1, 3) is None
    ring.write(1, 3, TIMES)
    assert ring.read(1, 3) == TIMES
    assert ring.read(2, 3) is None
    ring.write(1, 3 + ring.size, TIMES._replace(worker=0))
    assert ring.read(1, 3) is None
    assert ring.count_finished(1, range(3, 3 + 2 * ring.size)) == 1


def test_a_process_finds_no_ring_but_its_own() -> None:
    ring = Ring.create(2, 4)
    ring.name_workers([os.getpid(), os.getpid() + 1])
    assert ring.is_for(0, os.getpid())
    assert not ring.is_for(1, os.getpid())
    assert not ring.is_for(2, os.getpid())
    assert find_ring(0) is None  # no process started this one as its worker


def test_other_memory_is_no_ring() -> None:
    with pytest.raises(ValueError, match="not a ring"):
        Ring(mmap.mmap(-1, 4096))


# -- whole jobs ----------------------------------------------------------------------------------


def _record(job: Path, folder: Path) -> tuple[list[list[list[float]]], Trace]:
    """The batches that an unedited script printed under `profkit run`, and its trace."""
    command = [sys.executable, "-m", "profkit", "run", "--", sys.executable, str(job)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PROFKIT_")}
    printed = run_to_end(command, folder, clean | {"PYTHONPATH": str(JOBS.parents[2])})
    return [
        json.loads(line.removeprefix("batch "))
        for line in printed.splitlines()
        if line.startswith("batch ")
    ], newest_run(folder)


def _measured(trace: Trace) -> set[int]:
    """The steps, and so the batches, of which there are rows."""
    return set(trace.steps.filter(trace.steps["instrumented"])["step"].to_pylist())


def _seen_in_trace(trace: Trace, thread: str) -> Seen:
    rows = [
        row
        for row in trace.table("spans").to_pylist()
        if row["phase"] == "data" and row["thread"].startswith(thread)
    ]
    samples = [row for row in trace.table("samples").to_pylist() if row["metric"] == QUEUE_DEPTH]
    assert not [
        row for row in trace.table("samples").to_pylist() if row["metric"].startswith("failures")
    ]
    return Seen(
        [Span(*(row[name] for name in Span._fields)) for row in rows],
        [row["value"] for row in samples],
    )


@pytest.mark.measured
def test_workers_that_are_no_forks_find_their_ring(tmp_path: Path) -> None:
    """Two epochs of one that is spawned, and one of one that a server forks."""
    batches, trace = _record(JOBS / "loader_torch.py", tmp_path)
    seen = _seen_in_trace(trace, "loader worker")
    assert len(trace.ranks) == 1
    assert len(batches) == trace.steps.num_rows == 3 * BATCHES
    assert len(seen.named("queue")) == len(seen.depths) == len(_measured(trace))
    assert all(
        batch[0][1] == 0 for batch in batches
    )  # in the workers, modules are called without a hook
    assert seen.shows(
        [batch[0][2:] for step, batch in enumerate(batches) if step in _measured(trace)]
    )


@pytest.mark.measured
def test_paddles_loader_shows_the_same(tmp_path: Path) -> None:
    batches, trace = _record(JOBS / "loader_paddle.py", tmp_path)
    in_thread, in_workers = (
        _seen_in_trace(trace, "loader thread"),
        _seen_in_trace(trace, "loader worker"),
    )
    assert len(batches) == trace.steps.num_rows == 8 + 8 + 16
    assert (
        len(in_thread.named("queue")) + len(in_workers.named("queue"))
        == len(in_workers.depths)
        == len(_measured(trace))
    )
    for seen, own_steps in ((in_thread, range(8)), (in_workers, range(8, len(batches)))):
        assert seen.shows([batches[step][0][2:] for step in own_steps if step in _measured(trace)])
