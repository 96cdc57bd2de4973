"""A machine's ceilings are measured once, kept, and compared with runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.ceilings import Ceilings, Links
from profkit.analysis.kept_ceilings import keep_ceilings, load_ceilings, machine_key
from profkit.environment import read_environment
from profkit.machine import ceilings
from profkit.report import machine_sections
from profkit.show.text import sections
from profkit.testing import FakeClock
from tests.cli.conftest import Command

FOUND = Ceilings(
    "cpu",
    "numpy 2",
    {"fp32": 1e12},
    2e9,
    {},
    500.0,
    3e8,
    (Links("gloo", 2, (1_000, 4_000), (1e6, 2e6)),),
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROFKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ceilings, "SHORTEST_S", 0.0)
    monkeypatch.setattr(ceilings, "DISK_BYTES", 1 << 20)
    monkeypatch.setattr(ceilings, "MATRIX_SIDE", {"cpu": 16})
    monkeypatch.setattr(ceilings, "COPY_BYTES", {"cpu": 4096})


def test_what_was_measured_is_kept_for_this_machine() -> None:
    assert load_ceilings(read_environment()) is None
    keep_ceilings(FOUND)
    assert load_ceilings(read_environment()) == FOUND
    assert load_ceilings({"cpu": "another", "cpu_count": 1}) is None


def test_another_device_driver_or_library_has_ceilings_of_its_own() -> None:
    known = {
        "cpu": "a",
        "cpu_count": 2,
        "gpu_models": ["H100"],
        "nvidia_driver": "550.1",
        "packages": {"torch": "2.9", "pillow": "1"},
    }
    others: list[dict[str, Any]] = [
        {"gpu_models": ["V100"]},
        {"nvidia_driver": "555.2"},
        {"packages": {"torch": "2.10"}},
        {"cpu_count": 4},
    ]
    keys = [machine_key({**known, **change}) for change in ({}, *others)]
    assert len(set(keys)) == len(keys)
    assert machine_key({**known, "packages": {"torch": "2.9", "pillow": "2"}}) == keys[0]
    assert machine_key({"cpu": "a", "gpu_models": []}) == machine_key({"cpu": "a"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"links": 3}',
        '{"links": [{}]}',
        '{"links": [{"backend": "gloo", "ranks": 2, "sizes": [1], "bus_bytes_per_s": []}]}',
    ],
)
def test_a_file_that_cannot_be_read_is_no_ceiling(text: str) -> None:
    path = keep_ceilings(FOUND)
    path.write_text(text)
    assert load_ceilings(read_environment()) is None


def test_links_of_the_same_kind_are_replaced() -> None:
    newer = Links("gloo", 2, (1,), (1.0,))
    assert ceilings.with_links(FOUND, newer).links == (newer,)
    assert len(ceilings.with_links(FOUND, Links("gloo", 4, (1,), (1.0,))).links) == 2


def test_the_best_of_some_rounds_counts() -> None:
    clock = FakeClock()
    lengths = iter([50, 30, 10, 20, 40, 40])
    assert ceilings.best_rate(
        lambda: clock.advance(next(lengths)), 1.0, shortest_s=0.0, clock=clock
    ) == pytest.approx(1e9 / 10)


def test_numpy_alone_measures_a_cpu() -> None:
    found = ceilings.measure_numpy()
    assert found.device == "cpu"
    assert {"fp32", "fp64"} == set(found.matrix_flops_per_s)
    assert found.copy_bytes_per_s is not None
    assert found.copy_bytes_per_s > 0


def test_the_machine_is_measured_and_nothing_is_left_behind(tmp_path: Path) -> None:
    found = ceilings.measure_machine(lambda what: None)
    assert found.disk_read_bytes_per_s is None or found.disk_read_bytes_per_s > 0
    assert list((tmp_path / "cache").glob("*.tmp")) == []


def test_the_text_shows_every_rate() -> None:
    text = sections(machine_sections.ceilings(FOUND))
    for words in (
        "fp32",
        "1.00 TFLOP/s",
        "2.00 GB/s",
        "500 images/s",
        "300 MB/s",
        "gloo, 2 ranks",
        "4.00 KB",
    ):
        assert words in text


def test_the_verb_shows_what_is_kept(profkit: Command, tmp_path: Path) -> None:
    keep_ceilings(FOUND)
    done = profkit("ceilings", "--json", env={"PROFKIT_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["matrix_flops_per_s"] == {"fp32": 1e12}
