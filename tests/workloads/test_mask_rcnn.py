"""Mask R-CNN: the published model and settings, its inputs, and its evaluation."""

from __future__ import annotations

import math
import subprocess
import sys
import types
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.errors import UnreadableError
from profkit.progress import Progress
from profkit.workloads import mask_rcnn
from profkit.workloads.base import Build, Parts
from profkit.workloads.datasets.coco import CATEGORIES, Scene, check_tree
from profkit.workloads.datasets.coco_scenes import GeneratedScenes
from profkit.workloads.datasets.generated import generate
from profkit.workloads.mask_rcnn.data import Scaling, find_target
from profkit.workloads.training.samples import BadSamples

torch = pytest.importorskip("torch")
pytest.importorskip("pycocotools")

SMALL = GeneratedScenes(train=4, val=2, long_side=160)
CONFIG = {
    "batch_size": 2, "global_batch_size": 2, "image_size": 64,
    "lr": 0.0025, "momentum": 0.9, "weight_decay": 1e-4,
    "steps": 8, "seed": 0, "world_size": 1, "device": "cpu", "workers": 1, "evaluate": True,
}  # fmt: skip

PUBLISHED_PARAMETERS = 44_401_393
"""What torchvision tells of its model: for 91 classes, and with norms that are frozen."""


def quiet(what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SMALL, root=tmp_path_factory.mktemp("cache"), narrate=quiet)


@pytest.fixture(scope="module")
def parts(tree: Path) -> Parts:
    torch.manual_seed(0)
    return build(tree)


def build(tree: Path | None, **changes: Any) -> Parts:
    return mask_rcnn.WORKLOAD.builders["torch"](Build({**CONFIG, **changes}, tree, BadSamples()))


