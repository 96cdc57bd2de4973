"""ImageNet batches made by NVIDIA DALI, decoded on the CPU as in the published runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from profkit.workloads.base import Build
from profkit.workloads.resnet50.classify import AREA, ASPECT, MEAN, STD


class DaliBatches:
    """One pass over an image folder for each `iter`.

    Batches are tuples of images and labels, as numpy arrays.
    """

    def __init__(self, pipeline: Any, batches: int) -> None:
        self._pipeline = pipeline
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for _ in range(self._batches):
            images, labels = self._pipeline.run()
            yield images.as_array(), labels.as_array()[:, 0].astype("int64")


def open_image_folder(build: Build) -> DaliBatches:
    """Open the training split with as many threads as the framework's loader has workers."""
    import nvidia.dali
    import nvidia.dali.types
    from nvidia.dali import fn

    from profkit.workloads.datasets.image_tree import check_tree

    config = build.config
    index = check_tree(build.data or Path())
    paths, labels = map(list, zip(*index.samples, strict=True))

    dali: Any = nvidia.dali  # its annotations know no pipeline without a GPU

    @dali.pipeline_def(  # type: ignore[untyped-decorator]  # as above
        batch_size=config["batch_size"],
        num_threads=max(1, config["workers"]),
        device_id=None,
        seed=config["seed"],
        prefetch_queue_depth=config["prefetch"],
    )
    def training() -> tuple[Any, Any]:
        files, classes = fn.readers.file(
            files=paths,
            labels=labels,
            random_shuffle=True,
            shard_id=config["rank"],
            num_shards=config["world_size"],
            name="images",
        )
        images: Any = fn.decoders.image_random_crop(
            files, random_area=list(AREA), random_aspect_ratio=list(ASPECT)
        )
        images = fn.resize(images, resize_x=config["image_size"], resize_y=config["image_size"])
        images = fn.crop_mirror_normalize(
            images,
            dtype=dali.types.FLOAT,
            output_layout="CHW",
            mean=MEAN.tolist(),
            std=STD.tolist(),
            mirror=fn.random.coin_flip(probability=0.5),
        )
        return images, classes

    pipeline = training()
    pipeline.build()
    return DaliBatches(pipeline, len(index.samples) // config["global_batch_size"])
