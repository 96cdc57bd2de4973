"""Paddle's high-level interface: `paddle.Model.fit` with evaluation."""

import generated
import numpy as np
import paddle
from paddle.io import TensorDataset


def main():
    paddle.seed(0)
    np.random.seed(0)
    images, labels = generated.classes(256, (1, 28, 28))
    data = TensorDataset([paddle.to_tensor(images), paddle.to_tensor(labels[:, None])])
    model = paddle.Model(paddle.vision.models.LeNet())
    model.prepare(
        paddle.optimizer.Adam(1e-3, parameters=model.parameters()),
        paddle.nn.CrossEntropyLoss(),
        paddle.metric.Accuracy(),
    )
    model.fit(data, data, epochs=2, batch_size=16, verbose=0, save_dir="out")


if __name__ == "__main__":
    main()
