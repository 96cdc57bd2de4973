"""The loop of torchvision's references/classification: mixup and EMA."""

import generated
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay):
        super().__init__(model, avg_fn=lambda ema, new, _: decay * ema + (1 - decay) * new)


def train_one_epoch(model, criterion, optimizer, loader, ema):
    model.train()
    for number, (image, target) in enumerate(loader):
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if number % 4 == 0:
            ema.update_parameters(model)
    print("train", loss.item(), output.shape[0])


def evaluate(model, criterion, loader):
    model.eval()
    with torch.inference_mode():
        total = sum(criterion(model(image), target).item() for image, target in loader)
    print("test", total)


def main():
    torch.manual_seed(0)
    root = generated.image_folder("data", per_class=64)
    change = v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(32, antialias=True),
            v2.TrivialAugmentWide(),
            v2.ToDtype(torch.float, scale=True),
        ]
    )
    data = ImageFolder(root, change)
    mixup = v2.RandomChoice([v2.MixUp(num_classes=2), v2.CutMix(num_classes=2)])
    loader = DataLoader(
        data,
        batch_size=16,
        sampler=RandomSampler(data),
        collate_fn=lambda batch: mixup(*default_collate(batch)),
    )
    model = torchvision.models.mobilenet_v3_small(num_classes=2)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    ema = ExponentialMovingAverage(model, 0.9)
    for _ in range(3):
        train_one_epoch(model, criterion, optimizer, loader, ema)
        schedule.step()
        evaluate(model, criterion, DataLoader(data, batch_size=32))
        evaluate(ema, criterion, DataLoader(data, batch_size=32))
        torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, "checkpoint.pth")


if __name__ == "__main__":
    main()
