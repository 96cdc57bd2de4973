"""Imports Paddle with its warnings off, before a scenario needs it."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle  # noqa: F401  # it warns as it is imported
