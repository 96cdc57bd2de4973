"""The loop of PaddleClas: a loader with workers, AMP level, evaluation each epoch."""

import os

import generated
import numpy as np
import paddle
from paddle.io import DataLoader, Dataset, DistributedBatchSampler


class Images(Dataset):
    def __init__(self):
        self.images, self.labels = generated.classes(320, (3, 24, 24))

    def __getitem__(self, place):
        return self.images[place], self.labels[place]

    def __len__(self):
        return len(self.labels)


def main():
    distributed = int(os.environ.get("PADDLE_TRAINERS_NUM", 1)) > 1
    if distributed:
        paddle.distributed.init_parallel_env()
    paddle.seed(0)
    np.random.seed(0)
    data = Images()
    sampler = DistributedBatchSampler(data, batch_size=16, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=0 if distributed else 2)
    evaluation = DataLoader(data, batch_size=64)
    model = paddle.vision.models.MobileNetV1(scale=0.25, num_classes=10)
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.1, T_max=60)
    optimizer = paddle.optimizer.Momentum(
        schedule, parameters=model.parameters(), weight_decay=1e-4
    )
    if distributed:
        model = paddle.DataParallel(model)
    loss_func = paddle.nn.CrossEntropyLoss()
    for epoch in range(2):
        model.train()
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            loss = loss_func(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            schedule.step()
            if number % 5 == 0:
                print(f"[Train][Epoch {epoch}][Iter: {number}] loss: {float(loss):.5f}")
        model.eval()
        with paddle.no_grad():
            for batch in evaluation:
                loss_func(model(batch[0]), batch[1])
        paddle.save(model.state_dict(), f"epoch_{epoch}.pdparams")


if __name__ == "__main__":
    main()
