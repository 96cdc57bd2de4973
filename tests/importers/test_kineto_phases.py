"""The phases that a trace does not mark: where a forward begins, and what is nested in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from profkit.importers.kineto import IMPORTER
from profkit.trace import Trace
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

BASE_NS = BASE_US * 1000


def phases_of(run: Path, step: int = 4) -> list[tuple[str, str, int, int, int]]:
    """Return phase, name, depth, and start and end from the base, of a step's spans."""
    found = []
    for span in Trace.open(run).spans.to_pylist():
        if span["step"] == step and span["name"] != "exposed":
            bounds = span["start_ns"] - BASE_NS, span["end_ns"] - BASE_NS
            found.append((span["phase"], span["name"], span["depth"], *bounds))
    return found


def forwards_of(run: Path) -> list[tuple[int, int]]:
    return [(start, end) for phase, _, depth, start, end in phases_of(run) if phase == "forward"]


ONES = host("cpu_op", "aten::ones_like", us("295.125"), "2")
ZEROING = "Optimizer.zero_grad#SGD.zero_grad"


def test_zeroing_gradients_does_not_end_the_forward(tmp_path: Path, import_files: Import) -> None:
    zeroing = host("user_annotation", ZEROING, us("280.125"), "10")
    (made,) = import_files(
        IMPORTER, write_trace(tmp_path / "a.json", [*two_steps(), zeroing, ONES])
    )
    assert ("forward", "forward", 0, 120_125, 300_125) in phases_of(made.run)
    assert ("optimizer", ZEROING, 1, 280_125, 290_125) in phases_of(made.run)
    trace = Trace.open(made.run)
    assert trace.kernels["phase"].to_pylist()[0] == "forward"


@pytest.mark.parametrize("at", [("105", "10"), ("280", "10")])
def test_the_place_of_the_zeroing_makes_no_difference(
    at: tuple[str, str], tmp_path: Path, import_files: Import
) -> None:
    events = [*two_steps(), host("user_annotation", ZEROING, us(f"{at[0]}.125"), at[1]), ONES]
    inside = host("cpu_op", "aten::zero_", us(f"{int(at[0]) + 1}.125"), "2")
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*events, inside]))
    assert forwards_of(made.run) == [(120_125, 300_125)]


@pytest.mark.parametrize(
    "name", ["nccl:all_gather", "c10d::allreduce_", "save_checkpoint", "logging"]
)
def test_nor_do_collectives_and_other_work_end_the_forward(
    name: str, tmp_path: Path, import_files: Import
) -> None:
    between = host("user_annotation", name, us("280.125"), "10")
    (made,) = import_files(
        IMPORTER, write_trace(tmp_path / "a.json", [*two_steps(), between, ONES])
    )
    assert forwards_of(made.run) == [(120_125, 300_125)]
    assert (280_125, 290_125, 1) in [
        (start, end, depth) for _, _, depth, start, end in phases_of(made.run)
    ]


def test_a_region_around_the_model_is_part_of_the_forward(
    tmp_path: Path, import_files: Import
) -> None:
    region = host("user_annotation", "model_inference", us("110.125"), "180")
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*two_steps(), region]))
    assert phases_of(made.run)[1:3] == [
        ("forward", "forward", 0, 110_125, 300_125),
        ("forward", "model_inference", 1, 110_125, 290_125),
    ]


def test_a_forward_inside_an_optimizers_step_begins_inside_it(
    tmp_path: Path, import_files: Import
) -> None:
    """The closure of an optimizer computes the loss and its gradients in the optimizer's step."""
    events = [event for event in two_steps() if not event["name"].startswith("Optimizer.step")]
    closure = host("user_annotation", "Optimizer.step#LBFGS.step", us("110.125"), "600")
    before = host("cpu_op", "aten::to", us("105.125"), "2")
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*events, closure, before]))
    assert ("forward", "forward", 1, 120_125, 300_125) in phases_of(made.run)


@pytest.mark.parametrize(("at", "depth"), [(105, 0), (250, 1)])
def test_copies_of_the_training_thread_are_no_part_of_the_forward(
    at: int, depth: int, tmp_path: Path, import_files: Import
) -> None:
    """The batch is copied before the forward, the labels in its midst."""
    copy = {**kernel("Memcpy HtoD (Pageable -> Device)", us(f"{at + 2}.125"), "3", 99)}
    copy["cat"] = "gpu_memcpy"
    events = [
        *two_steps(),
        host("cpu_op", "aten::to", us(f"{at}.125"), "10"),
        host("cuda_runtime", "cudaMemcpyAsync", us(f"{at + 1}.125"), "4", correlation=99),
        copy,
    ]
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", events))
    found = phases_of(made.run)
    assert ("h2d", "aten::to", depth, at * 1000 + 125, at * 1000 + 10_125) in found
    assert forwards_of(made.run) == [(120_125, 300_125)]


def test_a_conversion_on_the_device_is_no_copy(tmp_path: Path, import_files: Import) -> None:
    cast = host("cpu_op", "aten::to", us("110.125"), "5")
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*two_steps(), cast]))
    assert forwards_of(made.run) == [(110_125, 300_125)]


