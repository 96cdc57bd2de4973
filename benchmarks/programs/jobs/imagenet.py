"""The loop of pytorch/examples' imagenet: an image folder and two workers."""

import generated
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main():
    torch.manual_seed(0)
    root = generated.image_folder("data", per_class=64)
    change = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip()]
    data = ImageFolder(root, transforms.Compose([*change, transforms.ToTensor()]))
    plain = ImageFolder(root, transforms.Compose([transforms.Resize(32), transforms.ToTensor()]))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2)
    model = torchvision.models.resnet18(num_classes=2)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    for epoch in range(2):
        model.train()
        for images, target in loader:
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for images, target in DataLoader(plain, batch_size=32, num_workers=2):
                loss = criterion(model(images), target)
        print(epoch, loss.item())
        torch.save({"epoch": epoch, "model": model.state_dict()}, "checkpoint.pth.tar")


if __name__ == "__main__":
    main()
