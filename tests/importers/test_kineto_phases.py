"""The phases that a trace does not mark: where a forward begins, and what is nested in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from profkit.importers.kineto import IMPORTER
from profkit.trace import Trace
from tests.importers.conftest import BASE_US, Import, host, kernel, two_steps, us, write_trace

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
