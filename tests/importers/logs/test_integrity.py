"""Doubtful figures are flagged, with the lines that show them."""

from __future__ import annotations

import pytest

from profkit.importers.logs.assemble import parse_log
from profkit.importers.logs.parsed import ParsedLog
from tests.importers.logs.samples import SAMPLES, STEP_S


def parse(text: str, name: str = "") -> list[ParsedLog]:
    return parse_log(lambda: [text.encode()], name)


def flags(log: ParsedLog) -> str:
    return "\n".join(map(str, log.flags))


def test_two_runs_in_one_file_are_two_runs() -> None:
    text = SAMPLES["dllogger_tensorflow"].text
    first, second = parse(text + text.replace("(0, ", "(0, "), "tf_gpu2_fp32_bs40.txt")
    assert len(first.records) == len(second.records) == 200
    assert "the file holds 2 runs; this is the first (lines 2, 201)" in flags(first)
    assert "this is the second" in flags(second)
    assert first.mean_step_s == pytest.approx(STEP_S, rel=1e-3)
    assert [each.line for each in first.stated] < [each.line for each in second.stated]


def test_runs_too_far_apart_for_one_configuration_say_so() -> None:
    lines = [
        f"DLL 2024-03-05 06:07:08.1 - (0, {200 + step}) total_ips : {speed}"
        for speed in (100.0, 190.0)
        for step in range(50)
    ]
    first, second = parse("\n".join(lines) + "\n", "tf_gpu1_amp_bs40.txt")
    assert "differ 1.90 x in throughput" in flags(first)
    assert "differ 1.90 x in throughput" in flags(second)


def test_a_run_on_one_card_and_one_on_eight_are_no_contradiction() -> None:
    """As in NVIDIA's MXNet benchmark: eight cards have eight times the throughput."""
    one = SAMPLES["dllogger_mxnet"].text.replace("gpus : [0, 1]", "gpus : [0]")
    eight = SAMPLES["dllogger_mxnet"].text.replace(
        "gpus : [0, 1]", "gpus : [0, 1, 2, 3, 4, 5, 6, 7]"
    )
    eight = eight.replace("batch_size : 80", "batch_size : 640").replace(
        "train.ips : ", "train.ips : 9"
    )
    for log in parse(one + eight):
        assert "the runs in the file differ" not in flags(log)
    again = SAMPLES["dllogger_mxnet"].text.replace("train.ips : ", "train.ips : 9")
    for log in parse(SAMPLES["dllogger_mxnet"].text + again):
        assert "in throughput per card" in flags(log)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bash run_benchmark.sh sp 32 fp32 2", "asks for a batch of 32, the log shows 40"),
        ("bash run_benchmark.sh sp 40 amp 2", ""),
        ("python train.py --batch-size 32", "asks for a batch of 32, the log shows 40"),
        ("python train.py --batch-size=160", ""),  # of all four cards
        ("python train.py --amp", ""),
        ("bash run_benchmark.sh mp 160 fp32 2", "asks for precision fp32, the log says amp"),
    ],
)
def test_a_command_that_contradicts_its_log_is_flagged(command: str, said: str) -> None:
    (log,) = parse(f"+ {command}\n" + SAMPLES["dllogger_pytorch"].text)
    assert said in flags(log)
    if not said:
        assert "the command asks" not in flags(log)


def test_a_notice_about_an_option_is_no_command() -> None:
    text = SAMPLES["dllogger_pytorch"].text.replace("amp : True", "amp : False")
    (log,) = parse("| NOTICE: your device may support faster training with --amp\n" + text)
    assert "the command asks" not in flags(log)
    (log,) = parse("+ python main.py --amp --lr 1\n" + text)
    assert "the command asks for precision amp, the log says fp32" in flags(log)


def test_psenet_trains_in_fp32_whatever_its_name_says() -> None:
    text = SAMPLES["psenet"].text
    (log,) = parse(text, "psenet_mp_fp16_bs40.txt")
    assert "the log says precision fp32, the file's name says amp" in flags(log)
    (log,) = parse(text.replace("Loss: 0", "Loss: 9", 1))
    assert "a loss above 1" in flags(log)


