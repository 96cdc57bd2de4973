"""The loop of timm's train.py with its own parts."""

import contextlib
import sys

import generated
import timm
import torch
from timm.data import Mixup, create_dataset, create_loader
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy


def main():
    amp, accumulate = "--amp" in sys.argv, 2 if "--accumulate" in sys.argv else 1
    timm.utils.random_seed(42, 0)
    root = generated.image_folder("data", per_class=64)
    data = create_dataset("", root=root)
    options = {"input_size": (3, 32, 32), "use_prefetcher": False, "device": "cpu"}
    loader = create_loader(data, batch_size=8, is_training=True, num_workers=0, **options)
    evaluation = create_loader(data, batch_size=32, num_workers=0, **options)
    model = timm.create_model("resnet10t", num_classes=2)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9)
    scheduler = CosineLRScheduler(optimizer, t_initial=2)
    mixup = Mixup(mixup_alpha=0.2, num_classes=2)
    loss_fn, ema = SoftTargetCrossEntropy(), ModelEmaV3(model, decay=0.99)
    autocast = torch.autocast("cpu", torch.bfloat16) if amp else contextlib.nullcontext()
    for epoch in range(2):
        model.train()
        losses = AverageMeter()
        optimizer.zero_grad()
        for number, (given, target) in enumerate(loader):
            given, target = mixup(given, target)
            update = (number + 1) % accumulate == 0
            with autocast:
                loss = loss_fn(model(given), target) / accumulate
            loss.backward()
            if update:
                timm.utils.dispatch_clip_grad(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                ema.update(model)
            losses.update(loss.item(), given.size(0))
        model.eval()
        with torch.inference_mode():
            for given, target in evaluation:
                top1, _ = accuracy(model(given), target, topk=(1, 1))
        scheduler.step(epoch + 1)
        print(epoch, losses.avg, top1.item())


if __name__ == "__main__":
    main()
