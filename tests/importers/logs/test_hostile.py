"""No bytes make the reading of a log raise or hang, or give a wrong total in silence."""

from __future__ import annotations

import re
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.importers.logs.assemble import parse_log
from profkit.importers.logs.placing import MAX_ROWS, place_steps
from tests.importers.logs.mutations import outcomes
from tests.importers.logs.samples import SAMPLES

_LINES = [line.encode() for sample in SAMPLES.values() for line in sample.text.splitlines()[:30]]
_PIECE = st.one_of(
    st.sampled_from(_LINES),
    st.binary(max_size=60),
    st.sampled_from([b"\n", b"\r", b"\0", b"\x1b[", b"999999999999", b"-1", b"nan", b"1e308"]),
)


def read(data: bytes) -> None:
    for log in parse_log(lambda: [data], "log"):
        place_steps(log)
        assert log.flags is not None
        assert (log.mean_step_s or 1) > 0


@given(st.binary(max_size=2_000))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    read(data)


@settings(max_examples=300)
@given(st.lists(_PIECE, max_size=25), st.sampled_from([b"\n", b"", b" "]))
def test_no_pieces_of_logs_make_it_raise(pieces: list[bytes], between: bytes) -> None:
    read(between.join(pieces))


_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_HOSTILE = (
    "-1",
    "0",
    "0.0",
    "1e308",
    "1e-308",
    "999999999999",
    "9" * 40,
    "nan",
    "inf",
    "",
    "-0.5",
    "1e17",
)


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from(_HOSTILE)), min_size=1, max_size=40),
    st.booleans(),
)
def test_no_numbers_make_it_raise(
    name: str, changes: list[tuple[int, str]], everywhere: bool
) -> None:
    """Replace numbers of a sound log by impossible ones, here and there or everywhere."""
    head = "\n".join(SAMPLES[name].text.splitlines()[:60]) + "\n"
    numbers = list(_NUMBER.finditer(head))
    chosen = {place % len(numbers): value for place, value in changes}
    if everywhere:
        text = numbers[next(iter(chosen)) % len(numbers)][0]
        read(head.replace(text, changes[0][1]).encode())
    for place in sorted(chosen, reverse=True):
        start, end = numbers[place].span()
        head = head[:start] + chosen[place] + head[end:]
    read(head.encode())


def test_damaged_logs_are_read_or_refused_and_never_silently_wrong() -> None:
    seen = list(outcomes(25, seed=1))
    assert max(outcome.seconds for _, outcome in seen) < 5
    assert [(name, outcome.why) for name, outcome in seen if outcome.silently_wrong] == []


def test_a_counter_that_jumps_far_makes_no_endless_run() -> None:
    text = SAMPLES["paddleseg"].text.replace("iter: 200/", "iter: 999999999999/")
    (log,) = parse_log(lambda: [text.encode()])
    assert len(place_steps(log).step) <= 300
    only = (
        "\n".join(SAMPLES["paddleseg"].text.splitlines()[:4]).replace(
            "iter: 10/", "iter: 999999999999/"
        )
        + "\n"
    )
    (log,) = parse_log(lambda: [only.encode()])
    assert len(place_steps(log).step) <= MAX_ROWS


def test_times_that_cannot_be_are_left_out_and_counted() -> None:
    text = SAMPLES["paddleseg"].text.replace("batch_cost: 0.5000, ", "batch_cost: 9999999.0, ", 1)
    (log,) = parse_log(lambda: [text.encode()])
    assert place_steps(log).dropped == {"x a line with an impossible step time": 1}


def test_memory_does_not_grow_with_lines_that_are_no_records() -> None:
    block = b"a line of a configuration or a warning, of no use to anyone at all\n" * 15_000
    known = SAMPLES["paddleseg"].data
    tracemalloc.start()
    parse_log(lambda: iter([known, *[block] * 2, b"x" * 5_000_000]), "log")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000_000


def test_words_in_the_warm_up_alone_are_the_size_of_a_step() -> None:
    """A log that counts words, and only its first record has a throughput, which is tiny."""
    lines = SAMPLES["paddlenlp_transformer"].text.splitlines()
    first, *others = [number for number, line in enumerate(lines) if "ips:" in line]
    lines[first] = re.sub(r"ips: [\d.]+", "ips: 0.01", lines[first])
    for number in others:
        lines[number] = re.sub(r", tokens.*", "", lines[number])
    read("\n".join(lines).encode())
