"""Settings that need a GPU, with fakes at the frameworks' boundary. None of this ran on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from profkit.plugins import WORKLOADS
from profkit.workloads.base import MixedPrecision, Parts, Settings
from profkit.workloads.resnet50 import WORKLOAD
from profkit.workloads.training.driver import DeviceArray, OutOfMemoryError, explain_memory
from profkit.workloads.training.samples import BadSamples
from profkit.workloads.training.settings import Seat, check, final_config

torch = pytest.importorskip("torch")

GPU = Seat(gpu=0)
CONFIG = {
    "precision": "fp32", "device": "cpu", "memory_format": "NCHW", "world_size": 1, "rank": 0,
    "data": "synthetic", "steps": 4, "batch_size": 2, "compile": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("resnet50", Settings("torch"), True),
        ("resnet50", Settings("torch", autotune=False), False),
        ("mask_rcnn", Settings("torch"), False),  # every batch has another shape
        ("mask_rcnn", Settings("torch", autotune=True), True),
    ],
)
def test_the_fastest_convolutions_are_searched_by_default(
    name: str, settings: Settings, expected: bool
) -> None:
    assert final_config(WORKLOADS.load(name), settings, GPU)["autotune"] is expected
    without = Settings("torch")
    assert final_config(WORKLOADS.load(name), without, Seat())["autotune"] is False


def test_paddle_s_own_variable_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_cudnn_exhaustive_search", "0")
    assert final_config(WORKLOAD, Settings("paddle"), GPU)["autotune"] is False
    assert final_config(WORKLOAD, Settings("paddle", autotune=True), GPU)["autotune"] is True
    assert final_config(WORKLOAD, Settings("torch"), GPU)["autotune"] is True


@pytest.mark.parametrize("autotune", [True, False])
def test_torch_searches_if_it_is_asked_to(monkeypatch: pytest.MonkeyPatch, autotune: bool) -> None:
    from profkit.workloads.training.torch_driver import open_torch

    set_to: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", set_to.append)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    kit = open_torch({"device": "cuda:1", "seed": 0, "autotune": autotune}, Seat(gpu=1))
    assert torch.backends.cudnn.benchmark is autotune
    assert set_to == [torch.device("cuda:1")]
    assert kit.flags["tf32"].startswith("convolutions")


@pytest.mark.parametrize("autotune", [True, False])
def test_paddle_searches_if_it_is_asked_to(monkeypatch: pytest.MonkeyPatch, autotune: bool) -> None:
    from tests.workloads.twins import import_paddle

    paddle = import_paddle()
    from profkit.workloads.training.paddle_driver import open_paddle

    flags: dict[str, Any] = {}
    monkeypatch.setattr(paddle, "set_flags", flags.update)
    monkeypatch.setattr(paddle.device, "set_device", lambda name: flags.update(device=name))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    open_paddle({"device": "cuda:1", "seed": 0, "autotune": autotune}, Seat(gpu=1))
    assert flags == {"device": "gpu:1", "FLAGS_cudnn_exhaustive_search": autotune}


@pytest.mark.parametrize(
    ("global_batch", "rate"), [(8, 0.01), (64, 0.01), (128, 0.02), (16, 0.0025)]
)
def test_the_rates_of_hrnet_are_the_published_ones(global_batch: int, rate: float) -> None:
    defaults = WORKLOADS.load("hrnet_w18").defaults
    assert defaults.learning_rate(global_batch) == pytest.approx(rate)


def test_nhwc_in_paddle_is_for_the_model_that_has_it() -> None:
    nhwc = Settings("paddle", channels_last=True)
    check(WORKLOAD, nhwc, on_gpu=True)
    with pytest.raises(Exception, match="tsm is NCHW in paddle; it works with --framework torch"):
        check(WORKLOADS.load("tsm"), nhwc, on_gpu=True)


class FakeScaler:
    """A scaler that counts how often its scale is read, which waits for the device."""

    def __init__(self, device: str, init_scale: float, enabled: bool) -> None:
        self.now, self.read, self.enabled = init_scale, 0, enabled
        self.after = iter([init_scale, init_scale / 2, init_scale / 2])

    def is_enabled(self) -> bool:
        return self.enabled

    def get_scale(self) -> float:
        self.read += 1
        return self.now

    def step(self, optimizer: Any) -> None:
        pass

    def update(self) -> None:
        self.now = next(self.after)


def torch_driver(**changes: Any) -> Any:
    from profkit.workloads.training.torch_driver import TorchDriver

    model = torch.nn.Linear(3, 2)
    parts = Parts(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss_of=lambda model, batch: model(batch[0]).mean(),
        dataset=None,
        synthetic=lambda count: (np.ones((count, 3), dtype=np.float32),),
        mixed=MixedPrecision(first_scale=128.0),
    )
    return TorchDriver(parts, {**CONFIG, **changes}, BadSamples())


def test_the_scale_is_read_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp, "GradScaler", FakeScaler)
    driver = torch_driver(precision="fp16")
    assert driver.grad_scale == 128.0
    scales = []
    for step in range(3):
        driver.update(step)
        scales.append(driver.grad_scale)
    assert scales == [128.0, 64.0, 64.0]
    assert driver._scaler.read == 3


def test_without_a_scaler_there_is_no_scale() -> None:
    driver = torch_driver()
    driver.backward(driver.forward((torch.ones(2, 3),)))
    driver.update(0)
    assert driver.grad_scale is None


def test_an_array_that_another_library_made_is_copied() -> None:
    made = torch.ones(2, 3)
    given = (DeviceArray(made), np.arange(2))
    driver = torch_driver()
    batch = driver.move(given)
    made.zero_()
    assert batch[0].tolist() == [[1, 1, 1]] * 2


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "ResourceExhaustedError: Out of memory error on GPU 0",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_a_batch_that_does_not_fit_is_said_with_the_remedy(text: str) -> None:
    with pytest.raises(OutOfMemoryError, match="batch 512 per rank; choose a smaller --batch-size"):
        explain_memory(RuntimeError(text), 512)
    explain_memory(RuntimeError("shapes do not match"), 512)


def test_dali_on_a_gpu_copies_small_numbers_and_normalises_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The graph that is built, with DALI's functions recorded and not executed."""
    pytest.importorskip("nvidia.dali")
    from nvidia import dali

    from profkit.workloads.base import Build
    from profkit.workloads.resnet50.dali import open_image_folder

    for label in range(2):
        (tmp_path / "train" / f"n{label}").mkdir(parents=True)
        (tmp_path / "train" / f"n{label}" / "a.jpg").write_bytes(b"")
    calls: list[tuple[str, dict[str, Any]]] = []

    def recorded(name: str) -> Any:
        def call(*inputs: Any, **options: Any) -> Any:
            calls.append((name, options))
            node: Any = SimpleNamespace()
            node.gpu = recorded("gpu")
            return (node, node) if name == "read" else node

        return call

    def pipeline_def(define: Any, **options: Any) -> Any:
        def make(*given: Any, **named: Any) -> Any:
            define(*given, **named)
            return SimpleNamespace(build=lambda: None, options=options)

        return make

    functions = SimpleNamespace(
        readers=SimpleNamespace(file=recorded("read")),
        decoders=SimpleNamespace(image_random_crop=recorded("decode")),
        get_property=recorded("name"),
        random=SimpleNamespace(coin_flip=recorded("flip")),
        **{name: recorded(name) for name in ("resize", "cast", "squeeze", "crop_mirror_normalize")},
    )
    monkeypatch.setattr(dali, "fn", functions)
    monkeypatch.setattr(dali, "pipeline_def", pipeline_def)
    config = {
        "batch_size": 1, "global_batch_size": 1, "image_size": 32, "workers": 1, "seed": 0,
        "prefetch": 2, "rank": 0, "world_size": 1, "steps": 2, "device": "cuda:3",
    }  # fmt: skip
    for loader, device in (("DALI", "cpu"), ("DALI on the GPU", "mixed")):
        calls.clear()
        open_image_folder(Build({**config, "loader": loader}, tmp_path, BadSamples()))
        named = dict(calls)
        order = [name for name, _ in calls]
        assert named["decode"]["device"] == device
        assert named["crop_mirror_normalize"]["device"] == "gpu"
        assert order.index("resize") < order.index("gpu") < order.index("crop_mirror_normalize")
