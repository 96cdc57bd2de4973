"""The runs of the scenarios. Paddle is imported with its warnings off, before one needs it."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle  # noqa: F401  # it warns as it is imported

import pytest

from tests.device.checks import Runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("device"))