@pytest.fixture
def without_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building the model takes a second."""
    from profkit.workloads.mask_rcnn import torch_net

    monkeypatch.setattr(torch_net, "make_model", lambda *_: torch.nn.Linear(1, 1))


def to_tensors(batch: Any) -> Any:
    images, targets = batch
    return [torch.from_numpy(image) for image in images], [
        {name: torch.from_numpy(value) for name, value in target.items()} for target in targets
    ]


def first_batch(parts: Parts) -> Any:
    dataset, collate = parts.dataset, parts.collate
    assert dataset is not None
    assert collate is not None
    return to_tensors(collate([dataset[0, 0], dataset[0, 1]]))


def test_loading_the_module_imports_no_framework() -> None:
    code = (
        "import sys, profkit.workloads.mask_rcnn; "
        "sys.exit(bool({'torch', 'paddle', 'PIL', 'pycocotools'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The model


def test_it_has_the_published_parameters_for_its_classes(parts: Parts) -> None:
    unused = (91 - (CATEGORIES + 1)) * (5 * (1024 + 1) + (256 + 1))
    norms = sum(
        module.weight.numel() + module.bias.numel()
        for module in parts.model.modules()
        if isinstance(module, torch.nn.BatchNorm2d)
    )
    assert (
        sum(parameter.numel() for parameter in parts.model.parameters())
        == PUBLISHED_PARAMETERS - unused + norms
    )


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from profkit.workloads.mask_rcnn import torch_net

    monkeypatch.setattr(
        torch.hub, "download_url_to_file", lambda *_, **__: pytest.fail("it downloads")
    )
    torch_net.make_model(3, Scaling(64, 107), 41)


def test_every_parameter_learns_from_a_batch_and_the_loss_is_all_five(parts: Parts) -> None:
    batch = first_batch(parts)
    torch.manual_seed(1)
    loss = parts.loss_of(parts.model.train(), batch)
    loss.backward()
    torch.manual_seed(1)
    with torch.no_grad():
        losses = parts.model(*batch)
    assert set(losses) == {
        "loss_classifier",
        "loss_box_reg",
        "loss_mask",
        "loss_objectness",
        "loss_rpn_box_reg",
    }
    assert float(loss.detach()) == pytest.approx(sum(map(float, losses.values())), rel=1e-4)
    for parameter in parts.model.parameters():
        assert (parameter.grad is not None) == parameter.requires_grad
    parts.model.zero_grad(set_to_none=True)


def test_images_are_not_scaled_again_by_the_model(parts: Parts) -> None:
    image = torch.rand(3, 50, 70)
    (scaled,) = parts.model.transform.train()([image])[0].image_sizes
    assert tuple(scaled) == (50, 70)


def test_the_report_s_nan_is_given_and_not_raised(parts: Parts) -> None:
    """Learning rate 0.04 at batch 2: the loop is to see the NaN and to say so."""
    weight = parts.model.roi_heads.box_predictor.cls_score.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(math.nan)
        loss = parts.loss_of(parts.model.train(), first_batch(parts))
        weight.copy_(kept)
    assert math.isnan(float(loss))


def test_biases_learn_twice_as_fast_and_do_not_decay(parts: Parts) -> None:
    weights, biases = parts.optimizer.param_groups
    assert (weights["lr"], weights["weight_decay"], weights["momentum"]) == (0.0025, 1e-4, 0.9)
    assert (biases["lr"], biases["weight_decay"], biases["momentum"]) == (0.005, 0, 0.9)
    assert all(parameter.dim() == 1 for parameter in biases["params"])
    learning = [weight for weight in parts.model.parameters() if weight.requires_grad]
    assert len(weights["params"]) + len(biases["params"]) == len(learning)


def test_strides_and_frozen_layers_are_the_published_ones(parts: Parts) -> None:
    body = parts.model.backbone.body
    for stage in (body.layer2, body.layer3, body.layer4):
        assert (stage[0].conv1.stride, stage[0].conv2.stride) == ((2, 2), (1, 1))
    frozen = {name for name, weight in body.named_parameters() if not weight.requires_grad}
    assert frozen == {
        name
        for name, _ in body.named_parameters()
        if name.startswith(("conv1.", "bn1.", "layer1."))
    }


# Settings


def test_the_learning_rate_warms_up_and_falls_as_published() -> None:
    factor = mask_rcnn.schedule(500, 32)
    assert [factor(step) for step in (0, 250, 500, 32_999, 33_000, 44_000)] == pytest.approx(
        [1 / 3, 2 / 3, 1, 1, 0.1, 0.01]
    )
    assert mask_rcnn.schedule(0, 2)(0) == 1


@pytest.mark.usefixtures("without_model")
def test_what_departs_from_the_published_settings_is_named(tree: Path) -> None:
    reduced = build(tree).notes
    assert reduced["rois_per_image"] == "41, as the short side is reduced (published: 512)"
    assert reduced["lr_warmup_steps"] == "2, a quarter of the steps (published: 500)"
    assert "published: frozen" in reduced["norm"]
    full = build(None, image_size=800, steps=3665).notes
    assert (full["rois_per_image"], full["lr_warmup_steps"]) == (512, 500)


@pytest.mark.usefixtures("without_model")
def test_epochs_count_as_their_steps(tree: Path) -> None:
    """An epoch of this tree is one step, as a batch has scenes of one orientation only."""
    said = "250, a quarter of the steps (published: 500)"
    assert build(tree, epochs=1000).notes["lr_warmup_steps"] == said
    assert build(tree, epochs=2000).notes["lr_warmup_steps"] == 500


@pytest.mark.usefixtures("without_model")
def test_made_up_batches_have_the_sizes_of_training() -> None:
    parts = build(None, image_size=800)
    images, targets = parts.synthetic(2)
    assert parts.dataset is None
    assert parts.evaluate is None
    assert [image.shape for image in images] == [(3, 800, 1066)] * 2
    for target in targets:
        assert [target[name].shape for name in ("boxes", "labels", "masks")] == [
            (7, 4),
            (7,),
            (7, 800, 1066),
        ]
        assert [str(target[name].dtype) for name in ("boxes", "labels", "masks")] == [
            "float32",
            "int64",
            "uint8",
        ]
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()
        assert 1 <= target["labels"].min() <= target["labels"].max() <= CATEGORIES
        assert target["masks"].any(axis=(1, 2)).all()


@pytest.mark.usefixtures("without_model")
def test_the_validation_part_is_asked_for_only_where_it_is_judged(
    tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "annotations").mkdir()
    name = "instances_train2017.json"
    (tmp_path / "annotations" / name).write_bytes((tree / "annotations" / name).read_bytes())
    (tmp_path / "train2017").symlink_to(tree / "train2017")
    assert build(tmp_path, evaluate=False).evaluate is None
    with pytest.raises(UnreadableError, match="instances_val2017"):
        build(tmp_path)


# The judge


def test_a_trained_model_is_judged_by_boxes_and_masks(parts: Parts, tree: Path) -> None:
    assert parts.evaluate is not None
    parts.model.eval()
    with torch.no_grad():
        figures = parts.evaluate(parts.model)
    assert set(figures) == {"box_ap", "mask_ap"}
    assert all(0 <= figure < 0.5 for figure in figures.values())


def test_the_truth_is_judged_as_perfect_through_the_same_path(tree: Path) -> None:
    index, scaling = check_tree(tree, "val"), Scaling(10**6, SMALL.long_side)
    scenes = iter(index.scenes)
    figures = mask_rcnn.evaluate(
        Build(CONFIG, tree, BadSamples()),
        index,
        scaling,
        lambda model, images: [truth(next(scenes), scaling) for _ in images],
        None,
    )
    assert figures == pytest.approx({"box_ap": 1, "mask_ap": 1}, abs=0.02)


def truth(scene: Scene, scaling: Scaling) -> dict[str, Any]:
    target = find_target(scene, scaling.of(scene.size))
    return {
        **target,
        "masks": target["masks"].astype(np.float32),
        "scores": np.ones(len(target["labels"])),
    }


def test_bad_images_are_left_out_of_the_judgement(tree: Path, tmp_path: Path) -> None:
    index, scaling, bad = (
        check_tree(tree, "val"),
        Scaling(10**6, SMALL.long_side),
        BadSamples("skip"),
    )
    first, *others = index.scenes
    lost = Scene(first.number, str(tmp_path / "lost.jpg"), first.size, first.instances)
    thinned: Any = types.SimpleNamespace(
        annotations=index.annotations, categories=index.categories, scenes=(lost, *others)
    )
    scenes = iter(others)
    figures = mask_rcnn.evaluate(
        Build(CONFIG, tree, bad),
        thinned,
        scaling,
        lambda model, images: [truth(next(scenes), scaling) for _ in images],
        None,
    )
    assert figures["box_ap"] == pytest.approx(1, abs=0.02)
    assert [sample.path.rpartition("/")[2] for sample in bad.news()] == ["lost.jpg"]
