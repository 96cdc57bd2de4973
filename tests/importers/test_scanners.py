"""Both scanners read every file alike, and exactly."""

from __future__ import annotations

import gzip
import json
import random
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.importers.reading import chrome as _chrome
from profkit.importers.reading.chrome import EVENT, WORK
from profkit.importers.reading.numbers import MISSING, exact
from profkit.importers.reading.scan_python import Scanner
from tests.importers.conftest import KINETO, needs_data, two_steps, write_trace

EVENTS = "\n".join(map(json.dumps, two_steps())).replace("\n", ",\n")


def _scan(scanner: Any, text: bytes, block: int = 1 << 20) -> tuple[Any, ...]:
    """Return what a scanner reads from `text` in blocks, with names instead of numbers."""
    held, at, given = b"", 0, 0
    while True:
        final = given >= len(text)
        held, given = held[at:] + text[given : given + block], given + block
        at, done = scanner.feed(held, 0, final)
        if done or final:
            break
    trace = _chrome.make_trace(scanner.take(), {}, "")
    columns = {name: trace.events[name].tolist() for name in EVENT.names or ()}
    for name in ("name", "category", "process", "thread"):
        columns[name] = [trace.names[each] for each in columns[name]]
    return (
        columns,
        {name: trace.works[name].tolist() for name in WORK.names or ()},
        trace.extras,
        trace.broken,
        trace.ignored,
    )


def _assert_same(compiled: Any, text: bytes, block: int = 1 << 20) -> None:
    ours, theirs = _scan(Scanner(), text, block), _scan(compiled(), text, block)
    for column, values in ours[0].items():
        assert values == theirs[0][column], column
    for column in ("grid", "block"):
        ours[1][column] = [each if each[0] > 0 else None for each in ours[1][column]]
        theirs[1][column] = [each if each[0] > 0 else None for each in theirs[1][column]]
    assert ours[1:] == theirs[1:]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "]",
        EVENTS,
        EVENTS + "]",
        EVENTS[:-30],
        (
            '{"ph":"X","name":"a "quoted" name","ts":1,"dur":2},{"ph":"X","name":"next","ts":3,'
            '"dur":4}]'
        ),
        '{"ph":"X","name":"f("x", "y")","ts":1,"dur":2},{"ph":"X","name":"next","ts":3,"dur":4}]',
        (
            '{"ph":"X","name":"C:\\path\\u12","ts":1,"dur":2},{"ph":"X",'
            '"name":"\\u00e9\\ud83d\\ude00\\ud800","ts":3,"dur":4}]'
        ),
        (
            '{"ph":"X","name":"a","ts":NaN,"dur":Infinity,"args":{"stream":-Infinity}},{"ph":"X",'
            '"name":"b","ts":1e3,"dur":-2.5e-3}]'
        ),
        (
            '{"ph":"X","name":"a","ts":"12.5","dur":null,"tid":-1,"pid":4294967295,'
            '"args":{"stream":"7","device":true,"grid":["1",2,3]}}]'
        ),
        (
            '{"ph":"X","name":"\xe9\xff","cat":"kernel","ts":007,"dur":1},'
            '{"ph":"X","name":"b","ts":1,"dur":1}]'
        ),
        (
            '{"ph":"X","args":{"correlation":5},"ts":1},{"ph":"X","ts":2},{"ph":"f","ts":2,"id":9},'
            '{"ph":"s","ts":2,"id":10}]'
        ),
        '{"ph":"X","name":"a","ts":1,"args":{"grid":[1,2],"block":[1,2,3,4],"stream":7}}]',
        (
            '{"ph":"X","name":"a","ts":1,"args":{"Collective name":"allreduce","x":[1,{"y":2}]}},'
            '{"name":"n","ph":"M","args":{"name":"p"}}]'
        ),
        "[1,2,3]" + EVENTS,
        '{"ph":"X","name":"a","ts":1,,"dur":2},' + EVENTS + "]",
        '{"ph":"X","deep":' + "[" * 400 + "]" * 400 + ',"ts":1,"name":"d"}]',
        '{"ph":"X","deep":' + "[" * 5000 + "]" * 5000 + ',"ts":1,"name":"d"},{"ph":"X","ts":2}]',
        '{"ph":"X","name":"' + "x" * (1 << 20) + '","ts":1},{"ph":"X","ts":2}]',
        '{"ph":"X","name":"' + "x" * ((1 << 20) - 24) + '"},{"ph":"X","ts":2}]',
        '{"ph":1 2},' * 1500 + EVENTS,
        '{"ph":1,"b":' * 700,
    ],
)
@pytest.mark.parametrize("block", [1 << 22, 1 << 16])
def test_both_read_the_same(compiled_scanner: Any, text: str, block: int) -> None:
    _assert_same(compiled_scanner, text.encode("latin-1", "xmlcharrefreplace"), block)


def test_both_read_mutations_the_same(compiled_scanner: Any) -> None:
    chance = random.Random(7)
    whole = EVENTS.encode() + b"]"
    for _ in range(400):
        text = bytearray(whole[: chance.randrange(len(whole))] if chance.random() < 0.3 else whole)
        for _ in range(chance.randrange(1, 5)):
            if text:
                text[chance.randrange(len(text))] = chance.choice(
                    b'"\\{}[],:0eE.-+nNtX \x00\xff\n' + bytes([chance.randrange(256)])
                )
        _assert_same(compiled_scanner, bytes(text))


@needs_data
@pytest.mark.parametrize("path", KINETO[:3] + KINETO[9:10], ids=lambda path: path.parent.name)
def test_both_read_real_files_the_same(compiled_scanner: Any, path: Path) -> None:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    _assert_same(compiled_scanner, text[text.index(b'"traceEvents"') :].partition(b"[")[2], 100_000)


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**19), max_value=10**19, places=6
    ),
    st.sampled_from([0, 3]),
)
@settings(max_examples=200)
def test_a_number_is_exact(value: Decimal, scale: int) -> None:
    scaled = (abs(value) * 10**scale).to_integral_value(ROUND_HALF_UP)
    signed = -int(scaled) if value < 0 else int(scaled)
    assert exact(f"{value:f}", scale) == (MISSING if scaled > 2**63 - 1 else signed)


@given(st.from_regex(r"-?[0-9]{0,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
@settings(max_examples=300)
def test_both_read_any_number_the_same(compiled_scanner: Any, text: str) -> None:
    _assert_same(
        compiled_scanner,
        json.dumps({"ph": "X", "ts": text, "args": {"stream": text, "device": text}}).encode()
        + b"]",
    )


def test_microseconds_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "exact.json", two_steps())
    for compiled in (True, False):
        trace = _chrome.read_chrome(path, compiled=compiled)
        assert trace.events["start"][1] == 1_712_195_495_519_699_125
        assert trace.events["duration"][4] == 100_500
