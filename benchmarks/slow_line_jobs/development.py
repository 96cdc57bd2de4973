"""Train a perceptron in a plain script, with one of twelve slow lines.

python development.py PLANT STEPS      PLANT is `none` or the name behind `# planted:`
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time

import torch
from cost import Cost
from torch.utils.data import DataLoader, Dataset

WIDTH = 256
BATCH = 32
plant, steps = sys.argv[1], int(sys.argv[2])
cost = Cost()
lock = threading.Lock()


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((WIDTH,), float(index % 11) / 11)


def collate(rows: list[torch.Tensor]) -> torch.Tensor:
    if plant == "collate":
        with cost:
            rows = [torch.tensor([float(v) for v in row]) for row in rows]  # planted: collate
    return torch.stack(rows)


def hold_lock() -> None:
    while True:
        with lock:
            time.sleep(0.02)
        time.sleep(0.001)


def busy() -> int:
    total = 0
    with cost:
        total += sum(number * number % 7 for number in range(200_000))  # planted: busy
    return total


def write_log(file: int, loss: float) -> None:
    os.write(file, f"{loss}\n".encode() * 2000)
    with cost:
        for _ in range(6):
            os.fsync(os.write(file, b"x") and file)  # planted: fsync


def update_average(ema: dict[str, list[float]], model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        old = ema[name]
        new = parameter.detach().flatten()[:2_000]
        with cost:
            ema[name] = [a + b / 99 for a, b in zip(old, new, strict=False)]  # planted: average


def accuracy(output: torch.Tensor) -> float:
    rows = output.detach().tolist()
    with cost:
        hits = [sorted(row).index(max(row)) for row in rows for _ in range(12)]  # planted: metric
    return sum(hits) / len(hits)


def clip(model: torch.nn.Module) -> float:
    total = 0.0
    for gradient in [p.grad for p in model.parameters() if p.grad is not None]:
        with cost:
            total += sum(v * v for v in gradient.flatten().tolist())  # planted: clip
    return total


def on_step_end(loss: float) -> None:
    with cost:
        time.sleep(0.015)  # planted: callback


def wait_for_lock() -> None:
    with cost:
        lock.acquire()  # planted: lock
    lock.release()


def synchronize(big: torch.Tensor) -> float:
    with cost:
        return (big @ big).sum().item()  # planted: sync


def import_again() -> None:
    for name in [name for name in sys.modules if name.startswith(("email", "xml"))]:
        del sys.modules[name]
    with cost:
        importlib.import_module("email.mime.text")  # planted: import


def rest() -> None:
    with cost:
        time.sleep(0.012)  # planted: sleep


def main() -> None:  # noqa: C901  # one loop, as in many a script
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    average = {name: [0.0] * 20_000 for name, _ in model.named_parameters()}
    big = torch.randn(700, 700)
    log = os.open("log.txt", os.O_CREAT | os.O_WRONLY)
    plain = {"sleep": rest, "busy": busy, "lock": wait_for_lock, "import": import_again}
    if plant == "lock":
        threading.Thread(target=hold_lock, daemon=True).start()
    callbacks = [on_step_end] if plant == "callback" else []
    for number, batch in enumerate(DataLoader(Rows(), batch_size=BATCH, collate_fn=collate)):
        output = model(batch)
        loss = (output - batch).square().mean()
        if plant == "recompute":
            with cost:
                again = [model(batch) for _ in range(40)]  # planted: recompute
            del again
        loss.backward()
        if plant == "clip":
            clip(model)
        optimizer.step()
        optimizer.zero_grad()
        plain.get(plant, time.monotonic)()
        if plant == "sync":
            synchronize(big)
        elif plant == "fsync":
            write_log(log, float(loss))
        elif plant == "average":
            update_average(average, model)
        elif plant == "metric":
            accuracy(output)
        for callback in callbacks:
            callback(float(loss))
        cost.end_step()
        if number == steps:
            break
    print(float(loss).hex())
    cost.write()


main()
