"""The job that a log describes: precision, ranks, batches, settings, and what is no training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.errors import UnreadableError
from profkit.importers.base import Target
from profkit.importers.logs.assemble import parse_log
from profkit.importers.logs.parsed import ParsedLog
from profkit.importers.training_log import IMPORTER
from profkit.trace import Trace
from profkit.vocab import Phase
from tests.documents import report_text
from tests.importers.logs.samples import BATCH, SAMPLES, STEP_S, step_time

SEG = SAMPLES["paddleseg"].text


def parse(text: str, name: str = "") -> ParsedLog:
    (log,) = parse_log(lambda: [text.encode()], name)
    return log


def flags(log: ParsedLog) -> str:
    return "\n".join(map(str, log.flags))


def import_text(folder: Path, text: str, name: str = "some.log") -> Trace:
    path = folder / name
    path.write_text(text)
    (made,) = IMPORTER.read([path], Target(folder / "traces"))
    return Trace.open(made.run)


# -- precision -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "precision"),
    [
        ("dtype : float16  amp : False", "fp16"),
        ("amp : False  dtype : float16", "fp16"),
        ("dtype : bfloat16  amp : False", "bf16"),
        ("dtype : float32  amp : False", "fp32"),
        ("dtype : float32  amp : True", "amp"),
        ("fp16 : True  amp : False", "amp"),
        ("amp : False", "fp32"),
    ],
)
def test_an_option_that_is_off_rules_no_other_precision_out(stated: str, precision: str) -> None:
    text = SAMPLES["dllogger_mxnet"].text.replace("dtype : float32  amp : False", stated)
    assert parse(text).metadata.precision == precision


@pytest.mark.parametrize(
    ("stated", "precision"),
    [
        ("ppcls INFO:     use_amp : False\nppcls INFO:     level : O1", "fp32"),
        ("ppcls INFO:     use_amp : True\nppcls INFO:     level : O1", "amp"),
        ("ppcls INFO: AMP : \nppcls INFO:     level : O2", "amp"),
        ("INFO: use_amp : False\nINFO: use_pure_fp16 : True", "amp"),
        (" 'use_amp': False,\n 'use_pure_fp16': True,", "amp"),
        (" 'use_amp': False,\n 'use_pure_fp16': False,", "fp32"),
        ("Namespace(use_amp=True, seed=42)", "amp"),
        ("training_script_args: ['--use_amp', 'True', '--lr', '1e-4']", "amp"),
        ("PARAMETER momentum : 0.9  precision : fp32  use_tf_amp : True", "amp"),
        ("PARAMETER momentum : 0.9  precision : fp32  use_tf_amp : False", "fp32"),
        ("INFO:tensorflow:Precision = fp16", "amp"),
        ("INFO:tensorflow:Precision = fp32", "fp32"),
        ("2021-05-17 07:05:32 [INFO]  use amp to train", "amp"),
        ("Found inf or nan, current scale is: 16384.0, decrease to: 16384.0*0.5", "amp"),
    ],
)
def test_each_tool_states_its_precision_in_its_own_way(stated: str, precision: str) -> None:
    """A file's name that says the opposite is a contradiction, and never the precision."""
    name = "seg_amp.log" if precision == "fp32" else "seg_fp32.log"
    log = parse(f"{stated}\n{SAMPLES['paddleseg'].text}", name)
    assert log.metadata.precision == precision
    assert "precision" not in log.metadata.from_name
    assert f"the log says precision {precision}" in flags(log)


@pytest.mark.parametrize(
    "stated",
    [
        "Num GPUs 4",
        ":::NVLOGv0.2.3 None 1621940020.961197376 (runner.py:393) Num GPUs: 4",
        "ppcls INFO: Building DALI Train pipeline with num_shards: 4, num_gpus: 4",
    ],
)
def test_ranks_in_the_words_of_other_tools(stated: str) -> None:
    text = SAMPLES["dllogger_tensorflow"].text
    log = parse(f"{stated}\n{text}", "tf_gpu8_fp32.txt")
    assert log.metadata.world_size == 4
    assert "world_size" not in log.metadata.from_name


@pytest.mark.parametrize("words", ["keep_batchnorm_fp32 : True", "log_level: INFO", "an amp level"])
def test_other_words_state_no_precision(words: str) -> None:
    assert parse(f"{words}\n{SAMPLES['paddleseg'].text}").metadata.precision is None


