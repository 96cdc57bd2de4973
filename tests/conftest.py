"""What all tests share: one place for generated data, and no deadlines on machines that others use too."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture(scope="session", autouse=True)
def generated_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Generated data sets are made once a session, in a folder of its own, unless the caller names one; threads wait without spinning."""
    with pytest.MonkeyPatch.context() as patch:
        if "PROFKIT_CACHE" not in os.environ:
            patch.setenv("PROFKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # jobs of tests share the cores with their own loaders, and with other tests
        yield
