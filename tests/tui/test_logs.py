"""A run that was imported from a training log: what its figures cover, and what it cannot show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from tests.rules.test_log_rules import even, paddleseg
from tests.tui.driving import Driver, drive


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of a log of 8 cards: 40 samples a second on each."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "many.log").write_text(paddleseg(8, even(0.2, 0.05)))
    (made,) = IMPORTER.read([folder / "many.log"], Target(folder / "runs"))
    return made.run


@pytest.mark.parametrize(
    ("key", "said", "unsaid"),
    [
        ("1", r"3(19|20)\.\d samples/s", "40.00 samples/s"),
        ("1", "of all 8 ranks", "complete, no rows dropped"),
        ("1", "the run splits its steps into", "none found"),
        ("3", "a training log says nothing of kernels", "no kernels were captured"),
        ("4", "says nothing about the other 7", "no other rank to wait for"),
        ("5", "a training log says nothing of its loader", "only torch's"),
        ("6", "a training log says nothing of devices", "no collector has recorded"),
    ],
)
def test_a_screen_says_what_a_log_cannot_fill(run: Path, key: str, said: str, unsaid: str) -> None:
    texts = []

    async def look(driver: Driver) -> None:
        await driver.press(key)
        texts.append(" ".join(driver.text.split()))

    drive(run, look)
    assert re.search(said, texts[0])
    assert unsaid not in texts[0]
