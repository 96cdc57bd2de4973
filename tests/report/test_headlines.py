"""Each answer begins with one sentence of at most 30 words, which all formats show first."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain, scale_runs
from profkit.frame.device_times import PhaseClock
from profkit.report.advice import find_answers
from profkit.report.ledger_document import explained, rows_in_brief
from profkit.report.overview_document import overview
from profkit.report.scaling_document import scaling
from profkit.show import brief as show_brief
from profkit.show import html, json, markdown, text
from profkit.show.document import Document, Section, Tone
from profkit.trace import Trace

RECORDED = Path(__file__).parents[2] / "traces"
MOST_WORDS = 30


def _open(name: str) -> Trace:
    return Trace.open(RECORDED / f"recorded-{name}")


def _check(document: Document) -> None:
    headline = document.headline
    assert headline.endswith(".")
    words = [word for word in headline.split() if re.search(r"\w", word)]
    assert len(words) <= MOST_WORDS, headline
    assert " ".join(text.document(document).split()).startswith(headline)
    assert json.document(document)["headline"] == headline
    assert headline in markdown.document(document).replace("\\", "")
    assert headline in html.document(document, "1")


@pytest.mark.parametrize("name", ["plain-loop", "resnet50-2-ranks"])
def test_of_one_run(name: str) -> None:
    _check(overview(build_overview(_open(name))))


def test_without_device_times_no_phase_is_the_largest() -> None:
    view = build_overview(_open("plain-loop"))
    document = overview(dataclasses.replace(view, clock=PhaseClock.LAUNCH))
    _check(document)
    assert "largest" not in document.headline


def test_times_that_do_not_hold_are_in_no_headline() -> None:
    view = build_overview(_open("plain-loop"))
    assert overview(dataclasses.replace(view, changed=("rank 0, steps",))).headline == ""


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_runs(*, swapped: bool) -> None:
    sides = [_open("resnet50-workers-0"), _open("resnet50-workers-2")]
    if swapped:
        sides.reverse()
    document = explained(explain(sides[0], sides[1]))
    _check(document)
    assert document.headline.startswith("Regression: " if swapped else "Improvement: ")


def test_of_more_runs() -> None:
    names = ("resnet50-workers-0", "resnet50-2-ranks", "resnet50-workers-2")
    _check(scaling(scale_runs(list(map(_open, names)))))


def test_each_key_of_a_section_is_there_once() -> None:
    """Two sections under one key would hide one of them in JSON."""
    for document in (
        overview(build_overview(_open("resnet50-2-ranks"))),
        explained(explain(_open("resnet50-workers-0"), _open("resnet50-2-ranks"))),
    ):
        keys = [*document.data, *(fact.key for fact in document.facts)]
        keys += [section.key for section in document.sections]
        keys = sorted(filter(None, keys))
        assert [key for key, other in itertools.pairwise(keys) if key == other] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "resnet50-workers-0",
            "; the largest loss is waiting for data: 55.7 ms, 12.4 %.",
        ),
        ("h200-images-late", "; no phase covers 33.3 % of it."),
        ("h200-images-kernels", " idle for 59.4 % of captured steps (launched late: 58.5 %)."),
        ("resnet50-paddle", "; no other part than the training itself takes a significant share"),
    ],
)
def test_of_one_run_says_what_limits_it(name: str, words: str) -> None:
    headline = overview(build_overview(_open(name))).headline
    assert words in headline


@pytest.mark.parametrize("name", ["plain-loop", "resnet50-2-ranks", "resnet50-workers-0"])
def test_in_brief_everything_is_shown_or_named(name: str) -> None:
    document = overview(build_overview(_open(name)))
    brief, whole = show_brief.document(document), text.document(document)
    assert brief.startswith(whole.splitlines()[0])
    assert 2 * brief.count("\n") < whole.count("\n")
    named = " ".join(brief.partition("more (--all)")[2].split())
    for section in document.shown():
        assert f"\n{section.title}\n" in whole
        assert f"\n{section.title}\n" in brief or section.title in named or "..." in named


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDED.glob("recorded-*")))
def test_a_report_has_at_most_25_lines(name: str) -> None:
    trace = Trace.open(RECORDED / name)
    document = overview(build_overview(trace), answers=find_answers(trace))
    brief = show_brief.document(document).splitlines()
    assert len(brief) <= 25
    assert sum("own cost" in line for line in brief) == 1
    assert max(map(len, brief)) <= 100


@pytest.mark.parametrize("base", ["h200-images", "resnet50-2-ranks", "plain-loop"])
@pytest.mark.parametrize(
    "target", ["h200-images-late", "h200-images-pageable", "resnet50-paddle", "h100-hang"]
)
def test_a_comparison_has_at_most_20_lines_and_a_cause(base: str, target: str) -> None:
    document = explained(explain(_open(base), _open(target)))
    brief = show_brief.document(document)
    assert len(brief.splitlines()) <= 20
    assert "\nCauses\n" in brief
    (causes,) = (section for section in document.sections if section.key == "causes")
    assert causes.causes[0].kind in brief


def test_what_has_no_room_is_named_and_what_is_kept_is_shortened() -> None:
    long = tuple(f"line {line}" for line in range(20))
    short = Section("kept", ("short",), kept=True)
    document = Document(
        *("title", "subtitle", "measured", Tone.PLAIN, ""),
        headline="An answer.",
        doubt="",
        warnings=("first", "second"),
        sections=(Section("kept", long, brief=None, kept=True), Section("other", ("words",))),
    )
    kept = dataclasses.replace(document.sections[0], brief=Section("kept", long, kept=True))
    whole = show_brief.document(document)
    assert "more (--all)" not in whole
    limited = dataclasses.replace(document, most_lines=30)
    assert show_brief.document(limited) == whole
    few = dataclasses.replace(document, most_lines=28)
    assert "\n  more (--all)    other" in show_brief.document(few)
    assert "note: second" in show_brief.document(few)
    brief = dataclasses.replace(kept.brief or kept, brief=short)
    sections = (dataclasses.replace(kept, brief=brief), document.sections[1])
    least = dataclasses.replace(document, sections=sections, most_lines=9)
    assert show_brief.document(least).splitlines() == [
        "An answer.",
        "subtitle",
        "  note: first",
        "  note: second",
        "",
        "kept",
        "  short",
        "",
        "  more (--all)    other",
    ]
    least = dataclasses.replace(least, most_lines=8)
    assert "  more (--all)    1 more note, other" in show_brief.document(least)


def test_rows_in_brief_add_up_to_the_total() -> None:
    view = explain(_open("resnet50-workers-0"), _open("resnet50-workers-2"))
    *rows, total = rows_in_brief(view.ledger).visible()
    assert sum(row.exact for _, row in rows) == total[1].exact
    assert len(rows) == 3


def test_in_brief_no_title_stands_alone() -> None:
    sections = (Section("Lines", brief=Section("Lines")), Section("Notes", ("a note",)))
    document = Document("What", "", "", Tone.PLAIN, "", sections=sections)
    assert show_brief.document(document) == "Notes\n  a note\n\n  more (--all)    Lines"