def test_a_launcher_s_list_is_a_command() -> None:
    words = (
        "training_script_args: ['--config', 'a.yml', '--batch_size', '64', '--fp16', '--x', '1']"
    )
    log = parse(f"{words}\n{SAMPLES['paddleseg'].text}")
    assert log.metadata.command_batch == 64
    assert log.metadata.command_precision == "amp"
    assert "the command asks for a batch of 64" in flags(log)


def test_half_precision_and_amp_in_a_name_are_no_contradiction() -> None:
    text = SAMPLES["dllogger_mxnet"].text.replace("float32", "float16")
    for name in ("mxnet_gpu2_amp_bs40.txt", "mxnet_gpu2_fp16_bs40.txt"):
        assert "precision" not in flags(parse(text, name))
    assert "the log says precision fp16, the file's name says fp32" in flags(
        parse(text, "mxnet_gpu2_fp32_bs40.txt")
    )


def test_a_number_that_python_prints_with_its_type_is_no_precision() -> None:
    text = SAMPLES["paddleseg"].text
    assert parse("array([1.], dtype=float16)\n" + text).metadata.precision is None


# -- ranks -----------------------------------------------------------------------------------------


def test_a_stated_world_size_beats_the_name_and_is_said() -> None:
    text = SAMPLES["paddleseg"].text.replace("GPUs used: 2", "WORLD_SIZE: 1")
    log = parse(text, "seg_gpu8_fp32.log")
    assert log.metadata.world_size == 1
    assert "the log says 1 cards, the file's name says 8" in flags(log)


def test_one_card_of_a_node_is_no_reason_to_believe_the_name() -> None:
    text = SAMPLES["paddleseg"].text.replace("GPUs used: 2", "GPUs used: 1")
    assert parse(text, "seg_gpu8_fp32.log").metadata.world_size == 1


def test_a_rank_that_names_its_own_device_counts_no_cards() -> None:
    text = SAMPLES["tf_bert"].text
    log = parse("x.cc:1767] Adding visible gpu devices: 2\n" + text, "tf_bert_gpu8.log")
    assert log.metadata.world_size == 8
    log = parse("LAUNCH INFO 2022-12-01 14:08:01,831 devices: 0,1,2,3\n" + text, "x.log")
    assert log.metadata.world_size == 4


def test_cards_of_a_node_and_the_names_cards_are_both_in_the_report(tmp_path: Path) -> None:
    trace = import_text(tmp_path, SAMPLES["paddleseg"].text, "seg_gpu32_fp32_bs40.log")
    view = build_overview(trace)
    assert view.world_size == 32
    assert view.throughput.value == pytest.approx(32 * BATCH / STEP_S, rel=0.01)
    page = " ".join(report_text(view).split())
    assert "states the number of ranks" in page
    assert "(it states 2 cards of one node)" in page


def test_a_report_says_whose_throughput_it_shows(tmp_path: Path) -> None:
    page = report_text(build_overview(import_text(tmp_path, SAMPLES["paddleseg"].text)))
    assert "160.0 samples/s" in page
    assert "of all 2 ranks" in page
    assert "80.00 samples/s" in page
    assert "the log counts this rank alone" in page


def test_a_log_without_a_number_of_cards_is_of_one_rank_and_says_so(tmp_path: Path) -> None:
    text = SAMPLES["paddleseg"].text.replace("GPUs used: 2\n", "")
    page = report_text(build_overview(import_text(tmp_path, text)))
    assert "of one rank: the log does not say of how many" in " ".join(page.split())


# -- accumulation ----------------------------------------------------------------------------------


def bert(words: str, stated: float | None) -> str:
    """Return a log of one update per `STEP_S`, with these arguments and this own figure."""
    text = SAMPLES["dllogger_bert"].text.replace(f"++ expr {BATCH} / 4 / 1", words)
    own = f"training_sequences_per_second : {BATCH / STEP_S}"
    return text.replace(own, f"training_sequences_per_second : {stated}" if stated else "")


@pytest.mark.parametrize(
    ("batch", "times", "stated", "expected"),
    [
        (8, 5, 80.0, 40),  # the log's figure: five micro batches of 8
        (40, 5, 80.0, 40),  # the same: the batch is already the update's
        (40, 5, None, 40),  # an update's batch is a multiple of its accumulation
        (3, 5, None, 15),  # and 3 is not
        (8, 1, None, 8),
    ],
)
def test_accumulated_batches_count(
    batch: int, times: int, stated: float | None, expected: int
) -> None:
    words = f"--train_batch_size={batch} gradient_accumulation_steps={times}"
    log = parse(bert(words, stated), "bert_fp16_gpu1.log")
    assert log.metadata.batch_size == expected
    assert log.mean_throughput == pytest.approx(expected / STEP_S, rel=0.02)
    assert ("--samples-per-step" in flags(log)) is (batch == 3)


