"""MMEngine's introductory example: a Runner with a model, a metric and hooks."""

import generated
import torch
import torch.nn.functional as F
import torchvision
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader, TensorDataset


class MMResNet(BaseModel):
    def __init__(self):
        super().__init__()
        self.resnet = torchvision.models.mobilenet_v3_small(num_classes=10)

    def forward(self, imgs, labels, mode):
        x = self.resnet(imgs)
        if mode == "loss":
            return {"loss": F.cross_entropy(x, labels)}
        return x, labels


class Accuracy(BaseMetric):
    def process(self, data_batch, data_samples):
        score, gt = data_samples
        self.results.append({"size": len(gt), "correct": (score.argmax(1) == gt).sum().item()})

    def compute_metrics(self, results):
        sizes = sum(item["size"] for item in results)
        return {"accuracy": 100 * sum(item["correct"] for item in results) / sizes}


def main():
    torch.manual_seed(0)  # the Runner seeds later, when the model has its parameters
    images, labels = map(torch.from_numpy, generated.classes(160, (3, 32, 32)))
    data = TensorDataset(images, labels)
    runner = Runner(
        model=MMResNet(),
        work_dir="work",
        train_dataloader=DataLoader(data, batch_size=8, shuffle=True),
        optim_wrapper={"optimizer": {"type": torch.optim.SGD, "lr": 1e-3, "momentum": 0.9}},
        train_cfg={"by_epoch": True, "max_epochs": 2, "val_interval": 1},
        val_dataloader=DataLoader(data, batch_size=32),
        val_cfg={},
        val_evaluator={"type": Accuracy},
        randomness={"seed": 0},
    )
    runner.train()


if __name__ == "__main__":
    main()
