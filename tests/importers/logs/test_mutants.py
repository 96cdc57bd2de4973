"""Without one of the steps in reading a log, its test fails: none of these tests is blind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.importers.logs import test_integrity as integrity
from tests.importers.logs import test_statements as statements

Check = Callable[[Path], None]


def without_path(check: Callable[..., None], *arguments: object) -> Check:
    def run(_folder: Path) -> None:
        check(*arguments)

    return run


def first(value: Any, *_others: object, **_named: object) -> Any:
    return value


def untouched(metadata: Any, *_others: object) -> Any:
    return metadata, []


def nothing(*_arguments: object, **_named: object) -> None:
    return None


def last_stated(facts: dict[str, Any]) -> str | None:
    """The precision as it once was: that of the option, whatever the data type."""
    return facts.get("autocast") or facts.get("precision")


ASSEMBLE = "profkit.importers.logs.assemble"
MUTANTS: tuple[tuple[str, Callable[..., Any], Check], ...] = (
    (
        "profkit.importers.logs.metadata.settle_precision",
        last_stated,
        without_path(
            statements.test_an_option_that_is_off_rules_no_other_precision_out,
            "dtype : float16  amp : False",
            "fp16",
        ),
    ),
    (
        f"{ASSEMBLE}.settle_accumulation",
        untouched,
        without_path(statements.test_accumulated_batches_count, 8, 5, 80.0, 40),
    ),
    (
        f"{ASSEMBLE}.part_evaluations",
        first,
        statements.test_an_evaluation_that_is_recognised_is_no_wait_for_data,
    ),
    (f"{ASSEMBLE}.read_knobs", nothing, statements.test_a_run_has_the_settings_that_its_log_states),
    (
        "profkit.importers.logs.samples._wait_from_throughputs",
        nothing,
        without_path(statements.test_the_wait_for_data_follows_from_two_throughputs),
    ),
    (
        "profkit.importers.logs.samples._shrink",
        lambda size, throughput, *_: (size / throughput, size),
        without_path(
            statements.test_a_last_batch_far_slower_than_the_others_is_partial_though_no_time_passed
        ),
    ),
    (
        "profkit.importers.training_log.count_timed",
        lambda *_: 2,
        partial(
            statements.test_a_log_without_a_usable_figure_is_refused_in_one_line,
            statements.SEG.split("iter: 20/")[0],
            "1 line about training",
        ),
    ),
    (
        "profkit.importers.logs.integrity._have_a_reason",
        lambda *_: True,
        without_path(integrity.test_a_run_on_one_card_and_one_on_eight_are_no_contradiction),
    ),
)


@pytest.mark.parametrize(("place", "mutant", "check"), MUTANTS, ids=[each[0] for each in MUTANTS])
def test_a_test_fails_without_its_code(
    place: str,
    mutant: Callable[..., Any],
    check: Check,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, mutant)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(tmp_path)