def test_a_batch_that_fits_no_stated_throughput_is_replaced_and_flagged() -> None:
    words = "--train_batch_size=7 gradient_accumulation_steps=5"
    log = parse(bert(words, 200.0), "bert_fp16_gpu1.log")
    assert log.mean_throughput == pytest.approx(200, rel=0.05)
    assert "neither the batch of 7 nor 5 of them fit the throughput" in flags(log)
    (mine,) = parse_log(
        lambda: [bert(words, 200.0).encode()], "bert_fp16_gpu1.log", samples_per_step=50
    )
    assert mine.mean_throughput == pytest.approx(50 / STEP_S, rel=0.02)


def test_a_batch_that_is_estimated_from_the_clock_is_not_stated() -> None:
    """Throughput times the time between two lines is near the batch, and never exactly it."""
    text = SAMPLES["tf_bert"].text.replace(f"++ expr {BATCH} / 4 / 1\n", "")
    log = parse(text, "tf_bert_fp16_bs4_gpu1.log")
    assert log.metadata.batch_size is None
    assert log.metadata.global_batch_size is None
    assert log.mean_throughput == pytest.approx(BATCH / STEP_S, rel=0.02)


# -- settings --------------------------------------------------------------------------------------


def test_a_run_has_the_settings_that_its_log_states(tmp_path: Path) -> None:
    stated = (
        "workers : 5  data_backend : dali-cpu  lr : 0.1  momentum : 0.9  seed : None  token : x"
    )
    text = SAMPLES["dllogger_pytorch"].text.replace("data : /x  ", f"data : /x  {stated}  ")
    config = import_text(tmp_path, text).manifest.config
    found = {name: config.get(name) for name in ("workers", "loader", "lr", "momentum", "seed")}
    assert found == {
        "workers": "5",
        "loader": "dali-cpu",
        "lr": "0.1",
        "momentum": "0.9",
        "seed": None,
    }
    assert "token" not in config


def test_a_learning_rate_that_changes_is_no_second_setting() -> None:
    log = parse("learning_rate: 0.01\n" + SAMPLES["paddleseg"].text + "learning_rate: 0.5\n")
    assert log.metadata.knobs["lr"] == "0.01"


# -- data and evaluation ---------------------------------------------------------------------------


def test_the_wait_for_data_follows_from_two_throughputs() -> None:
    text = SAMPLES["dllogger_pytorch"].text
    lines = []
    for line in text.splitlines():
        if "Iteration:" in line:
            head, _, total = line.partition("train.total_ips : ")
            rate = float(total.split()[0])
            compute = f"train.compute_ips : {rate / 0.75:.4f} img/s"
            lines.append(f"{head}{compute} train.total_ips : {total}")
        else:
            lines.append(line)
    log = parse("\n".join(lines) + "\n")
    for record in log.records:
        assert record.data_s == pytest.approx(0.25 * step_time(record.index), rel=0.01)


def mmcv_with_checkpoint() -> str:
    lines = SAMPLES["mmcv"].text.splitlines()
    lines[10:10] = ["2024-03-05 06:07:51,000 - mmseg - INFO - Saving checkpoint at 60 iterations"]
    lines[11] = lines[11].replace(
        "time: 0.500, data_time: 0.0625", "time: 4.500, data_time: 4.0625"
    )
    return "\n".join(lines) + "\n"


def test_an_evaluation_that_is_recognised_is_no_wait_for_data(tmp_path: Path) -> None:
    view = build_overview(import_text(tmp_path, mmcv_with_checkpoint()))
    parts = {part.name: part.step_ns.value for part in view.phases}
    assert parts[Phase.DATA.value] == pytest.approx(62.5e6, rel=0.01)
    windows = 19  # the first of 20 is warm-up
    assert parts[Phase.OTHER.value] == pytest.approx(4e9 / windows, rel=0.01)
    assert view.step_ns.value == pytest.approx((500 + 4000 / windows) * 1e6, rel=0.01)


