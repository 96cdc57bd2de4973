"""All bytes become clean lines, in bounded memory and linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.importers.logs.assemble import load_grammars, parse_log
from profkit.importers.logs.text import (
    LONGEST_LINE,
    Damage,
    as_count,
    as_number,
    number_after,
    read_lines,
)
from profkit.importers.logs.times import find_time, has_year


def texts(data: bytes) -> list[str]:
    return [line.text for line in read_lines([data])]


def test_colours_carriage_returns_and_control_bytes_go() -> None:
    assert texts(b"\x1b[95mtrain step:20\x1b[0m \x1b[92mips: 5\x1b[0ms\n") == [
        "train step:20 ips: 5s"
    ]
    assert texts(b"  0%|   | 0/7\r100%|###| 7/7\rdone\r\n") == [
        "  0%|   | 0/7",
        "100%|###| 7/7",
        "done",
    ]
    assert texts(b"a\x00b\x07c\td\n") == ["abc\td"]
    assert texts(b"\x1b]0;title\x07text\x1b[A\n") == ["text"]


def test_prefixes_of_mpirun_go_wherever_they_stand_and_name_the_process() -> None:
    (line,) = read_lines([b"Fri Dec 18 20:03:10 2020[1,3]<stdout>:DLL 2020\n"])
    assert (line.text, line.process) == ("DLL 2020", 3)
    (line,) = read_lines(
        [b"Iteration:   6%|  | 104/1713 [00:13<03:18]Sat Dec 19 15:14:59 2020[1,0]<stdout>:DLL x\n"]
    )
    assert (line.text, line.process) == ("Iteration:   6%|  | 104/1713 [00:13<03:18]DLL x", 0)
    assert texts(b"[1,4]<stderr>:[03:14:40] [1,4]<stderr>:../src\n") == ["[03:14:40] ../src"]


def test_bytes_that_are_no_text_are_counted_with_their_lines() -> None:
    damage = Damage()
    lines = list(read_lines([b"good\n\xff\xfe\x80 bad\nwith\x00nul\n"], damage))
    assert [line.number for line in lines] == [1, 2, 3]
    assert (damage.undecodable_count, damage.undecodable) == (2, [2, 3])


def test_a_torn_last_line_loses_the_number_at_its_end() -> None:
    damage = Damage()
    *_, last = read_lines([b"a\nloss: 2.5 ips: 352.0"], damage)
    assert (last.text, last.torn, damage.torn) == ("loss: 2.5 ips:", True, 1)
    *_, last = read_lines([b"avg_ips:4images/sec"])
    assert last.text == "avg_ips:4images/sec"


def test_lines_are_numbered_over_blocks_and_long_ones_are_cut() -> None:
    damage = Damage()
    lines = list(
        read_lines(
            [b"a" * 3, b"b" * 3 + b"\n" + b"c" * LONGEST_LINE, b"d" * LONGEST_LINE, b"\nlast\n"],
            damage,
        )
    )
    assert [(line.number, len(line.text)) for line in lines] == [(1, 6), (2, LONGEST_LINE), (3, 4)]
    assert damage.cut == 1


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_blocks_may_be_cut_anywhere(blocks: list[bytes]) -> None:
    assert list(read_lines(blocks)) == list(read_lines([b"".join(blocks)]))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loss:  4.27 x", 4.27),
        ("loss: -1e-3,", -1e-3),
        ("loss: .5s", 0.5),
        ("loss: nan", None),
        ("loss: 1e999", None),
        ("my.loss: 3", None),
        ("loss: 1.2.3", None),
        ("", None),
    ],
)
def test_a_number_behind_a_label(text: str, value: float | None) -> None:
    assert number_after(text, "loss:") == value


def test_words_that_are_no_numbers_are_null() -> None:
    assert as_number("1" * 400) is None
    assert as_number(None) is None
    assert as_count("٣") is None
    assert as_count("9" * 30) is None
    assert as_count("12") == 12


def test_timestamps_in_the_shapes_that_logs_have() -> None:
    day = 1_609_121_378.0
    assert find_time("[MaskRCNN] INFO    : timestamp: 1609121378.478827") == pytest.approx(
        day + 0.478827
    )
    assert find_time(":::NVLOGv0.2.3 resnet 1609121378.25 (x)") == day + 0.25
    assert find_time("2020-12-28 02:09:38,123 - mmseg") == pytest.approx(day + 0.123)
    assert find_time("[2020/12/28 02:09:38] ppcls INFO") == day
    assert find_time("DLL 2020-12-28 02:09:38.500000 - x") == day + 0.5
    assert find_time("2020-13-41 02:09:38") is None
    assert find_time("no time here 12:13:14") is None
    without = find_time("[12/28 02:09:38] epoch")
    assert without is not None
    assert not has_year(without)


HOSTILE = [
    "a" * 100_000,
    "\x1b[" * 40_000,
    "\x1b]" * 40_000,
    "[1,1]<stdout" * 9_000,
    "Mon May 31 00:15:06 2021" * 4_000,
    "epoch:0 train step:1 " * 4_000,
    "Epoch: 0 Iteration: 1 train.loss : " * 3_000,
    "[TRAIN] epoch: 1, iter: 2/3, " * 3_000,
    "Iter [8/180]\tlr: " * 6_000,
    "eta: 1 iter: 39  total_loss: " * 3_000,
    "Training Iteration: 40  eta : " * 3_000 + "time : 1 (",
    "step_idx: 1, epoch: 1, batch: 1, avg loss: " * 2_000,
    "DLL 2020 - PARAMETER " * 4_000 + "batch_size",
    "Namespace(" * 9_000 + "batch_size=",
    "Start with arguments Namespace(" * 3_000 + "batch_size=",
    "(3/125) LR: 1 | Batch: " * 4_000 + "ips: ",
    "| epoch 1 | step 1 |avg loss " * 3_000,
    "GPU 0,1,2," * 9_000 + ": Tesla ",
    "devices: " + "1," * 50_000,
    "DLL " + "9" * 90_000,
    "loss: " * 16_000 + "nan",
    "2020-01-01 00:00:00" * 5_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=[text[:20].strip() for text in HOSTILE])
def test_long_hostile_lines_take_linear_time(text: str) -> None:
    for grammar in load_grammars().values():
        start = time.thread_time()
        grammar.pattern.search(text[:LONGEST_LINE])
        assert time.thread_time() - start < 1.5, grammar.name
    start = time.thread_time()
    known = (
        "DLL 2024-03-05 06:07:08.1 - Epoch: 0 Iteration: 1  train.loss : 1.0  "
        "train.total_ips : 2.0 img/s\n"
    )
    parse_log(lambda: [(known + text + "\n").encode()])
    assert time.thread_time() - start < 3
