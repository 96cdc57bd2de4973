"""ResNet50 v1.5 on ImageNet folders: the classification benchmark of the reports."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profkit.instrument.recorder import LoopRecorder
from profkit.workloads._base import Job, Outcome, Settings, Workload, data_folder, wait_passively

if TYPE_CHECKING:
    from profkit.workloads._image_tree import ImageFolderIndex

PUBLISHED = {"image_size": 224, "batch_size": "128 or 256", "optimizer": "SGD, momentum 0.9, weight decay 1e-4", "lr": "0.1 for 256 samples"}
REDUCED_BATCH = 8
REDUCED_IMAGE = 128
DEFAULT_STEPS = 60
DEFAULT_WARM_UP = 10
DEFAULT_WORKERS = 2


@dataclass(frozen=True)
class _TorchJob:
    config: Mapping[str, Any]
    device: str
    steps: int
    trainer: Any

    def train(self, recorder: LoopRecorder, tell: Callable[[int, int, float], None]) -> Outcome:
        outcome: Outcome = self.trainer.train(self.steps, recorder, tell)
        return outcome


def prepare(settings: Settings) -> Job:
    """Data, model and optimizer for the PyTorch version, at a size that this machine bears."""
    wait_passively()
    import torch
    import torchvision

    from profkit.workloads._image_tree import check_tree
    from profkit.workloads._imagenet import generate
    from profkit.workloads._torch_loop import Trainer, move_tensors, seed_everything

    device = torch.device("cpu")
    generator = seed_everything(settings.seed)
    config = _config(settings, torch.get_num_threads())
    index = check_tree(data_folder(settings.data) or generate())
    loader = _loader(index, config, generator)
    model = torchvision.models.resnet50(weights=None, num_classes=len(index.classes), zero_init_residual=True).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9, weight_decay=1e-4)
    criterion = torch.nn.CrossEntropyLoss()
    trainer = Trainer(
        model,
        loader,
        optimizer,
        move=functools.partial(move_tensors, device=device),
        loss_of=lambda batch: criterion(model(batch[0]), batch[1]),
        count=lambda batch: len(batch[1]),
    )
    return _TorchJob(config, str(device), config["steps"], trainer)


def _config(settings: Settings, threads: int) -> dict[str, Any]:
    """Every knob in its final value. Depth and width of the model are never reduced."""
    batch = settings.batch_size or REDUCED_BATCH
    image = settings.image_size or REDUCED_IMAGE
    reduced = [f"images of {image} px (published: 224)"] * (image < 224) + [f"batch {batch} (published: 128 or 256)"] * (batch < 128)
    steps = settings.steps or DEFAULT_STEPS
    return {
        "precision": "fp32",
        "device": "cpu",
        "batch_size": batch,
        "global_batch_size": batch,
        "image_size": image,
        "steps": steps,
        "warmup": min(DEFAULT_WARM_UP, steps // 5) if settings.warmup is None else settings.warmup,
        "workers": DEFAULT_WORKERS if settings.workers is None else settings.workers,
        "lr": settings.lr or 0.1 * batch / 256,
        "seed": settings.seed,
        "data": settings.data,
        "loader": "torch DataLoader",
        "memory_format": "NCHW",
        "threads": threads,
        "reduced": ", ".join(reduced),
    }


def _loader(index: ImageFolderIndex, config: Mapping[str, Any], generator: Any) -> Any:
    """The loader of the PyTorch reference: random crops and flips, decoded by worker processes."""
    from torch.utils.data import DataLoader
    from torchvision import transforms

    from profkit.workloads._image_tree import ImageFiles

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(config["image_size"]),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    dataset: Any = ImageFiles(index, transform)
    return DataLoader(dataset, batch_size=config["batch_size"], shuffle=True, num_workers=config["workers"], drop_last=True, generator=generator)


WORKLOAD = Workload("resnet50", "ResNet50 v1.5", ("torch",), "ImageNet folders", PUBLISHED, prepare)
