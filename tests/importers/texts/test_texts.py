"""Statements of a text against its commands and logs, on texts that were written for this."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.importers.texts.check import TextCheck, check_text
from profkit.importers.texts.values import Outcome, What

REPORTS = Path(__file__).resolve().parents[3].parent / "shared" / "reports"
Check = Callable[..., TextCheck]
RECORD = (
    "[TRAIN] epoch: 1, iter: {step}/200, loss: {loss:.4f}, lr: 0.1, batch_cost: 0.50000, "
    "reader_cost: 0.00100, ips: 16.00000 samples/sec"
)


def log_of(cards: int = 4, batch: int = 8, loss: float = 2.0, head: str = "") -> str:
    """Return a log of one rank, which trains 16 samples a second on each card."""
    lines = [f"GPUs used: {cards}", f"batch_size: {batch}", head]
    for number in range(1, 21):
        lines.append(RECORD.format(step=10 * number, loss=loss - 0.05 * number))
    return "\n".join(lines) + "\n"


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def run(text: str, **logs: str) -> TextCheck:
        (tmp_path / "README.md").write_text(text, encoding="utf-8")
        for name, content in logs.items():
            (tmp_path / f"{name}.log").write_text(content)
        return check_text(tmp_path / "README.md")

    return run


def found(checked: TextCheck, outcome: Outcome) -> list[tuple[What, int, list[int]]]:
    """Return what each finding of an outcome is about, and its lines."""
    rows = []
    for each in checked.of(outcome):
        rows.append((each.stated.what, each.stated.line, [value.line for value in each.found]))
    return rows


def command(words: str, *lines: str) -> str:
    return "\n".join([words, "", "```bash", *lines, "```", ""])


@pytest.mark.parametrize(
    ("words", "line", "kinds"),
    [
        (
            "Train with batch size 64 in fp16 on 4 GPUs:",
            "torchrun --nproc_per_node=4 t.py --batch-size 32 --amp",
            {What.BATCH},
        ),
        (
            "To train in FP32 on 8 GPUs, run the following:",
            "python t.py -b 16 --amp --num-gpus 8",
            {What.PRECISION},
        ),
        ("On a single GPU:", "CUDA_VISIBLE_DEVICES=0,1 python t.py --batch_size 16", {What.CARDS}),
        (
            "若测试单机8卡 batch_size=64、FP32 的性能，执行如下命令：",
            "CUDA_VISIBLE_DEVICES=0 python t.py --batch_size=4 --fp16",
            {What.CARDS, What.BATCH, What.PRECISION},
        ),
        ("使用以下命令启动 2 卡训练：", "python -m launch --gpus=0,1,2,3 t.py", {What.CARDS}),
        ("16 GPUs on two machines:", "torchrun --nnodes 2 --nproc-per-node 4 t.py", {What.CARDS}),
        (
            "The global batch size is 256 on 8 GPUs:",
            "torchrun --nproc_per_node=8 t.py --batch-size 64",
            {What.BATCH},
        ),
    ],
)
def test_words_that_contradict_their_command(
    check: Check, words: str, line: str, kinds: set[What]
) -> None:
    checked = check(command(words, line))
    contradictions = checked.of(Outcome.CONTRADICTS)
    assert {each.stated.what for each in contradictions} == kinds
    for each in contradictions:
        assert each.stated.line == 1
        assert [value.line for value in each.found] == [4]
        assert "README.md:1 states" in each.words
        assert "README.md:4 says" in each.words


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "Batch size 32 per GPU on 8 GPUs, that is a global batch of 256:",
            "torchrun --nproc_per_node=8 t.py --batch-size 32",
        ),
        ("Batch size 256 on 8 GPUs:", "torchrun --nproc_per_node=8 t.py --batch-size 32"),
        ("Batch size 32 on 8 GPUs:", "torchrun --nproc_per_node=8 t.py --global-batch-size 256"),
        ("With FP16 on 32 GPUs:", "torchrun --nnodes=4 --nproc_per_node=8 t.py --precision bf16"),
        ("With 8 GPUs and FP16:", "bash train.sh 8 fp16"),
        ("Our machine has 8 GPUs and 512 GB of memory.", "python t.py --num-gpus 1"),
        ("Batch size 64:", "python t.py --eval-batch-size 8"),
        ("Without AMP on one GPU:", "CUDA_VISIBLE_DEVICES=0 python t.py"),
        ("Inference with batch size 8:", "python t.py --batch-size 8 16 32"),
        ("The script tests batch sizes of 2 to 64:", "python t.py"),
    ],
)
def test_words_that_do_not_contradict_their_command(check: Check, words: str, line: str) -> None:
    assert not check(command(words, line)).of(Outcome.CONTRADICTS)


def test_what_can_be_meant_in_two_ways_is_inconclusive(check: Check) -> None:
    checked = check(command("Run it with batch size 32 or batch size 64:", "python t.py -b 32"))
    (finding,) = checked.findings
    assert finding.outcome is Outcome.INCONCLUSIVE
    assert "not clear which is meant" in finding.words
    checked = check(command("With batch size 8:", "python t.py -b 16", "python t.py -b 8"))
    assert [each.outcome for each in checked.findings] == [Outcome.INCONCLUSIVE]


def test_a_readme_next_to_its_only_log(check: Check) -> None:
    text = "# Results\n\nTrained with batch size 16 in fp16 on 4 GPUs, loss 10.+ -> 1.2.\n"
    checked = check(text, train=log_of(head="dtype : float32"))
    assert found(checked, Outcome.CONTRADICTS) == [
        (What.BATCH, 3, [2]),
        (What.PRECISION, 3, [3]),
        (What.LOSS, 3, [4, 23]),
    ]
    assert found(checked, Outcome.AGREES) == [
        (What.CARDS, 3, [1]),
        (What.LOSS, 3, [4, 23]),
    ]


def test_a_value_of_all_cards_is_no_contradiction(check: Check) -> None:
    checked = check("We used a batch size of 32 on 4 GPUs.\n", train=log_of())
    assert not checked.of(Outcome.CONTRADICTS)
    assert (What.BATCH, 1, [2]) in found(checked, Outcome.AGREES)


TABLE = """
#### fp32 results

