"""The loop of PaddleDetection: a reader of dictionaries, a sum of losses."""

import numpy as np
import paddle
from paddle import nn
from paddle.io import DataLoader, Dataset


class Boxes(Dataset):
    def __getitem__(self, place):
        rng = np.random.default_rng(place)
        return {
            "im_id": np.array([place]),
            "image": rng.standard_normal((3, 32, 32)).astype("float32"),
            "gt_bbox": rng.random((4, 4)).astype("float32"),
        }

    def __len__(self):
        return 48


class Detector(nn.Layer):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2D(3, 32, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(32 * 225, 16)

    def forward(self, inputs):
        found = self.head(self.backbone(inputs["image"]).flatten(1)).reshape([-1, 4, 4])
        box = nn.functional.smooth_l1_loss(found, inputs["gt_bbox"])
        size = (found**2).mean()
        return {"loss_box": box, "loss_size": size, "loss": box + 0.1 * size}


def main():
    paddle.seed(0)
    np.random.seed(0)
    loader = DataLoader(Boxes(), batch_size=4, shuffle=True, drop_last=True, num_workers=2)
    model = Detector()
    clip = nn.ClipGradByNorm(10.0)
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), grad_clip=clip)
    ema = {name: value.clone() for name, value in model.state_dict().items()}
    for epoch in range(3):
        model.train()
        for data in loader:
            outputs = model(data)
            outputs["loss"].backward()
            optimizer.step()
            optimizer.clear_grad()
            for name, value in model.state_dict().items():
                ema[name] = ema[name] * 0.9 + value.detach() * 0.1
        print(f"Epoch: [{epoch}] loss: {float(outputs['loss']):.6f}")


if __name__ == "__main__":
    main()
