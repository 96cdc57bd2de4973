"""The loop of PaddleSeg: dictionaries that begin with an empty list."""

import time

import generated
import numpy as np
import paddle
from paddle import nn
from paddle.io import BatchSampler, DataLoader, Dataset


class Scenes(Dataset):
    def __init__(self):
        self.images, _ = generated.classes(64, (3, 32, 32))

    def __getitem__(self, place):
        label = (self.images[place][0] > 0).astype("int64")
        return {"trans_info": [], "img": self.images[place], "label": label}

    def __len__(self):
        return len(self.images)


def collate(samples):
    batch = {"trans_info": [sample["trans_info"] for sample in samples]}
    for name in ("img", "label"):
        batch[name] = np.stack([sample[name] for sample in samples])
    batch["trans_info"] = []
    return batch


def evaluate(model, data):
    model.eval()
    with paddle.no_grad():
        for batch in DataLoader(data, batch_size=1, collate_fn=collate, num_workers=0):
            model(paddle.to_tensor(batch["img"])).argmax(1)
            if batch["img"].shape[0] != 1:
                raise SystemExit(1)
    model.train()


def main():
    paddle.seed(0)
    np.random.seed(0)
    data = Scenes()
    sampler = BatchSampler(data, batch_size=2, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate, return_list=True)
    model = nn.Sequential(
        nn.Conv2D(3, 32, 3, padding=1), nn.BatchNorm2D(32), nn.ReLU(), nn.Conv2D(32, 2, 1)
    )
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    criterion = nn.CrossEntropyLoss(axis=1)
    model.train()
    iteration = 0
    while iteration < 50:
        for batch in loader:
            iteration += 1
            if iteration > 50:
                break
            logits = model(paddle.to_tensor(batch["img"]))
            loss = criterion(logits, paddle.to_tensor(batch["label"]))
            loss.backward()
            optimizer.step()
            model.clear_gradients()
            if iteration % 25 == 0:
                print(f"[TRAIN] iter: {iteration}/50, loss: {float(loss):.4f}")
                evaluate(model, data)
    time.sleep(0.5)  # as PaddleSeg does: the loader's thread ends, or the process aborts


if __name__ == "__main__":
    main()