@pytest.mark.parametrize("factor", [1.13, 1.19, 1.4])
def test_a_checkpoint_is_found_however_long_it_is(factor: float) -> None:
    """In an even log a window of a checkpoint stands out though it is little longer."""
    lines = SAMPLES["mmcv"].text.splitlines()
    lines[10:10] = ["2024-03-05 06:07:51,000 - mmseg - INFO - Saving checkpoint at 60 iterations"]
    lines[11] = lines[11].replace("time: 0.500", f"time: {0.5 * factor:.3f}")
    others = [each.other_s for each in parse("\n".join(lines) + "\n").records if each.other_s]
    assert others == pytest.approx([0.5 * (factor - 1)], abs=0.002)


def test_a_checkpoint_within_the_noise_is_not_told_apart() -> None:
    lines = SAMPLES["mmcv"].text.splitlines()
    for place in range(5, len(lines), 2):
        lines[place] = lines[place].replace("time: 0.500", "time: 0.560")
    lines[10:10] = ["2024-03-05 06:07:51,000 - mmseg - INFO - Saving checkpoint at 60 iterations"]
    lines[11] = lines[11].replace("time: 0.500", "time: 0.570").replace("0.560", "0.570")
    assert not any(each.other_s for each in parse("\n".join(lines) + "\n").records)


def test_long_windows_that_come_without_evaluations_as_well_are_none() -> None:
    """As with PaddleSeg, whose long windows are those in which an epoch begins."""
    lines = SAMPLES["mmcv"].text.splitlines()
    slow = "time: 1.500, data_time: 1.0625"
    for place in range(6, 24, 4):
        lines[place] = lines[place].replace("time: 0.500, data_time: 0.0625", slow)
    text = "\n".join(lines) + "\n"
    evaluated = text.replace(
        lines[14] + "\n", "Saving checkpoint at 1 iterations\n" + lines[14] + "\n"
    )
    log = parse(evaluated.replace(lines[15] + "\n", "Saving checkpoint\n" + lines[15] + "\n"))
    assert "an evaluation" not in flags(log)
    assert not any(each.other_s for each in log.records)


# -- refusals --------------------------------------------------------------------------------------


def test_a_last_batch_far_slower_than_the_others_is_partial_though_no_time_passed() -> None:
    """Lines that are held back have one timestamp, so that nothing tells the time of the last."""
    sample = SAMPLES["dllogger_pytorch"]
    lines = [line for line in sample.text.splitlines() if "Iteration: 199 " not in line]
    last = next(place for place, line in enumerate(lines) if "Iteration: 200 " in line)
    lines[last] = lines[last].split("total_ips :")[0] + "total_ips : 12.00 img/s"
    log = parse("\n".join(lines) + "\n")
    assert log.records[-1].partial
    assert log.mean_throughput == pytest.approx(sample.throughput, rel=0.01)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SAMPLES["paddleseg"].text.split("iter: 20/")[0], "1 line about training"),
        (
            re.sub(r"(?m)^2024\S+ \S+|(?<=batch_cost: )[\d.]+|(?<= ips: )[\d.]+", "nan", SEG),
            "none with a usable step time or throughput",
        ),
        (
            "\n".join(
                f"DLL 2024-03-05 06:07:{step:02d}.1 - Epoch: 0 Iteration: {step}  "
                "train.loss : 1.0  train.total_ips : nan img/s"
                for step in range(30)
            ),
            "none with",
        ),
    ],
)
def test_a_log_without_a_usable_figure_is_refused_in_one_line(
    text: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "empty.log"
    path.write_text(text)
    with pytest.raises(UnreadableError) as caught:
        list(IMPORTER.read([path], Target(tmp_path / "traces")))
    said = str(caught.value)
    assert why in said
    assert "empty.log" in said
    assert "\n" not in said
    assert not list((tmp_path / "traces").glob("*"))


def test_step_times_from_the_timestamps_are_flagged() -> None:
    """Where all figures are nan and the lines have timestamps, these are all that is left."""
    log = parse(re.sub(r"(?<=batch_cost: )[\d.]+|(?<= ips: )[\d.]+", "nan", SEG))
    assert "its step time is from the timestamps" in flags(log)


def test_a_run_of_one_line_is_left_out_and_the_others_say_so(tmp_path: Path) -> None:
    text = SAMPLES["dllogger_mxnet"].text
    start = next(line for line in text.splitlines() if "PARAMETER" in line)
    first = next(line for line in text.splitlines() if "Iteration: 9 " in line)
    path = tmp_path / "two.txt"
    path.write_text(f"{start}\n{first}\n{text}")
    (made,) = IMPORTER.read([path], Target(tmp_path / "traces"))
    assert any("run 1 of the 2 in the file has 1 usable line" in flag for flag in made.flags)