@pytest.mark.parametrize(
    "name",
    [
        "FSDP::pre_forward (layers.0)",
        "FSDP::root_pre_forward",
        "FSDP::post_forward (layers.0)",
        "FullyShardedDataParallel._pre_forward_prefetch",
        "_post_forward_module_hook",
    ],
)
def test_hooks_of_a_forward_are_not_the_forward(
    name: str, tmp_path: Path, import_files: Import
) -> None:
    hook = host("user_annotation", name, us("121.125"), "2")
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*two_steps(), hook]))
    assert phases_of(made.run)[1:3] == [
        ("forward", "forward", 0, 120_125, 300_125),
        ("forward", name, 1, 121_125, 123_125),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "FSDP::pre_backward (layers.0)",
        "FSDP::post_backward_reduce",
        "FSDP::root_post_backward_callback",
        "FullyShardedDataParallel._post_backward_hook",
    ],
)
def test_hooks_of_a_backward_are_not_the_backward(
    name: str, tmp_path: Path, import_files: Import
) -> None:
    hook = host("user_annotation", name, us("410.125"), "2")
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*two_steps(), hook]))
    assert phases_of(made.run)[1:4] == [
        ("forward", "forward", 0, 120_125, 300_125),
        ("backward", "backward", 0, 300_125, 500_125),
        ("backward", name, 1, 410_125, 412_125),
    ]


@pytest.mark.parametrize("name", ["forward_backward", "forward-backward", "fwd/bwd of a batch"])
def test_an_annotation_of_both_is_neither(name: str, tmp_path: Path, import_files: Import) -> None:
    both = host("user_annotation", name, us("115.125"), "400")
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*two_steps(), both]))
    assert phases_of(made.run)[1:3] == [
        ("forward", "forward", 0, 120_125, 300_125),
        ("backward", "backward", 0, 300_125, 500_125),
    ]


@pytest.mark.parametrize(
    "name", ["DistributedDataParallel.forward", "FullyShardedDataParallel.forward"]
)
def test_an_annotation_of_the_whole_forward_is_the_forward(
    name: str, tmp_path: Path, import_files: Import
) -> None:
    whole = host("user_annotation", name, us("115.125"), "180")
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*two_steps(), whole]))
    assert ("forward", name, 0, 115_125, 295_125) in phases_of(made.run)
    assert forwards_of(made.run) == [(115_125, 295_125)]


def without_marks() -> list[Event]:
    return [event for event in two_steps() if not event["name"].startswith("ProfilerStep")]


LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def bounds_of(run: Path) -> list[tuple[int, int]]:
    return [
        (step["start_ns"] - BASE_NS, step["end_ns"] - BASE_NS)
        for step in Trace.open(run).steps.to_pylist()
    ]


def test_the_call_that_ends_an_epoch_is_no_step(tmp_path: Path, import_files: Import) -> None:
    """The last call of a loop finds that there are no more batches."""
    last = host("user_annotation", LOAD, us("1900.125"), "5")
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*without_marks(), last]))
    assert bounds_of(made.run) == [(10_125, 1_010_125), (1_010_125, 1_900_125)]
    assert made.dropped["calls of the loader, or marks, that no training followed"] == 1


def test_batches_of_an_evaluation_are_no_steps(tmp_path: Path, import_files: Import) -> None:
    events = without_marks()
    for batch in range(3):
        at = 2000 + batch * 100
        events.append(host("user_annotation", LOAD, us(f"{at}.125"), "5"))
        launch = {"correlation": 50 + batch}
        events.append(host("cuda_runtime", "cudaLaunchKernel", us(f"{at + 10}.0"), "5", **launch))
        events.append(kernel("volta_sgemm_64x64_nt", us(f"{at + 20}.0"), "10", 50 + batch))
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", events))
    assert bounds_of(made.run) == [(10_125, 1_010_125), (1_010_125, 2_000_125)]


def test_batches_that_train_nothing_are_steps_if_no_other_does(
    tmp_path: Path, import_files: Import
) -> None:
    events = []
    for batch in range(3):
        events.append(host("user_annotation", LOAD, us(f"{batch * 100}.0"), "5"))
        events.append(host("cpu_op", "aten::mm", us(f"{batch * 100 + 20}.0"), "10"))
    events.append(host("user_annotation", LOAD, us("300.0"), "5"))
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", events))
    assert bounds_of(made.run) == [(0, 100_000), (100_000, 200_000), (200_000, 300_000)]


def test_two_loaders_make_one_step(tmp_path: Path, import_files: Import) -> None:
    others = [host("user_annotation", LOAD, us(f"{at}.125"), "4") for at in (5, 1005)]
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*without_marks(), *others]))
    assert [start for start, _ in bounds_of(made.run)] == [5_125, 1_005_125]


def test_the_mark_after_the_last_step_is_no_step(tmp_path: Path, import_files: Import) -> None:
    """Without a schedule, the profiler marks a step from its last `step()` to its end."""
    last = host("user_annotation", "ProfilerStep#6", us("2000"), "50")
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "a.json", [*two_steps(), last]))
    assert bounds_of(made.run) == [(0, 1_000_000), (1_000_000, 2_000_000)]
