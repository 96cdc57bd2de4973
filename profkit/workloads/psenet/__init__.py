"""PSENet R50-FPN on ICDAR2015, the text detection benchmark."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.workloads.base import Build, Defaults, Parts, Workload
from profkit.workloads.datasets import generate_default
from profkit.workloads.training.network import Ops, builders

if TYPE_CHECKING:
    import numpy as np

    from profkit.workloads.datasets.icdar import TextIndex
    from profkit.workloads.psenet.data import TextCrops

LR_EPOCHS = (200, 400)
"""Epochs at which the learning rate falls to a tenth."""

PUBLISHED_IMAGES = 1000
"""Images of ICDAR2015, for the schedule of runs without a data set."""

STRIDE = 4
"""Pixels of the input per pixel of the network's output."""

MIN_SCORE, MIN_AREA = 0.85, 16
"""Mean score and number of output pixels that a region needs to count as text."""

CONVERGE = {"steps": 150, "batch_size": 4, "image_size": 192, "lr": 0.01, "factor": 0.3}
"""A short run on the generated set in which the loss falls below `factor` of its first value."""


def training_set(build: Build) -> TextCrops:
    """Open the samples to train on."""
    from profkit.workloads.datasets.icdar import check_tree
    from profkit.workloads.psenet.data import TextCrops

    config = build.config
    index = check_tree(build.data or Path())
    return TextCrops(index, build.bad, config["image_size"], config["seed"])


def make_parts(build: Build, ops: Ops) -> Parts:
    """Build the workload with the operations of one framework."""
    from profkit.workloads.datasets.icdar import check_tree
    from profkit.workloads.psenet import net
    from profkit.workloads.psenet.data import made_up_batch
    from profkit.workloads.training.sampling import run_length
    from profkit.workloads.training.schedules import step_decay

    config = build.config
    size, seed = config["image_size"], config["seed"]
    dataset, samples, judge = None, PUBLISHED_IMAGES, None
    if build.data:
        dataset = training_set(build)
        samples = len(dataset)
        if config.get("evaluate"):
            judge = functools.partial(evaluate, ops, build, check_tree(build.data, "test"))
    model = net.make_model(ops, seed)
    return Parts(
        model=model,
        optimizer=ops.make_sgd(model, config),
        loss_of=functools.partial(net.loss_of, ops),
        dataset=dataset,
        synthetic=lambda count: made_up_batch(count, size, seed),
        lr_at=step_decay(run_length(config, samples), LR_EPOCHS),
        evaluate=judge,
    )


def evaluate(ops: Ops, build: Build, index: TextIndex, model: Any) -> Mapping[str, float]:
    """Return precision, recall and F-measure over whole images."""
    import numpy as np

    from profkit.workloads.psenet.data import WholeScenes
    from profkit.workloads.psenet.matching import Matches, match
    from profkit.workloads.training.evaluation import in_batches, read_ahead
    from profkit.workloads.training.network import predictor

    scenes = WholeScenes(index, build.bad, build.config["image_size"])
    matches = Matches()
    samples = read_ahead(scenes.__getitem__, len(scenes), build)
    with predictor(ops, model) as predict:
        for batch in in_batches(samples, build.config["batch_size"], lambda one: one[0].shape):
            pixels, stretches, words = zip(*batch, strict=True)
            scores = predict(np.concatenate(pixels))
            for logits, stretch, written in zip(scores, stretches, words, strict=True):
                found = [quad * stretch for quad in find_text(logits)]
                matches += match(found, written)
    return sum(build.gather(matches), start=Matches()).figures


def find_text(logits: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Return the rectangles around the words of one image's output, in pixels of its input."""
    import numpy as np

    from profkit.workloads.psenet.text_regions import expand, find_quads

    scores = 1 / (1 + np.exp(-logits[0].astype(float)))
    labels = expand((logits > 0) & (logits[0] > 0))
    quads = find_quads(labels, scores, min_score=MIN_SCORE, min_area=MIN_AREA)
    return [quad * STRIDE for quad in quads]


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
    figures=("f_measure", "precision", "recall"),
    departures=(
        "each GPU has a process and a batch of its own (published: one process and batch for all)",
        "images are turned with bilinear filtering (published: nearest pixel)",
        "evaluation at a quarter of the resolution (published: full)",
        "each step computes no IoU and reads one number (published: two IoU figures, five numbers)",
    ),
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
    builders=builders(make_parts),
    generate=functools.partial(generate_default, "icdar2015"),
    needs={"pyclipper": "pyclipper", "pillow": "PIL"},
)
