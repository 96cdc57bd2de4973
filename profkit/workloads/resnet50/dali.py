"""ImageNet batches made by NVIDIA DALI, decoded on the CPU or on the GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from profkit.errors import ProfkitError
from profkit.workloads.base import Build
from profkit.workloads.resnet50.classify import AREA, ASPECT, MEAN, STD
from profkit.workloads.training.driver import DeviceArray
from profkit.workloads.training.samples import BadSampleError, BadSamples


class DaliBatches:
    """One pass over an image folder for each `iter`.

    Batches are tuples of images and labels: numpy arrays, or arrays on the GPU. `name_files` opens
    a pipeline that returns the files of the same batches.
    """

    def __init__(
        self, pipeline: Any, batches: int, name_files: Callable[[], Any], *, on_gpu: bool = False
    ) -> None:
        self._pipeline = pipeline
        self._batches = batches
        self._name_files = name_files
        self._on_gpu = on_gpu
        self._delivered = 0

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for _ in range(self._batches):
            try:
                images, labels = self._pipeline.run()
            except RuntimeError as error:
                raise self._explain(error) from error
            self._delivered += 1
            if self._on_gpu:
                yield DeviceArray(images.as_tensor()), DeviceArray(labels.as_tensor())
            else:
                yield images.as_array(), labels.as_array()[:, 0].astype("int64")

    def _explain(self, error: Exception) -> ProfkitError:
        """Return an error that names the broken image; DALI's own names none.

        The files of the batch that failed are read again, and decoded by Pillow.
        """
        names = self._name_files()
        for _ in range(self._delivered):
            names.run()
        (sources,) = names.run()
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
    """Open the training split with as many threads as the framework's loader has workers.

    Without a GPU everything happens on the CPU. With one, the normalised batch is made on the GPU:
    from JPEG files there, or from small whole-number images that the CPU decoded, which DALI copies
    from pinned memory.
    """
    import nvidia.dali
    import nvidia.dali.types
    from nvidia.dali import fn

    from profkit.workloads.datasets.image_tree import check_tree
    from profkit.workloads.training.sampling import run_length

    config = build.config
    index = check_tree(build.data or Path())
    paths, labels = map(list, zip(*index.samples, strict=True))
    on_gpu = config["device"] != "cpu"
    device = "gpu" if on_gpu else "cpu"
    decoder = "mixed" if config["loader"] == "DALI on the GPU" else "cpu"
    dali: Any = nvidia.dali  # its annotations know no pipeline without a GPU
    options = _pipeline_options(config, on_gpu=on_gpu)

    def read() -> tuple[Any, Any]:
        files, classes = fn.readers.file(
            files=paths,
            labels=labels,
            random_shuffle=True,
            seed=config["seed"],
            shard_id=config["rank"],
            num_shards=config["world_size"],
            name="images",
        )
        return files, classes

    @dali.pipeline_def(**options)  # type: ignore[untyped-decorator]  # as above
    def training() -> tuple[Any, Any]:
        files, classes = read()
        images: Any = fn.decoders.image_random_crop(
            files, device=decoder, random_area=list(AREA), random_aspect_ratio=list(ASPECT)
        )
        images = fn.resize(images, resize_x=config["image_size"], resize_y=config["image_size"])
        if on_gpu:
            images = images.gpu()
            classes = fn.cast(fn.squeeze(classes, axes=[0]), dtype=dali.types.INT64).gpu()
        images = fn.crop_mirror_normalize(
            images,
            device=device,
            dtype=dali.types.FLOAT,
            output_layout="CHW",
            mean=MEAN.tolist(),
            std=STD.tolist(),
            mirror=fn.random.coin_flip(probability=0.5),
        )
        return images, classes

    @dali.pipeline_def(**{**options, "device_id": None})  # type: ignore[untyped-decorator]  # as above
    def naming() -> Any:
        files, _ = read()
        return fn.get_property(files, key="source_info")

    def open_names() -> Any:
        names = naming()
        names.build()
        return names

    pipeline = training()
    pipeline.build()
    batches = run_length(config, len(index.samples)).steps_per_epoch
    return DaliBatches(pipeline, batches, open_names, on_gpu=on_gpu)


def _pipeline_options(config: Mapping[str, Any], *, on_gpu: bool) -> dict[str, Any]:
    device_id = int(config["device"].rpartition(":")[2]) if on_gpu else None
    return {
        "batch_size": config["batch_size"],
        "num_threads": max(1, config["workers"]),
        "device_id": device_id,
        "seed": config["seed"],
        "prefetch_queue_depth": config["prefetch"],
    }
