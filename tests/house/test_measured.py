"""Only tests that compare durations are repeated, at most three times, and report it."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = """
    import pytest
    attempts = []

    @pytest.fixture
    def number():
        attempts.append(1)
        return len(attempts)

    @pytest.mark.measured
    def test_third_time(number):
        assert number == 3

    @pytest.mark.measured
    def test_never():
        raise RuntimeError("a real fault")

    def test_not_measured(number):
        assert number > 4
"""


def test_a_measured_test_has_three_attempts(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\naddopts = --strict-markers")
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=2)
    assert [line.partition("::")[2] for line in done.outlines if ": attempt " in line] == [
        "test_third_time: attempt 1 failed: assert 1 == 3",
        "test_third_time: attempt 2 failed: assert 2 == 3",
        "test_never: attempt 1 failed: RuntimeError: a real fault",
        "test_never: attempt 2 failed: RuntimeError: a real fault",
    ]
