"""Print the operations that profkit counts in twelve models, next to those of formulas.

Models and formulas are those of `tests/instrument/test_operations.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from profkit.instrument.frameworks.pytorch import arithmetic
from tests.instrument.test_operations import NETWORKS, TRANSFORMERS, train_network


def cases() -> Iterator[tuple[str, Any, int]]:
    """Yield the name of each model, a function that trains it once, and its operations."""
    for name, (build, batch, formula) in NETWORKS.items():
        yield name, train_network(build, batch), formula()
    for name, (make, data, expected) in TRANSFORMERS.items():
        model, inputs = make(), data()
        yield name, lambda model=model, inputs=inputs: model(*inputs).sum().backward(), expected


def main() -> None:
    torch.manual_seed(0)
    print("| model | counted | formula | difference |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, train, expected in cases():
            found = arithmetic.count_during(train, Path(folder) / "seen.json")
            counted = found.useful.total()
            words = f"{counted / 1e9:,.6g} | {expected / 1e9:,.6g} | {counted / expected - 1:.4%}"
            print(f"| {name} | {words} |")


if __name__ == "__main__":
    main()
