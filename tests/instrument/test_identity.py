"""The description of a job: what it trains, with which optimizer, on which batches."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.config_join import join_config
from profkit.instrument.identity import describe_batches, describe_shapes
from profkit.run.naming import name_job, name_run, name_script
from profkit.trace import Trace
from profkit.trace.folders import find_runs
from tests.instrument.test_frameworks import (
    BATCH,
    WIDTH,
    Follow,
    Kit,
    Numbers,
    TorchKit,
    _failures,
    follow,
    kit,
)

__all__ = ["_failures", "follow", "kit"]

JOB = Path(__file__).parent / "jobs" / "plain_torch.py"
PARAMETERS = WIDTH * WIDTH + WIDTH + WIDTH + 1


def _describe(kit: Kit, follow: Follow, optimizer: str = "SGD", **options: Any) -> dict[str, Any]:
    followed = follow()
    model = kit.model()
    chosen = kit.optimizer(model, optimizer, **options)
    kit.train(model, chosen, kit.loader(num_workers=0))
    facts = kit.framework().describe_job(followed.tracker)
    followed.finish()
    return facts


def test_a_job_is_described_by_what_it_trains(kit: Kit, follow: Follow) -> None:
    facts = _describe(kit, follow)
    assert facts["parameters_count"] == PARAMETERS
    assert facts["parameters_bytes"] == {"float32": 4 * PARAMETERS}
    assert facts["modules_count"] == 6
    assert facts["model"] == "Sequential"
    assert facts["optimizer"] == "SGD"
    assert facts["workers"] == 0
    assert facts["batch_size"] == BATCH
    assert facts["batch_shapes"] == f"{BATCH}x{WIDTH}, {BATCH}x1"
    assert facts["batch_shapes_distinct"] == 2  # with the last, which is shorter
    assert "activation_checkpointing" not in facts


def test_a_fingerprint_is_that_of_the_shapes(kit: Kit, follow: Follow) -> None:
    first, again = _describe(kit, follow), _describe(kit, follow, "Adam")
    assert first["parameters_fingerprint"] == again["parameters_fingerprint"]
    assert (first["optimizer"], again["optimizer"]) == ("SGD", "Adam")


def test_torchs_options_are_told(kit: Kit, follow: Follow) -> None:
    if not isinstance(kit, TorchKit):
        pytest.skip("options of torch")
    facts = _describe(kit, follow, "AdamW", foreach=True)
    assert facts["optimizer_foreach"] == "True"
    assert facts["optimizer_fused"] == "default"
    assert facts["optimizer_groups"] == 1
    assert facts["precision"] == "fp32"
    assert facts["deterministic"] is False


@pytest.mark.parametrize("fused", [True, False])
def test_paddles_variant_of_an_optimizer_is_told(kit: Kit, follow: Follow, fused: bool) -> None:
    if isinstance(kit, TorchKit):
        pytest.skip("an option of Paddle")
    facts = _describe(kit, follow, "Adam", use_multi_tensor=fused)
    assert facts["optimizer_multi_tensor"] == str(fused)
    assert "optimizer_multi_tensor" not in _describe(kit, follow), "its SGD has no such option"


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers:FutureWarning")
@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({}, {"broadcast_buffers": True, "find_unused_parameters": False, "static_graph": False}),
        ({"bucket_cap_mb": 2}, {"bucket_bytes": 2 << 20}),
        ({"find_unused_parameters": True}, {"find_unused_parameters": True}),
        ({"static_graph": True}, {"static_graph": True}),
        ({"broadcast_buffers": False}, {"broadcast_buffers": False}),
        ({"gradient_as_bucket_view": True}, {"gradient_as_bucket_view": True}),
    ],
)
def test_the_options_of_ddp_are_told(
    kit: Kit, follow: Follow, options: dict[str, Any], facts: dict[str, Any]
) -> None:
    if not isinstance(kit, TorchKit):
        pytest.skip("options of torch")
    distributed = kit.torch.distributed
    store = distributed.HashStore()
    distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        followed = follow()
        inner = kit.model().append(kit.torch.nn.BatchNorm1d(1))
        model = kit.torch.nn.parallel.DistributedDataParallel(inner, **options)
        kit.train(model, kit.optimizer(model), kit.loader(2 * BATCH))
        told = kit.framework().describe_job(followed.tracker)
    finally:
        distributed.destroy_process_group()
    for name, fact in facts.items():
        assert told[name if name == "bucket_bytes" else f"ddp_{name}"] == fact


def test_mixed_precision_is_told_by_its_type(kit: Kit, follow: Follow) -> None:
    if not isinstance(kit, TorchKit):
        pytest.skip("Paddle's own does nothing on a CPU")
    followed = follow()
    model = kit.model()
    with kit.mixed_precision():
        kit.train(model, kit.optimizer(model), kit.loader())
    assert kit.framework().describe_job(followed.tracker)["precision"] == "bf16"


def test_recomputation_in_a_backward_is_told(kit: Kit, follow: Follow) -> None:
    if not isinstance(kit, TorchKit):
        pytest.skip("written for torch")
    checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint
    followed = follow()
    inner, model = kit.model(), kit.model()
    model[1][1].forward = lambda x: checkpoint(inner[0], x, use_reentrant=False)
    kit.train(model, kit.optimizer(model), kit.loader())
    facts = kit.framework().describe_job(followed.tracker)
    assert facts["activation_checkpointing"] is True


COMPILES = """
import sys
import torch