| GPUs | throughput (samples/s) | accuracy (%) |
|:--:|:--:|:--:|
| 1 | 16.1 | - |
| 4 | {four} | 71.3 |
| 8 | 120 |  |
"""


@pytest.mark.parametrize(
    ("four", "outcome"),
    [
        ("64.2", Outcome.AGREES),
        ("70.9", Outcome.CONTRADICTS),
        ("16.0", Outcome.INCONCLUSIVE),
    ],
)
def test_a_table_against_the_logs_of_its_settings(
    check: Check, four: str, outcome: Outcome
) -> None:
    """Each card trains 16 samples a second; 16 for four cards can be of one of them."""
    one, many = log_of(cards=1), log_of(cards=4)
    checked = check(TABLE.format(four=four), one=one, many=many)
    (finding,) = (each for each in checked.findings if each.stated.line == 7)
    assert finding.outcome is outcome
    assert finding.stated.what is What.THROUGHPUT
    (other,) = (each for each in checked.findings if each.stated.line == 6)
    assert other.outcome is Outcome.AGREES


def test_two_logs_of_one_setting_are_inconclusive(check: Check) -> None:
    checked = check(TABLE.format(four="99"), first=log_of(), second=log_of())
    (finding,) = checked.findings
    assert finding.outcome is Outcome.INCONCLUSIVE
    assert "2 runs have this setting" in finding.words


def test_other_columns_of_a_setting_are_no_throughput(check: Check) -> None:
    text = (
        "| GPUs | Mixed precision tokens/s | Mixed precision speedup | FP32(BS=8) | FP32 BLEU |\n"
        "|---|---|---|---|---|\n| 4 | 90000 | 2.5 | 300 | 24.1 |\n"
    )
    checked = check(text, train=log_of(head="dtype : float32"))
    (finding,) = checked.findings
    assert finding.stated.words == "FP32(BS=8): 300"
    assert finding.outcome is Outcome.CONTRADICTS


def test_a_link_against_the_log_behind_it(check: Check) -> None:
    text = "- [6 GPUs, batch size 8, FP16](./train.log)\n- [4 GPUs bs=4](gpu8_bs4.log)\n"
    checked = check(text, train=log_of(head="dtype : float32"))
    assert found(checked, Outcome.CONTRADICTS) == [
        (What.CARDS, 1, [1]),
        (What.PRECISION, 1, [3]),
        (What.CARDS, 2, [0]),
    ]
    assert "the name of gpu8_bs4.log" in checked.of(Outcome.CONTRADICTS)[-1].words


@pytest.mark.parametrize(
    "text",
    ["", "```", "| a |\n|---|\n| 1 | 2 | 3 |\n", "[x](\n", "batch size " + "9" * 400, "|\n" * 50],
)
def test_odd_texts_do_no_harm(check: Check, text: str) -> None:
    assert check(text).findings == ()


@pytest.mark.parametrize(
    ("speed_up", "outcome"),
    [("5.65", Outcome.AGREES), ("5.7", Outcome.AGREES), ("6.65", Outcome.CONTRADICTS)],
)
def test_a_speed_up_against_its_throughputs(check: Check, speed_up: str, outcome: Outcome) -> None:
    """96 / 17 is 5.65; both are rounded, so 5.5 to 5.8 are possible."""
    text = (
        f"| cards | throughput | speed-up |\n|--|--|--|\n| 1 | 17 | - |\n| 8 | 96 | {speed_up} |\n"
    )
    (finding,) = check(text).findings
    assert (finding.stated.what, finding.outcome) == (What.SPEED_UP, outcome)
    assert [value.line for value in finding.found] == [3, 4]


needs_reports = pytest.mark.skipif(
    not REPORTS.is_dir(), reason="the published reports (../shared/reports) are not here"
)


@needs_reports
def test_the_contradictions_of_a_published_report() -> None:
    """PSENet's page copies sentences from another page; each was checked by hand."""
    checked = check_text(REPORTS / "psenet.md")
    assert found(checked, Outcome.CONTRADICTS) == [
        (What.BATCH, 84, [87]),
        (What.PRECISION, 92, [95]),
        (What.CARDS, 99, [102]),
        (What.BATCH, 99, [102]),
        (What.PRECISION, 99, [102]),
    ]
    assert not checked.of(Outcome.INCONCLUSIVE)


