"""A job of 14 steps on the CPU."""

from __future__ import annotations

import paddle

model = paddle.nn.Sequential(
    paddle.nn.Conv2D(3, 8, 3),
    paddle.nn.ReLU(),
    paddle.nn.Flatten(),
    paddle.nn.Linear(8 * 14 * 14, 4),
)
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
data = paddle.io.TensorDataset([paddle.ones([28, 3, 16, 16]), paddle.zeros([28], dtype="int64")])
for inputs, labels in paddle.io.DataLoader(data, batch_size=2, shuffle=False):
    paddle.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.clear_grad()