def test_parameters_printed_again_begin_a_run() -> None:
    text = SAMPLES["dllogger_mxnet"].text
    again = text.replace("Epoch: 0 ", "Epoch: 1 ")
    assert len(parse(text + again)) == 2


def test_each_run_of_a_file_has_its_own_cards_batch_and_results() -> None:
    """As in NVIDIA's MXNet benchmark, whose log is of one card first and of eight then."""
    one = SAMPLES["dllogger_mxnet"].text
    eight = (
        one.replace("gpus : [0, 1]", "gpus : [0, 1, 2, 3, 4, 5, 6, 7]")
        .replace("batch_size : 80", "batch_size : 640")
        .replace("train.ips : ", "train.ips : 9")
    )
    first, second = parse(one + eight)
    assert (first.metadata.world_size, first.metadata.global_batch_size) == (2, 80)
    assert (second.metadata.world_size, second.metadata.global_batch_size) == (8, 640)
    assert first.mean_step_s == pytest.approx(STEP_S, rel=1e-2)
    assert (
        [each.value for each in first.stated] == [each.value for each in second.stated] == [160.0]
    )


def test_one_stray_step_number_is_left_out_and_makes_no_run() -> None:
    (log,) = parse(SAMPLES["paddleseg"].text.replace("iter: 100/", "iter: 900/"))
    assert "fits neither the line before nor the one after" in flags(log)
    assert log.mean_step_s == pytest.approx(STEP_S, rel=1e-3)


def test_a_beginning_of_another_day_is_flagged() -> None:
    (log,) = parse("2024-01-01 00:00:00 - mmseg - INFO - config\n" + SAMPLES["mmcv"].text)
    assert "the file's beginning is 64 days from its records" in flags(log)


def test_a_clock_that_jumps_between_records_is_flagged() -> None:
    sample = SAMPLES["paddleseg"].text.splitlines()
    late = [
        line.replace("2024-03-05", "2024-03-09") if place > 12 else line
        for place, line in enumerate(sample)
    ]
    (log,) = parse("\n".join(late) + "\n")
    assert "the clock jumps ahead" in flags(log)


def test_a_name_that_contradicts_the_log_is_flagged() -> None:
    (log,) = parse(SAMPLES["dllogger_pytorch"].text, "pytorch_gpu4_fp32_bs40.txt")
    assert "the log says precision amp, the file's name says fp32" in flags(log)
    (log,) = parse(SAMPLES["dllogger_pytorch"].text, "pytorch_gpu3_amp_bs40.txt")
    assert "the log says 4 cards, the file's name says 3" in flags(log)
    (log,) = parse(SAMPLES["dllogger_pytorch"].text, "pytorch_gpu4_amp_bs96.txt")
    assert "the log says 40 samples per card, the file's name says 96" in flags(log)
    (log,) = parse(SAMPLES["paddleclas_2022"].text, "paddle_gpu4_fp32_bs96.txt")
    assert "the log says 40 samples per card, the file's name says 96" in flags(log)
    assert log.mean_throughput == pytest.approx(80, rel=0.01)
    (log,) = parse(SAMPLES["mxnet_2020"].text, "mxnet_gpu1_gpu8_fp32_bs40.txt")
    assert "speaks of runs on 1 and 8 cards" in flags(log)


def test_a_name_that_counts_several_nodes_is_no_contradiction() -> None:
    (log,) = parse(SAMPLES["paddleclas_2022"].text, "paddle_gpu32_fp32_bs40.txt")
    assert log.metadata.world_size == 32
    assert "cards" not in flags(log)


