"""The models that are trained on a GPU: a network for images, and two transformers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as nn_functional

VOCABULARY = 4096


class Images(nn.Module):
    """ResNet50 and its loss; its input can be copied between layouts."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        from torchvision.models import resnet50

        self.net = resnet50(num_classes=10).to(memory_format=torch.channels_last)
        self.fault = fault

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        if self.fault == "layout_copies":
            for _ in range(40):
                inputs = inputs.contiguous().contiguous(memory_format=torch.channels_last)
        outputs = self.net(inputs)
        if self.fault == "item_syncs":
            for _ in range(8):
                outputs.sum().item()
        return nn_functional.cross_entropy(outputs, targets)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, length, width = hidden.shape
        parts = self.into(self.norms[0](hidden)).chunk(3, dim=2)
        query, key, value = (part.view(rows, length, -1, 64).transpose(1, 2) for part in parts)
        mixed = nn_functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        added: torch.Tensor = self.narrow(nn_functional.gelu(self.wide(self.norms[1](hidden))))
        return hidden + added


class Text(nn.Module):
    """A causal transformer and its loss."""

    def __init__(self, fault: str, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY)
        self.fault = fault

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(inputs)
        for block in self.blocks:
            hidden = block(hidden)
            if self.fault == "item_syncs":
                hidden.sum().item()
        return nn_functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def make_model(name: str, fault: str) -> nn.Module:
    if name == "images":
        return Images(fault)
    return Text(fault, 768, 12) if name == "text" else Text(fault, 256, 8)
