"""The loop of torchvision's references/detection: lists of images, losses in a dictionary."""

import math

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torchvision.models.detection import ssdlite320_mobilenet_v3_large


class Boxes(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, place):
        random = torch.Generator().manual_seed(place)
        corner = torch.rand(2, 2, generator=random) * 20
        boxes = torch.cat([corner, corner + 20], dim=1)
        target = {"boxes": boxes, "labels": torch.tensor([1, 2]), "image_id": place}
        return torch.rand(3, 48 + place % 3, 64, generator=random), target


def collate_fn(batch):
    return tuple(zip(*batch))


def main():
    torch.manual_seed(0)
    data = Boxes()
    sampler = BatchSampler(RandomSampler(data), 2, drop_last=True)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate_fn)
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=11)
    for _ in range(2):
        model.train()
        for images, targets in loader:
            targets = [dict(target) for target in targets]
            loss_dict = model(list(images), targets)
            losses = sum(loss for loss in loss_dict.values())
            if not math.isfinite(losses.item()):
                raise SystemExit(1)
            optimizer.zero_grad()
            losses.backward()
            optimizer.step()
            warmup.step()
        model.eval()
        with torch.inference_mode():
            for images, _ in DataLoader(data, batch_size=4, collate_fn=collate_fn):
                model(list(images))
        print(losses.item())


if __name__ == "__main__":
    main()
