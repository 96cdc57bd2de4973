"""The runs of the scenarios, and Paddle, which warns as it is imported."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.device.checks import Runs


def import_paddle() -> None:
    """Import Paddle before a module does that may not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import paddle  # noqa: F401


def pytest_collect_file(file_path: object) -> None:
    if str(file_path).endswith(("test_scenarios.py", "test_drawn.py", "test_mutations.py")):
        import_paddle()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    import_paddle()
    from tests.device.checks import Runs

    return Runs(tmp_path_factory.mktemp("device"))
