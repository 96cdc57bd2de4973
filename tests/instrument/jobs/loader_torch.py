"""A script with spawned workers; batches read, decode and collate for known times."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset

from tests.instrument.jobs.own_clock import BATCH_SIZE, OwnBatch

BATCHES = 8
OWN = OwnBatch()


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return BATCHES * BATCH_SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        OWN.read(index)
        return torch.tensor(
            [float(index), float(hasattr(torch.nn.Module.__call__, "__wrapped__"))],
            dtype=torch.float64,
        )


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """The batch, with what it saw of its making in each row."""
    OWN.collate()
    batch = torch.stack(samples)
    return torch.hstack(
        [batch, torch.tensor(OWN.figures(), dtype=torch.float64).expand(len(batch), -1)]
    )


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for start_method, epochs in (("spawn", 2), ("forkserver", 1)):
        loader = DataLoader(
            Slow(),
            batch_size=BATCH_SIZE,
            num_workers=1,
            collate_fn=collate,
            multiprocessing_context=start_method,
            persistent_workers=epochs > 1,
        )
        for _ in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                model(batch[:, :2].float()).sum().backward()
                optimizer.step()
                print("batch", batch.tolist(), flush=True)


if __name__ == "__main__":
    main()