@needs_reports
@pytest.mark.parametrize(
    ("report", "folder", "contradictions", "agreeing"),
    [
        (
            "hrnet_w18",
            "paddleseg_hrnet/sljlp_AI-Rank@af36b80_2021-06-03",
            [157],
            {139, 140, 142, 156, 157, 159},
        ),
        (
            "mask_rcnn",
            "ngc_pytorch_maskrcnn/wanghuancoder_Perf@4768064_2020-12-29",
            [],
            {*range(132, 140), 127},
        ),
        (
            "tsm",
            "paddlevideo_tsm/AI-Rank_AI-Rank@fc431d1_2021-06-17",
            [111],
            {78, 80, 92, 110, 111, 117, 118, 119},
        ),
    ],
)
def test_published_reports_against_their_logs(
    report: str, folder: str, contradictions: list[int], agreeing: set[int]
) -> None:
    """The throughputs of 8 cards are above all that the logs say (docs/import.md)."""
    logs = sorted((REPORTS.parent / "data" / "logs" / folder).iterdir())
    checked = check_text(REPORTS / f"{report}.md", logs)
    wrong = checked.of(Outcome.CONTRADICTS)
    assert [each.stated.line for each in wrong] == contradictions
    assert all(each.stated.what is What.THROUGHPUT for each in wrong)
    assert {each.stated.line for each in checked.of(Outcome.AGREES)} == agreeing


def test_the_verb_prints_both_places(
    check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check("Batch size 99 on 4 GPUs.\n", train=log_of())
    assert main(["verify", "--text", str(tmp_path / "README.md")]) == ExitCode.REGRESSION
    shown = " ".join(capsys.readouterr().out.split())
    assert "batch: README.md:1 states 99 (Batch size 99); train.log:2 says 8" in shown
    assert main(["verify", "--text", str(tmp_path / "README.md"), "--json"]) == ExitCode.REGRESSION
    told = json.loads(capsys.readouterr().out)
    assert told["logs"] == ["train.log"]
    batch = next(each for each in told["findings"] if each["what"] == "batch")
    assert batch["outcome"] == "contradicts"
    assert (batch["stated"]["line"], batch["compared_with"][0]["line"]) == (1, 2)


@pytest.mark.parametrize("arguments", [["--text", "missing.md"], ["--log", "x.log"]])
def test_what_cannot_be_checked_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) in (ExitCode.USAGE, ExitCode.UNREADABLE)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("speed", "outcome"),
    [("64 samples/s", Outcome.AGREES), ("90.5 images/sec", Outcome.CONTRADICTS)],
)
def test_a_speed_in_words(check: Check, speed: str, outcome: Outcome) -> None:
    checked = check(f"It reaches {speed}.\n", train=log_of())
    (finding,) = checked.findings
    assert (finding.stated.what, finding.outcome) == (What.THROUGHPUT, outcome)


def test_a_given_file_that_is_no_log_is_named(
    check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check("Batch size 8 on 4 GPUs.\n")
    text, other = tmp_path / "README.md", tmp_path / "notes.log"
    other.write_text("no figures\n")
    assert main(["verify", "--text", str(text), "--log", str(other)]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "no training log that profkit knows: notes.log" in shown
    assert "give one with --log" not in shown
    assert main(["verify", "--text", str(text), "--log", str(tmp_path)]) == ExitCode.USAGE
    assert "not a file" in capsys.readouterr().err
