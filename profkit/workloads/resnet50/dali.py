"""ImageNet batches made by NVIDIA DALI, decoded on the CPU or on the GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profkit.errors import ProfkitError
from profkit.workloads.base import Build
from profkit.workloads.resnet50.classify import AREA, ASPECT, MEAN, STD
from profkit.workloads.training.driver import DeviceArray
from profkit.workloads.training.samples import BadSampleError, BadSamples


@dataclass
class DaliBatches:
    """One pass over an image folder for each `iter`.

    Batches are tuples of images and labels: numpy arrays, or arrays on the GPU. `naming` is the
    pipeline that returns the files of the same batches.
    """

    pipeline: Any
    naming: Any
    batches: int
    on_gpu: bool = False
    delivered: int = 0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for _ in range(self.batches):
            try:
                images, labels = self.pipeline.run()
            except RuntimeError as error:
                raise self._explain(error) from error
            self.delivered += 1
            if self.on_gpu:
                made = images.as_tensor(), labels.as_tensor()
                yield DeviceArray(made[0]), DeviceArray(made[1])
            else:
                yield images.as_array(), labels.as_array()[:, 0].astype("int64")

    def _explain(self, error: Exception) -> ProfkitError:
        """Return an error that names the broken image; DALI's own names none.

        The files of the batch that failed are read again, and decoded by Pillow.
        """
        self.naming.build()
        for _ in range(self.delivered):
            self.naming.run()
        (sources,) = self.naming.run()
        with contextlib.closing(BadSamples()) as bad:
            for source in sources:
                try:
                    bad.image(bytes(np.asarray(source)).decode())
                except BadSampleError as found:
                    said = str(found).rpartition("; use ")[0]
                    return BadSampleError(
                        f"{said}; DALI cannot go on without it: leave --dali out, "
                        "and use --bad-samples skip or pad"
                    )
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if "failure" in line.lower()), lines[0])
        return ProfkitError(f"DALI could not make a batch: {reason.strip()}")


def open_image_folder(build: Build) -> DaliBatches:
    """Open the training split with as many threads as the framework's loader has workers."""
    import nvidia.dali

    from profkit.workloads.datasets.image_tree import check_tree
    from profkit.workloads.training.sampling import run_length

    config = build.config
    index = check_tree(build.data or Path())
    paths, labels = map(list, zip(*index.samples, strict=True))
    on_gpu = config["device"] != "cpu"
    options = {
        "batch_size": config["batch_size"],
        "num_threads": max(1, config["workers"]),
        "seed": config["seed"],
        "prefetch_queue_depth": config["prefetch"],
    }
    dali: Any = nvidia.dali  # its annotations know no pipeline without a GPU
    device_id = int(config["device"].rpartition(":")[2]) if on_gpu else None
    define = dali.pipeline_def(_define_training, device_id=device_id, **options)
    pipeline = define(paths, labels, config, on_gpu=on_gpu)
    naming = dali.pipeline_def(_define_naming, device_id=None, **options)(paths, labels, config)
    pipeline.build()
    batches = run_length(config, len(index.samples)).steps_per_epoch
    return DaliBatches(pipeline, naming, batches, on_gpu)


def _read(paths: Sequence[str], labels: Sequence[int], config: Mapping[str, Any]) -> Any:
    """Return this rank's files and labels, in the same order in both pipelines."""
    from nvidia.dali import fn

    return fn.readers.file(
        files=paths,
        labels=labels,
        random_shuffle=True,
        seed=config["seed"],
        shard_id=config["rank"],
        num_shards=config["world_size"],
        name="images",
    )


def _define_training(
    paths: Sequence[str], labels: Sequence[int], config: Mapping[str, Any], *, on_gpu: bool
) -> Any:
    """Return normalised images and their labels.

    Without a GPU everything happens on the CPU. With one, the normalised batch is made on the GPU:
    from JPEG files there, or from small whole-number images that the CPU decoded, which DALI copies
    from pinned memory.
    """
    import nvidia.dali.types
    from nvidia.dali import fn

    types: Any = nvidia.dali.types  # its annotations have no types of numbers
    size = config["image_size"]
    files, classes = _read(paths, labels, config)
    images: Any = fn.decoders.image_random_crop(
        files,
        device="mixed" if config["loader"] == "DALI on the GPU" else "cpu",
        random_area=list(AREA),
        random_aspect_ratio=list(ASPECT),
    )
    images = fn.resize(images, resize_x=size, resize_y=size)
    if on_gpu:
        images = images.gpu()
        classes = fn.cast(fn.squeeze(classes, axes=[0]), dtype=types.INT64).gpu()
    images = fn.crop_mirror_normalize(
        images,
        device="gpu" if on_gpu else "cpu",
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=MEAN.tolist(),
        std=STD.tolist(),
        mirror=fn.random.coin_flip(probability=0.5),
    )
    return images, classes


def _define_naming(paths: Sequence[str], labels: Sequence[int], config: Mapping[str, Any]) -> Any:
    """Return the paths of the files of each batch, without decoding any."""
    from nvidia.dali import fn

    files, _ = _read(paths, labels, config)
    return fn.get_property(files, key="source_info")
