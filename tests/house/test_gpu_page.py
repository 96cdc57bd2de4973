"""docs/gpu.md is what its command writes of the figures."""

from __future__ import annotations

import json

from tests.house.test_packaging import TOP
from tests.scripts import load


def test_the_page_of_the_gpu_is_current() -> None:
    script = load("gpu_page")
    page = script.page(json.loads(script.FIGURES.read_text(encoding="utf-8")))
    assert script.PAGE.read_text(encoding="utf-8") == page, "python benchmarks/gpu_page.py"
    assert len(page.splitlines()) <= 150
    for _, path in script.WITHOUT_GPU:
        assert (TOP / "tests" / path).is_file()


def test_the_results_of_nccl_become_a_table_of_the_page() -> None:
    script = load("gpu_page")
    found = json.loads(script.FIGURES.read_text(encoding="utf-8"))
    checks = [
        {"scenario": "ddp", "what": "bytes", "is_right": True, "detail": ""},
        {"scenario": "ddp", "what": "waits", "is_right": False, "detail": "3 ms, not 5"},
    ]
    done = {"machine": "NVIDIA X", "date": "2026-12-01", "commit": "abc", "checks": checks}
    page = script.page({**found, "nccl": done})
    assert "`.ci/gpu nccl` on NVIDIA X, 2026-12-01, commit abc:" in page
    assert "| `ddp` | 1 of 2 | waits: 3 ms, not 5 |" in page
