"""Each grammar is recognised by its content, and the parsed values equal the planted ones."""

from __future__ import annotations

import pytest

from profkit.importers.logs.assemble import GRAMMARS, load_grammars, parse_log
from profkit.importers.logs.formats.key_values import DIALECTS
from profkit.importers.logs.lines import NO_MEAN, NO_RANKS, REPEATED
from profkit.importers.logs.parsed import Mean, ParsedLog
from profkit.importers.logs.placing import place_steps, world_size
from tests.importers.logs.samples import (
    BATCH,
    SAMPLES,
    STEP_S,
    STEPS,
    Sample,
    mean,
    mean_data_s,
    step_time,
)
from tests.importers.logs.trainers import HELD_OUT, LINES, TRAINERS


def parse(data: bytes, name: str = "") -> list[ParsedLog]:
    return parse_log(lambda: [data], name)


def only(sample: Sample) -> ParsedLog:
    (log,) = parse(sample.data, sample.name)
    return log


def test_every_grammar_loads_and_has_a_sample() -> None:
    _, broken = GRAMMARS.load_all()
    assert not broken
    general = {"airank", "key_values", "timestamps"}
    known = {*GRAMMARS.names(), *(dialect.name for dialect in DIALECTS)} - general
    assert {sample.grammar for sample in SAMPLES.values()} <= known
    assert set(GRAMMARS.names()) - general <= {sample.grammar for sample in SAMPLES.values()}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_log_gives_the_steps_that_it_was_made_from(name: str) -> None:
    sample = SAMPLES[name]
    log = only(sample)
    assert log.grammar == sample.grammar
    assert world_size(log) == sample.world_size
    assert log.mean_step_s == pytest.approx(sample.step_s, rel=3e-3)
    assert log.mean_throughput == pytest.approx(sample.throughput, rel=3e-3)
    assert mean_data_s(log) == (
        None if sample.data_s is None else pytest.approx(sample.data_s, rel=1e-2)
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sound_log_has_no_flags(name: str) -> None:
    expected = {
        "an update skipped, because gradients were not finite",
        "a partial last batch, which distorts the throughput at the epoch's end",
    }
    assert {flag.text for flag in only(SAMPLES[name]).flags} <= expected


@pytest.mark.parametrize("name", SAMPLES)
def test_each_grammar_is_the_only_one_that_knows_its_lines(name: str) -> None:
    sample = SAMPLES[name]
    special = [each for each in load_grammars().values() if not each.settle]
    for line in sample.text.splitlines():
        knowing = {grammar.name for grammar in special if grammar.matches(line)} - {"airank"}
        assert knowing <= {sample.grammar}


def test_cumulative_means_come_apart_into_the_windows_between_the_lines() -> None:
    log = only(SAMPLES["paddleclas_2022"])
    assert log.times is Mean.EPOCH
    assert [each.steps for each in log.records[:3]] == [6, 10, 10]
    assert log.records[0].step_s == pytest.approx(mean(5, 10), abs=1e-5)
    for record in log.records[1:]:
        assert record.step_s == pytest.approx(mean(record.step - 9, record.step), abs=1e-4)


def test_the_reset_of_the_meters_is_seen_where_every_step_is_printed() -> None:
    log = only(SAMPLES["paddleclas_2020"])
    assert {each.steps for each in log.records} == {1}
    for record in log.records[1:]:
        assert record.step_s == pytest.approx(step_time(record.step), rel=1e-3)
    assert log.warm_up == 5


def test_a_second_epoch_begins_its_means_anew() -> None:
    first = SAMPLES["paddleclas_2022"].text
    (log,) = parse(
        (
            first + first.replace("epoch:0 ", "epoch:1 ").replace("2024/03/05 06", "2024/03/05 07")
        ).encode()
    )
    assert log.mean_step_s == pytest.approx(mean(5, 190), rel=1e-4)
    assert [each.steps for each in log.records].count(6) == 2
    assert [each.index for each in log.records] == sorted({each.index for each in log.records})


def test_means_over_the_whole_run_add_up_to_the_last_one() -> None:
    log = only(SAMPLES["dllogger_maskrcnn"])
    assert sum(each.steps for each in log.records) == 200
    assert sum(each.steps * (each.step_s or 0) for each in log.records) == pytest.approx(
        200 * 0.5, rel=1e-4
    )


def test_a_partial_last_batch_is_no_slow_step() -> None:
    sample = SAMPLES["dllogger_pytorch"]
    lines = sample.text.splitlines()
    last = next(place for place, line in enumerate(lines) if "Iteration: 200 " in line)
    lines[last] = lines[last].split("total_ips :")[0] + "total_ips : 12.00 img/s"
    (log,) = parse("\n".join(lines).encode() + b"\n")
    assert log.records[-1].step_s == pytest.approx(step_time(199), rel=0.01)
    assert log.records[-1].samples == pytest.approx(12 * step_time(199), rel=0.01)
    assert "a partial batch" in " ".join(str(flag) for flag in log.flags)


def test_epochs_that_state_their_mean_count_where_lines_are_one_step_in_twenty() -> None:
    log = only(SAMPLES["paddlevideo_with_end"])
    assert log.mean_step_s == 0.52
    assert {each.steps for each in log.records} == {1}


def test_words_vary_from_window_to_window() -> None:
    log = only(SAMPLES["paddlenlp_transformer"])
    assert log.unit == "words"
    assert log.records[5].samples == pytest.approx(BATCH * 10, rel=1e-4)


def test_skipped_updates_are_counted_and_lines_are_steps() -> None:
    log = only(SAMPLES["dllogger_bert"])
    assert [each.index for each in log.records] == list(range(60))
    assert log.records[-1].skipped == 5


def test_stated_results_are_kept_with_how_they_were_got() -> None:
    stated = {each.what: each for each in only(SAMPLES["dllogger_pytorch"]).stated}
    assert stated["throughput"].how.startswith("arithmetic mean")
    assert stated["data time"].value == 0.0625
    assert {each.what: each.value for each in only(SAMPLES["paddleseg"]).stated} == {
        "avg_ips": 76.19
    }


def test_marks_alone_are_a_log_without_steps() -> None:
    (log,) = parse(
        b"AI-Rank-log 1621335959.198982 avg_ips:76.19images/sec\nAI-Rank-log 1621335959.2 "
        b"target_quality_time:82322.66sec\n"
    )
    assert (log.grammar, log.records) == ("airank", ())
    assert {each.what: each.value for each in log.stated} == {
        "avg_ips": 76.19,
        "target_quality_time": 82322.66,
    }


def test_a_user_says_how_many_samples_a_step_has() -> None:
    text = SAMPLES["mmcv"].text.replace("samples_per_gpu", "unknown")
    (log,) = parse(text.encode())
    assert log.mean_throughput is None
    (log,) = parse_log(lambda: [text.encode()], samples_per_step=7)
    assert log.mean_throughput == pytest.approx(7 / STEP_S, rel=1e-3)


def test_what_no_grammar_knows_is_no_log() -> None:
    assert parse(b"hello\nworld\n") == []
    assert parse(b"") == []


def test_openmmlab_prints_in_several_ways() -> None:
    shapes = (
        (
            "2024-03-05 06:07:{second:02d},274 - mmdet - INFO - Epoch [1][{step}/7330]\t"
            "lr: 9.653e-03, eta: 0:09:03, time: 0.200, data_time: 0.050, memory: 3, loss: 2.1"
        ),
        (
            "2024/03/05 06:07:{second:02d} - mmengine - INFO - Epoch(train)  [1][{step:4d}/7330]  "
            "lr: 1.0e-02  eta: 0:09:03  time: 0.2000  data_time: 0.0500  memory: 3  loss: 2.1"
        ),
        (
            "03/05 06:07:{second:02d} - mmengine - INFO - Iter(train) [{step:4d}/7330]  base_lr: "
            "1.0e-02 lr: 1.0e-02  eta: 0:09:03  time: 0.2000  data_time: 0.0500  memory: 3  "
            "loss: 2.1"
        ),
    )
    for shape in shapes:
        text = "".join(
            shape.format(step=50 * line, second=10 * line) + "\n" for line in range(1, 5)
        )
        (log,) = parse(text.encode())
        assert (log.grammar, [each.steps for each in log.records]) == ("mmcv", [50] * 4)
        assert log.mean_step_s == pytest.approx(0.2)
        assert mean_data_s(log) == pytest.approx(0.05)


def test_cards_that_split_a_model_share_its_samples() -> None:
    log = only(SAMPLES["megatron"])
    assert (log.metadata.world_size, log.metadata.data_ranks) == (8, 2)
    assert (log.metadata.batch_size, log.metadata.global_batch_size) == (BATCH // 2, BATCH)
    assert log.metadata.precision == "bf16"
    assert log.metadata.knobs == {
        "context_parallel": "1",
        "tensor_parallel": "2",
        "pipeline_parallel": "2",
    }
    assert set(place_steps(log).samples.tolist()) == {BATCH // 2}


def test_a_batch_smaller_than_the_number_of_cards_is_kept() -> None:
    text = SAMPLES["megatron"].text.replace("world size: 8,", "world size: 96,")
    (log,) = parse(text.encode())
    placed = place_steps(log)
    seconds = (placed.end_ns - placed.start_ns).sum() / 1e9
    assert 2 * placed.samples.sum() / seconds == pytest.approx(BATCH / STEP_S, rel=1e-3)


def test_the_last_value_of_each_timer_is_kept_and_none_are_added() -> None:
    stated = {each.what: each for each in only(SAMPLES["megatron"]).stated}
    assert set(stated) == {"timer forward-backward", "timer forward-compute", "timer optimizer"}
    assert stated["timer forward-backward"].value == STEPS - 1 + 400
    assert "380.1 the fastest" in stated["timer forward-backward"].how
    stated = {each.what: each for each in only(SAMPLES["deepspeed"]).stated}
    assert stated["timer bwd"].value == 67.97
    assert stated["timer bwd_inner"].value == 50.4
    assert stated["throughput"].value == BATCH / STEP_S


def test_timers_of_each_rank_give_the_slowest_and_the_fastest() -> None:
    lines = SAMPLES["megatron"].text.splitlines()[:3]
    lines += ["times across ranks (ms):", "  forward-backward:"]
    lines += [f"     rank {rank:2d}: {100 + rank}.50" for rank in range(4)]
    (log,) = parse("\n".join(lines).encode() + b"\n")
    (timer,) = log.stated
    assert (timer.what, timer.value) == ("timer forward-backward", 103.5)
    assert "100.5 the fastest" in timer.how


def test_timers_outside_of_training_steps_are_no_result() -> None:
    lines = SAMPLES["megatron"].text.splitlines()
    lines[3:3] = ["    save-checkpoint ................................: (24895.07, 24895.13)"]
    lines[1:1] = ["    model-and-optimizer-setup ......................: (1020.90, 1022.97)"]
    (log,) = parse("\n".join(lines).encode() + b"\n")
    assert {each.what for each in log.stated} == {
        "timer forward-backward",
        "timer forward-compute",
        "timer optimizer",
    }


def test_the_elapsed_time_of_a_fork_with_a_mean_is_that_of_the_line() -> None:
    text = SAMPLES["megatron"].text.replace(" | throughput per GPU", "/777.7 | throughput per GPU")
    (log,) = parse(text.encode())
    assert log.mean_step_s == pytest.approx(STEP_S, rel=1e-3)


def test_the_pipeline_engine_states_the_time_of_its_steps() -> None:
    log = only(SAMPLES["deepspeed_pipeline"])
    assert [each.step for each in log.records] == list(range(10, STEPS + 1, 10))
    assert log.records[3].step_s == pytest.approx(mean(30, 39), abs=1e-3)
    assert log.records[3].lr == 0.001
    assert log.records[3].loss is not None


def test_a_job_that_was_restarted_from_a_checkpoint_is_another_run() -> None:
    lines = SAMPLES["megatron"].text.splitlines()
    first, second = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    text = "\n".join([*first, lines[0], *second]) + "\n"
    runs = parse(text.encode())
    assert len(runs) == 2
    assert all(each.metadata.world_size == 8 for each in runs)


def test_steps_that_are_not_finite_are_flagged() -> None:
    text = SAMPLES["megatron"].text.replace("nan iterations:   0", "nan iterations:   1", 1)
    (log,) = parse(text.encode())
    assert any("not finite" in flag.text for flag in log.flags)


@pytest.mark.parametrize("name", [*TRAINERS, *HELD_OUT])
def test_a_trainers_lines_of_names_and_values_are_read(name: str) -> None:
    case = {**TRAINERS, **HELD_OUT}[name]
    (log,) = parse(case.text.encode(), name)
    assert len(log.records) == LINES
    assert log.mean_step_s == pytest.approx(case.step_s, rel=1e-2)
    assert mean_data_s(log) == (None if case.data_s is None else pytest.approx(case.data_s, 2e-2))
    if case.batch is None:
        assert log.mean_throughput is None
    else:
        assert log.mean_throughput == pytest.approx(case.batch / case.step_s, rel=2e-2)
        assert log.unit in {case.unit, "images"}


def test_what_a_trainers_line_does_not_state_is_not_said() -> None:
    (log,) = parse(TRAINERS["dlrm"].text.encode())
    texts = [flag.text for flag in log.flags]
    assert NO_RANKS in texts
    assert NO_MEAN in texts
    assert log.times is Mean.UNSAID


def test_lines_of_other_ranks_and_of_evaluations_count_once() -> None:
    (log,) = parse(TRAINERS["torchtitan_of_all_ranks"].text.encode())
    assert any(REPEATED in flag.text for flag in log.flags)
    assert parse(b"step 10: val loss 2.0, time 3.1 s, 10 samples/s, eval\n" * 3) == []


def test_a_throughput_of_one_step_in_many_is_flagged() -> None:
    """A release of PaddleNLP divides the samples of one step by the time of ten."""
    case = TRAINERS["paddlenlp_trainer"]
    (log,) = parse(case.text.replace("second: 16.000", "second: 1.600").encode())
    assert log.mean_throughput == pytest.approx(16.0, rel=1e-2)
    assert any("contradicts the step time" in flag.text for flag in log.flags)


def test_times_of_all_steps_since_the_line_before_are_divided() -> None:
    (log,) = parse(HELD_OUT["marian"].text.encode())
    assert any("all steps since the line before" in flag.text for flag in log.flags)


def test_progress_bars_of_downloads_are_no_training() -> None:
    assert parse(b"100%|####| 227/227 [00:00<00:00, 7155.63it/s]\n" * 3) == []