net = torch.nn.Linear(8, 1)
model = {"eager": lambda: net, "module": lambda: torch.compile(net, backend="eager"),
         "function": lambda: torch.compile(lambda x: net(x) * 2, backend="eager")}[sys.argv[1]]()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for (inputs,) in torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(64, 8)), batch_size=4
):
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("how", "compiled"), [("eager", 0), ("module", 1), ("function", 1)])
def test_a_run_says_whether_anything_was_compiled(tmp_path: Path, how: str, compiled: int) -> None:
    (tmp_path / "job.py").write_text(COMPILES)
    command = [sys.executable, "-m", "profkit", "run", "-o", "runs", "--", sys.executable, "job.py"]
    subprocess.run([*command, how], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (run,) = find_runs(tmp_path / "runs")
    assert Trace.open(run).manifest.config["compile"] is bool(compiled)


def test_nothing_is_kept_alive(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    kit.train(model, optimizer, kit.loader())
    gone = [weakref.ref(model), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert "model" not in kit.framework().describe_job(followed.tracker)


def test_shapes_of_nested_batches_are_told() -> None:
    numbers = Numbers().values
    assert describe_shapes({"a": [numbers, numbers[0]], "b": "text"}) == f"10x{WIDTH}, {WIDTH}"
    assert describe_shapes("text") == ""
    assert describe_batches(["", ""]) == {}
    assert describe_batches(["8", "8", "4"]) == {"batch_shapes": "8", "batch_shapes_distinct": 2}


def test_of_batches_that_vary_the_mean_size_is_told() -> None:
    facts = describe_batches([f"8x{length}, 8" for length in (10, 20, 30, 20)])
    assert (facts["batch_shapes"], facts["batch_shapes_distinct"]) == ("8x20, 8", 3)
    assert facts["batch_elements"] == 8 * 20
    assert facts["batch_elements_error"] == pytest.approx(8 * 8.165 / 2, rel=0.01)


def _record(folder: Path, *options: str, width: int) -> tuple[str, Trace]:
    command = [sys.executable, "-m", "profkit", "run", *options, "--"]
    job = [sys.executable, str(JOB), str(width)]
    folder.mkdir()
    bare = subprocess.run(job, capture_output=True, text=True, check=True, cwd=folder)
    done = subprocess.run(command + job, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stdout == bare.stdout
    assert "1 rank recorded" in done.stderr
    (run,) = find_runs(folder / "traces")
    return run.name, Trace.open(run)


def test_a_run_says_what_it_trains_and_explain_finds_the_difference(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    name, base = _record(tmp_path / "base", width=4)
    assert name.startswith("plain_torch-")
    named, target = _record(
        tmp_path / "target", "--name", "wide job", "--samples-per-step", "4", width=6
    )
    assert named.startswith("wide_job-")
    assert target.manifest.workload == "wide_job"
    assert set(target.steps["sample_count"].to_pylist()) == {4}
    assert set(base.steps["sample_count"].to_pylist()) == {0}
    assert base.steps.num_rows == target.steps.num_rows == 12
    differences = {each.name: each for each in join_config(base.manifest, target.manifest)}
    assert differences["parameters_count"].base == "41"
    assert differences["parameters_count"].target == "61"
    assert "parameters_fingerprint" in differences
    assert "optimizer" not in differences


@pytest.mark.parametrize(
    ("command", "job", "run"),
    [
        (["python", "/work/mnist/classify.py", "-x"], "classify", "classify"),
        (["torchrun", "/work/PaddleSeg/tools/train.py"], "train", "PaddleSeg-train"),
        (["python", "-m", "package.train"], "package.train", "package.train"),
        (["bash", "/work/dcgan/scripts/go.sh"], "go", "go"),
        (["yolo", "detect"], "yolo", "yolo"),
        (["python3.11", "-u", "-X", "dev", "/work/asr/bin/train", "-m", "x"], "train", "asr-train"),
        (["nice", "/opt/bin/python", "bin/decode"], "decode", "decode"),
        (["python", "-c", "import job"], "python", "python"),
        (["python", "-munittest"], "python", "python"),
        (["python", "-", "x"], "python", "python"),
    ],
)
def test_runs_are_named_so_that_jobs_can_be_told_apart(
    command: list[str], job: str, run: str
) -> None:
    assert name_job(command) == job
    assert name_run(command) == run


def test_a_launcher_is_not_the_name_of_a_script_without_a_suffix(tmp_path: Path) -> None:
    hosts, script = tmp_path / "hosts", tmp_path / "fit-model"
    hosts.write_text("node0\n")
    script.write_text("#!/usr/bin/env python3\n")
    command = ["deepspeed", "--hostfile", str(hosts), str(script), "--epochs", "3"]
    assert name_run(command) == name_job(command) == "fit-model"
    assert name_job(["torchrun", "-m", "job", str(script)]) == "job"
    assert name_job([str(script)]) == "fit-model"


def test_a_notebook_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path("/usr/lib/ipykernel_launcher.py")
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/train vae.ipynb")
    assert name_script(script) == "train_vae"
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert name_script(script).endswith("-notebook")