def test_an_evaluation_booked_as_data_time_is_flagged() -> None:
    lines = SAMPLES["mmcv"].text.splitlines()
    lines[10:10] = ["2024-03-05 06:07:51,000 - mmseg - INFO - Saving checkpoint at 60 iterations"]
    lines[11] = lines[11].replace(
        "time: 0.500, data_time: 0.0625", "time: 4.500, data_time: 4.0625"
    )
    (log,) = parse("\n".join(lines) + "\n")
    assert (
        "1 x an evaluation or a checkpoint that the next line includes; what it takes longer than "
        "usual counts as other (line 12)" in flags(log)
    )


def test_an_accuracy_below_zero_is_flagged() -> None:
    (log,) = parse(SAMPLES["paddleclas_2022"].text.replace("top5:  0.2000", "top5: -0.2000"))
    assert "19 x an accuracy below zero: the metric is broken" in flags(log)


def test_a_partial_last_batch_that_spoils_the_stated_throughput_is_flagged() -> None:
    (log,) = parse(SAMPLES["paddleclas_2021"].text)
    assert "a partial last batch" in flags(log)
    assert log.mean_throughput == pytest.approx(SAMPLES["paddleclas_2021"].throughput, rel=1e-3)


def test_a_stated_mean_that_the_records_do_not_give_is_flagged() -> None:
    text = SAMPLES["dllogger_pytorch"].text
    (log,) = parse(
        text[: text.index("Summary")]
        + "Summary: train.loss : 6.4  train.total_ips : 500.00 img/s\n"
    )
    assert "states a mean throughput of 500.00 images/s; its records give" in flags(log)
    assert "its steady steps give 320.0" in flags(log)


def test_figures_of_one_line_that_contradict_each_other_are_flagged() -> None:
    (log,) = parse(SAMPLES["paddleseg"].text.replace("ips: 80.0000", "ips: 30.0000", 1))
    assert "1 x a throughput that contradicts the step time of its line" in flags(log)


def test_step_times_that_are_not_those_of_the_clock_are_flagged() -> None:
    text = SAMPLES["dllogger_tensorflow"].text.replace("batch_size : 40", "batch_size : 400")
    (log,) = parse(text, "tf_gpu2_fp32.txt")
    assert "its step times are 10.0 x the time between its timestamps" in flags(log)


def test_steps_too_fast_are_flagged() -> None:
    text = SAMPLES["dllogger_tensorflow"].text
    one = text.splitlines()[50]
    (log,) = parse(text.replace(one, one.replace("total_ips : 1", "total_ips : 91")))
    assert "1 x a step in less than 40 % of the usual time (line 51)" in flags(log)


def test_a_run_that_ends_early_says_where() -> None:
    text = SAMPLES["paddleseg"].text
    (log,) = parse("\n".join(text.splitlines()[:12]) + "\n")
    assert "the last record is of step 90 of 200 (line 12)" in flags(log)


def test_a_run_that_was_killed_says_by_what() -> None:
    (log,) = parse(
        SAMPLES["paddleclas_2022"].text
        + "LAUNCH INFO 2024-03-05 06:10:00,001 Terminating with signal 15\n"
    )
    assert log.aborted == "the log says: terminating with signal 15"


def test_records_of_other_processes_are_left_out() -> None:
    lines = [
        f"[1,{rank}]<stdout>:{line.split('>:', 1)[-1]}"
        for line in SAMPLES["dllogger_mxnet"].text.splitlines()
        for rank in (0, 1)
    ]
    (log,) = parse("\n".join(lines) + "\n")
    assert len(log.records) == 20
    assert "20 x a record of another process; excluded" in flags(log)


def test_a_loss_that_is_not_a_number_is_flagged() -> None:
    (log,) = parse(SAMPLES["dllogger_pytorch"].text.replace("train.loss : 7.0", "train.loss : nan"))
    assert "a loss that is not a number (line 2)" in flags(log)


def test_lines_that_share_a_timestamp_are_flagged() -> None:
    lines = SAMPLES["paddleseg"].text.splitlines()
    lines[5] = lines[4][:19] + lines[5][19:]
    (log,) = parse("\n".join(lines) + "\n")
    assert "with the timestamp of the one before" in flags(log)
