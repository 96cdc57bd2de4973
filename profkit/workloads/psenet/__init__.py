"""PSENet R50-FPN on ICDAR2015: the text detection benchmark of the reports."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.errors import UsageError
from profkit.workloads.base import Build, Defaults, Parts, Workload

if TYPE_CHECKING:
    import numpy as np

    from profkit.workloads.datasets.icdar import TextIndex

LR_EPOCHS = (200, 400)
PUBLISHED_IMAGES = 1000
STRIDE = 4
MIN_SCORE, MIN_AREA = 0.85, 16
"""What a region needs to be taken for text: its mean score, and its pixels at a quarter of the resolution."""

CONVERGE = {"steps": 150, "batch_size": 4, "image_size": 192, "lr": 0.01, "factor": 0.3}
"""A short run on the generated set in which the loss falls below `factor` of its first value."""


def _build_torch(build: Build) -> Parts:
    _check_needs()
    from profkit.workloads.psenet import torch_net as _psenet_torch

    return _parts(build, _psenet_torch)


def _build_paddle(build: Build) -> Parts:
    _check_needs()
    from profkit.workloads.psenet import paddle_net as _psenet_paddle

    return _parts(build, _psenet_paddle)


def _check_needs() -> None:
    for package, module in (("pyclipper", "pyclipper"), ("pillow", "PIL")):
        if importlib.util.find_spec(module) is None:
            raise UsageError(
                f"psenet needs {package}, which is not installed here: pip install 'profkit[systems]'"
            )


def _parts(build: Build, net: Any) -> Parts:
    """The parts of one framework; `net` is its module of model, loss, optimizer and predictor."""
    from profkit.workloads.datasets.icdar import check_tree
    from profkit.workloads.psenet.data import TextCrops, made_up_batch
    from profkit.workloads.training.schedules import step_decay

    config = build.config
    size, seed = config["image_size"], config["seed"]
    index = check_tree(build.data) if build.data else None
    test = check_tree(build.data, "test") if build.data and config.get("evaluate") else None
    model = net.make_model(seed)
    return Parts(
        model=model,
        optimizer=net.make_optimizer(model, config),
        loss_of=net.loss_of,
        dataset=TextCrops(index, build.bad, size, seed) if index else None,
        synthetic=lambda count: made_up_batch(count, size, seed),
        count=lambda batch: len(batch[0]),
        lr_at=step_decay(
            len(index.scenes) if index else PUBLISHED_IMAGES, config["global_batch_size"], LR_EPOCHS
        ),
        evaluate=(lambda trained: evaluate(trained, net, build, test)) if test else None,
    )


def evaluate(model: Any, net: Any, build: Build, index: TextIndex) -> Mapping[str, float]:
    """Precision, recall and F-measure over whole images, one by one."""
    from profkit.workloads.psenet.data import WholeScenes
    from profkit.workloads.psenet.text_regions import Matches, match
    from profkit.workloads.training.evaluation import read_ahead

    scenes = WholeScenes(index, build.bad, build.config["image_size"])
    matches = Matches()
    with net.predictor(model) as predict:
        for pixels, stretch, words in read_ahead(
            scenes.__getitem__, len(scenes), build.bad, build.config.get("workers", 1)
        ):
            matches += match([quad * stretch for quad in find_text(predict(pixels)[0])], words)
    return matches.figures


def find_text(logits: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The rectangles around the words that a network's output of one image shows, in pixels of its input."""
    import numpy as np

    from profkit.workloads.psenet.text_regions import expand, find_quads

    scores = 1 / (1 + np.exp(-logits[0].astype(float)))
    labels = expand((logits > 0) & (logits[0] > 0))
    return [
        quad * STRIDE for quad in find_quads(labels, scores, min_score=MIN_SCORE, min_area=MIN_AREA)
    ]


def _generate() -> Path:
    from profkit.workloads.datasets.icdar import generate

    return generate()


WORKLOAD = Workload(
    name="psenet",
    title="PSENet R50-FPN",
    data="ICDAR2015 (images, quadrilateral text files)",
    published={
        "image_size": 736,
        "batch_size": "8 or 16 (one GPU)",
        "kernels": 7,
        "loss": "0.7 dice of the text, hard negatives 3:1, and 0.3 dice of the kernels",
        "optimizer": "SGD, momentum 0.99, weight decay 5e-4",
        "lr": "1e-3, a tenth of it from epoch 200, a hundredth from 400",
        "epochs": 600,
        "precision": "fp32",
    },
    defaults=Defaults(
        image_size=736,
        batch_size=16,
        lr=1e-3,
        lr_batch=16,
        reduced_image_size=128,
        reduced_batch_size=2,
        momentum=0.99,
        weight_decay=5e-4,
    ),
    builders={"torch": _build_torch, "paddle": _build_paddle},
    generate=_generate,
)
