"""The scenarios notice if a part of the product is switched off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.mutations import MUTATIONS, Mutation, survives


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_check_notices(mutation: Mutation, tmp_path: Path) -> None:
    assert not survives(mutation, tmp_path)
