"""A plain training loop, recorded in `traces/recorded-plain-loop` with its lines."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 180
LENGTH = 2048


class Waves(Dataset[tuple[torch.Tensor, int]]):
    """Sums of waves, with the number of waves as the label."""

    def __len__(self) -> int:
        return STEPS * 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % 4
        generator = torch.Generator().manual_seed(index)
        wave = torch.zeros(LENGTH)
        for _ in range(24 * (label + 1)):
            frequency = torch.rand(1, generator=generator) * 40
            wave += torch.sin(frequency * torch.linspace(0, 6.28, LENGTH))
        return wave, label


def count_right(scores: torch.Tensor, labels: torch.Tensor) -> int:
    right = 0
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        right += max(range(len(row)), key=row.__getitem__) == label
    return right


def average(mean: nn.Module, model: nn.Module, decay: float = 0.99) -> None:
    with torch.no_grad():
        for kept, new in zip(mean.parameters(), model.parameters(), strict=True):
            kept.mul_(decay).add_(new, alpha=1 - decay)


def make_model() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(LENGTH, LENGTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(LENGTH, 4))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, mean = make_model(), make_model()
    mean.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Waves(), batch_size=16, num_workers=2)
    right = 0
    for waves, labels in loader:
        scores = model(waves)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average(mean, model)
        right += count_right(scores, labels)
    print(f"{right / len(loader.dataset):.3f}")  # type: ignore[arg-type]  # it has a length


if __name__ == "__main__":
    main()
