"""The loop of all workloads: batches, broken samples, its end, and its reports."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.tracking.tracker import Tracker
from profkit.rank import Rank
from profkit.run.ranks import Team, find_endpoint, rank_environment
from profkit.vocab import EventKind
from profkit.workloads.base import Settings
from profkit.workloads.datasets.generated import Picture
from profkit.workloads.datasets.image_tree import check_tree
from profkit.workloads.datasets.imagenet import GeneratedSet, encode
from profkit.workloads.resnet50 import WORKLOAD
from profkit.workloads.resnet50.classify import Crops
from profkit.workloads.training.loop import NotFiniteError, Plan, Training
from profkit.workloads.training.prepare import Seat, check, final_config, find_data
from profkit.workloads.training.samples import GREY, BadSampleError, BadSamples, Guarded, as_raised
from profkit.workloads.training.sampling import Batches, run_length
from profkit.workloads.training.target import Target

# -- batches ---------------------------------------------------------------------------------------


@given(
    length=st.integers(1, 60),
    batch=st.integers(1, 8),
    world=st.integers(1, 4),
    epoch=st.integers(0, 3),
    parity=st.booleans(),
)
def test_ranks_share_out_every_global_batch(
    length: int, batch: int, world: int, epoch: int, parity: bool
) -> None:
    groups = [index % 2 for index in range(length)] if parity else None
    ranks = [
        Batches(length, batch, seed=3, rank=rank, world_size=world, groups=groups)
        for rank in range(world)
    ]
    whole = Batches(length, batch * world, seed=3, groups=groups)
    for sampler in (*ranks, whole):
        sampler.epoch = epoch
    parts = [list(sampler) for sampler in ranks]
    together = list(whole)
    assert (
        [len(part) for part in parts]
        == [len(sampler) for sampler in ranks]
        == [len(together)] * world
    )
    for number, keys in enumerate(together):
        assert [key for part in parts for key in part[number]] == keys
        assert {key[0] for key in keys} == {epoch}
        if groups is not None:
            assert len({groups[index] for _, index in keys}) == 1
    seen = [index for keys in together for _, index in keys]
    assert len(set(seen)) == len(seen)


def test_epochs_are_shuffled_differently_and_again_the_same() -> None:
    sampler = Batches(40, 4, seed=1)
    first = [[index for _, index in keys] for keys in sampler]
    sampler.epoch = 1
    assert [[index for _, index in keys] for keys in sampler] != first
    sampler.epoch = 0
    assert [[index for _, index in keys] for keys in sampler] == first


@pytest.mark.parametrize("groups", [None, [0] * 33 + [1] * 7])
def test_a_small_generated_set_is_repeated_until_its_epoch_has_fifty_steps(
    groups: list[int] | None,
) -> None:
    config = {"data": "generated", "global_batch_size": 8 * 16, "steps": 20, "epochs": 2}
    length = run_length(config, 40, groups)
    assert length.steps_per_epoch >= 50
    assert length.steps == 2 * length.steps_per_epoch
    own = run_length({**config, "data": "/data", "epochs": None}, 40, groups)
    assert (own.copies, own.steps_per_epoch, own.steps) == (1, 0, 20)
    ranks = []
    for rank in range(8):
        options: Any = {"seed": 1, "rank": rank, "world_size": 8, "groups": groups}
        ranks.append(list(Batches(40, 16, copies=length.copies, **options)))
    assert [len(batches) for batches in ranks] == [length.steps_per_epoch] * 8
    keys = [key for batches in ranks for batch in batches for key in batch]
    assert len(set(keys)) == len(keys)  # no crop is seen twice in an epoch
    assert {index for _, index in keys} == set(range(40))
    assert {visit for visit, _ in keys} == set(range(length.copies))


def test_the_next_epoch_of_a_repeated_set_has_other_crops() -> None:
    sampler = Batches(4, 2, copies=3)
    first = {key for batch in sampler for key in batch}
    sampler.epoch = 1
    assert not first & {key for batch in sampler for key in batch}


@given(start=st.integers(0, 12), parity=st.booleans())
def test_an_epoch_continues_after_its_first_batches(start: int, parity: bool) -> None:
    groups = [index % 2 for index in range(24)] if parity else None
    sampler = Batches(24, 2, seed=4, groups=groups)
    whole = list(sampler)
    sampler.start = start
    assert list(sampler) == whole[start:]


# -- samples ---------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for number in range(4):
        folder = tmp_path / "train" / f"n{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.JPEG").write_bytes(
            encode(
                GeneratedSet(classes=2, train_per_class=2, val_per_class=1),
                Picture("train", number % 2, number),
            )
        )
    return tmp_path


def test_a_sample_follows_from_seed_epoch_and_index_alone(tree: Path) -> None:
    crops = Crops(check_tree(tree), BadSamples(), 32, seed=5)
    image, label = crops[0, 3]
    assert (image.shape, str(image.dtype), label) == ((3, 32, 32), "float32", 1)
    assert np.array_equal(crops[0, 3][0], image)
    assert not np.array_equal(crops[1, 3][0], image)
    assert not np.array_equal(Crops(crops.index, crops.bad, 32, seed=6)[0, 3][0], image)


def test_a_grey_png_is_read_as_rgb_and_normalised(tmp_path: Path) -> None:
    (tmp_path / "train" / "n1").mkdir(parents=True)
    Image.new("L", (40, 30), 124).save(tmp_path / "train" / "n1" / "grey.PNG")
    image, label = Crops(check_tree(tmp_path), BadSamples(), 16, 0, training=False)[0, 0]
    assert (image.shape, label) == ((3, 16, 16), 0)
    assert np.allclose(image[0], (124 / 255 - 0.485) / 0.229, atol=1e-5)


@pytest.mark.parametrize("kept", [0, 10, 1500])
def test_a_broken_image_is_named_skipped_or_grey(tree: Path, kept: int) -> None:
    index = check_tree(tree)
    path = Path(index.samples[1][0])
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(BadSampleError, match=rf"{path.name}: not a whole image: .*--bad-samples"):
        Guarded(Crops(index, BadSamples(), 32, 0), BadSamples())[0, 1]
    skip, pad = BadSamples("skip"), BadSamples("pad")
    skipped: Any = Guarded(Crops(index, skip, 32, 0), skip)[0, 1]
    assert np.array_equal(skipped[0], Crops(index, skip, 32, 0)[0, 2][0])
    padded = Crops(index, pad, 32, 0)[0, 1]
    assert np.abs(padded[0]).max() < 0.02
    for bad in (skip, pad):
        (news,) = bad.news()
        assert news.path == str(path)
        assert news.why
        assert bad.news() == []
        bad.close()


@pytest.mark.parametrize(
    "text",
    [
        "a.jpg: torn; --bad-samples skip",
        (
            "Caught BadSampleError in worker 0.\nOriginal Traceback (most recent call last):\n"
            "  x\nprofkit.a.BadSampleError: a.jpg: torn; --bad-samples skip\n"
        ),
    ],
)
def test_a_workers_error_is_told_as_it_was_raised(text: str) -> None:
    assert str(as_raised(BadSampleError(text))) == "a.jpg: torn; --bad-samples skip"


def test_a_missing_image_is_grey_of_the_size_that_its_annotation_tells(tmp_path: Path) -> None:
    image = BadSamples("pad").image(tmp_path / "gone.jpg", (70, 50))
    assert (image.size, image.getpixel((0, 0))) == ((70, 50), GREY)


def test_a_set_of_nothing_but_broken_images_ends_with_a_message(tree: Path) -> None:
    index = check_tree(tree)
    for path, _ in index.samples:
        Path(path).write_bytes(b"")
    bad = BadSamples("skip")
    with pytest.raises(UnreadableError, match="bad samples in a row"):
        Guarded(Crops(index, bad, 32, 0), bad)[0, 1]


def test_workers_of_any_start_write_into_one_book(tmp_path: Path) -> None:
    bad = BadSamples("skip", tmp_path / "book")
    code = (
        "import sys; from pathlib import Path; "
        "from profkit.workloads.training.samples import BadSamples; "
        "BadSamples('skip', Path(sys.argv[1])).note('a\\tb', 'no\\nway')"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(bad.book)], check=True)
    assert len(bad.news()) == 2


def test_the_list_of_bad_samples_leaves_no_file_behind() -> None:
    bad = BadSamples("skip")
    book = bad.book
    assert not book.exists()
    bad.note("a", "no way")
    assert book.exists()
    assert len(bad.news()) == 1
    del bad
    assert not book.exists()


# -- the loop --------------------------------------------------------------------------------------


class FakeDriver:
    """Trains nothing; its losses are given."""

    lr = 0.25
    grad_scale = None

    has_loader = False
    tracker: Tracker | None = None
    """Gets the reports of hooks, as of a framework."""

    def __init__(self, losses: Sequence[float], epoch_length: int = 4) -> None:
        self.losses = list(losses)
        self.epoch_length = epoch_length
        self.evaluated = 0

    def _report(self, name: str, *given: Any, **options: Any) -> None:
        if self.tracker is not None:
            self.tracker.end(getattr(self.tracker, f"begin_{name}")(*given, **options))

    def batches(self, epoch: int, start: int = 0) -> Iterable[Any]:
        return range(start, self.epoch_length)

    def move(self, batch: Any) -> Any:
        self._report("copy")
        return batch

    def forward(self, batch: Any) -> Any:
        self._report("forward", with_gradients=True)
        return self.losses.pop(0)

    def backward(self, loss: Any) -> None:
        self._report("backward", "torch")

    def update(self, step: int) -> None:
        self._report("optimizer", 1)

    def value(self, loss: Any) -> float:
        return float(loss)

    def agree(self, stop: bool, loss: float) -> tuple[bool, float]:
        return stop, loss

    def evaluate(self) -> Mapping[str, float]:
        self.evaluated += 1
        self._report("forward", with_gradients=False)
        return {"top1": 0.1 * self.evaluated}

    def state(self) -> tuple[Any, Any]:
        return list(self.losses), "of this rank"

    def load_state(self, shared: Any, own: Any) -> None:
        assert own == "of this rank"
        self.losses = list(shared)


def _train(driver: FakeDriver, plan: Plan, bad: BadSamples | None = None) -> tuple[Any, MemorySink]:
    sink = MemorySink()
    driver.tracker = tracker = Tracker(Recorder(sink))
    given: Any = driver
    training = Training(given, plan, bad or BadSamples(), lambda step, steps, loss: None, tracker)
    outcome = training.run()
    tracker.finish()
    return outcome, sink


def test_steps_phases_epochs_and_losses_are_recorded() -> None:
    outcome, sink = _train(FakeDriver([5, 4, 3, 2, 1, 0]), Plan(6, batch_size=2))
    assert (outcome.steps, outcome.first_loss, outcome.last_loss, outcome.stopped) == (6, 5, 0, "")
    assert [(row[0], row[3], row[4], row[7]) for row in sink.rows["steps"]] == [
        (step, 2, 5 - step, step // 4) for step in range(6)
    ]
    assert {row[1] for row in sink.rows["spans"]} == {
        "data",
        "h2d",
        "forward",
        "backward",
        "optimizer",
        "other",
    }


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_the_run_and_says_where(value: float) -> None:
    with pytest.raises(
        NotFiniteError,
        match=r"loss is (nan|inf) at step 2 \(learning rate 0\.25, batch 3 a rank\)"
        r".*--lr.*--nan continue",
    ):
        _train(FakeDriver([2, 1, value, 1]), Plan(4, batch_size=3))
    outcome, _ = _train(FakeDriver([2, 1, value, 1]), Plan(4, stop_at_nan=False))
    assert outcome.steps == 4


@pytest.mark.parametrize(
    ("target", "steps"), [("loss<0.05", 30), ("loss<0.5x", 20), ("loss < 1e-9", 40)]
)
def test_a_run_stops_at_its_target(target: str, steps: int) -> None:
    losses = [1.0] * 10 + [0.3] * 10 + [0.01] * 20
    outcome, _ = _train(FakeDriver(losses), Plan(40, until=Target.parse(target)))
    assert outcome.steps == steps
    assert outcome.stopped.startswith(f"{target} reached at step {steps - 1} after") == (steps < 40)


def test_a_run_stops_when_its_time_is_up() -> None:
    outcome, _ = _train(FakeDriver([1] * 40), Plan(40, max_time=1e-9))
    assert (outcome.steps, outcome.stopped.split(" after")[0]) == (10, "--max-time reached")


def test_evaluation_is_a_phase_of_its_own_and_no_step() -> None:
    driver = FakeDriver([1] * 8)
    outcome, sink = _train(driver, Plan(8, evaluate=True, epoch_ends=True))
    assert (driver.evaluated, outcome.figures) == (2, {"top1": 0.2})
    assert [row[1:3] for row in sink.rows["spans"] if row[2] == "evaluation"] == [
        ("other", "evaluation")
    ] * 2
    noted = [(row[2], row[4]) for row in sink.rows["samples"]]
    assert noted == [("evaluation:top1", 0.1), ("evaluation:top1", 0.2)]
    assert len(sink.rows["steps"]) == 8
    ends = [row[6] for row in sink.rows["spans"] if row[2] == "evaluation"]
    assert ends[1] > sink.rows["steps"][-1][2]  # the last one is after all steps


def test_a_loop_without_a_tracker_trains_the_same() -> None:
    losses = [3.0, 2.0, 1.0]
    given: Any = FakeDriver(losses)
    outcome = Training(given, Plan(3), BadSamples(), lambda step, steps, loss: None).run()
    assert (outcome.steps, outcome.first_loss, outcome.last_loss) == (3, 3.0, 1.0)


def test_an_epoch_without_a_whole_batch_is_an_error() -> None:
    with pytest.raises(
        ProfkitError, match="no whole batch of 9 on each rank; choose a smaller --batch-size"
    ):
        _train(FakeDriver([], epoch_length=0), Plan(3, batch_size=9))


def test_bad_samples_are_told_and_recorded_while_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = BadSamples("skip", tmp_path / "book")
    bad.note("train/a.jpg", "truncated")
    _, sink = _train(FakeDriver([1] * 4), Plan(4), bad)
    assert [row[2:5] for row in sink.rows["events"]] == [
        (EventKind.BAD_SAMPLE, "train/a.jpg", "truncated")
    ]
    assert "bad sample: train/a.jpg: truncated" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["top1<1", "loss>1", "loss<", "loss<x", "loss<-1", "top1>", "top1>0.1x"]
)
def test_a_target_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--until .* is not understood; write loss<0\.05"):
        Target.parse(text, ("top1",))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("miou>0.78", "the quality figures here are: top1"),
        ("top1>71.1", r"shares from 0 to 1; write top1>0\.711"),
    ],
)
def test_a_target_that_no_figure_can_reach_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Target.parse(text, ("top1",))


def test_the_figure_of_a_target_may_have_its_published_name() -> None:
    target = Target.parse(" mIoU > 0.78", ("mean_iou", "pixel_accuracy"))
    assert target is not None
    assert (target.figure, target.value) == ("mean_iou", 0.78)


def test_a_run_stops_at_a_quality_and_says_when_it_was_reached() -> None:
    driver = FakeDriver([1.0] * 40, epoch_length=7)
    target = Target.parse("top1>0.25", ("top1",))
    plan = Plan(40, until=target, evaluate=True, evaluate_every=5)
    outcome, sink = _train(driver, plan)
    assert (outcome.steps, driver.evaluated) == (15, 3)
    assert outcome.figures["top1"] == pytest.approx(0.3)
    assert outcome.stopped.startswith("top1>0.25 reached at step 14 after ")
    assert "s evaluation (top1 0.3)" in outcome.stopped
    assert [row[2] for row in sink.rows["samples"]][-1] == "time_to_target_s"
    assert outcome.remarks == ()
    assert len(sink.rows["steps"]) == 15


def test_a_quality_that_is_not_reached_is_reported_with_the_best() -> None:
    driver = FakeDriver([1.0] * 20, epoch_length=7)
    plan = Plan(20, until=Target.parse("top1>0.9", ("top1",)), evaluate=True, epoch_ends=True)
    outcome, _ = _train(driver, plan)
    assert (outcome.steps, outcome.stopped) == (20, "")
    said = "top1>0.9 not reached in 20 steps; the best was top1 0.3 at step 19"
    assert outcome.remarks == (said,)


def test_no_step_is_evaluated_twice() -> None:
    driver = FakeDriver([1.0] * 8, epoch_length=4)
    _train(driver, Plan(8, evaluate=True, epoch_ends=True, evaluate_every=2))
    assert driver.evaluated == 4


# -- settings --------------------------------------------------------------------------------------


def test_reduced_sizes_are_named_and_the_rate_follows_the_global_batch() -> None:
    config = final_config(WORKLOAD, Settings("torch"), Seat(Rank(0, 4)))
    assert (config["batch_size"], config["global_batch_size"], config["lr"], config["device"]) == (
        8,
        32,
        0.1 * 32 / 256,
        "cpu",
    )
    assert config["reduced"] == "images of 128 px (published: 224), batch 8 (published: 128 or 256)"
    full = final_config(WORKLOAD, Settings("torch"), Seat(Rank(1, 8), gpu=1))
    assert (
        full["batch_size"],
        full["image_size"],
        full["reduced"],
        full["device"],
        full["pin"],
    ) == (128, 224, "", "cuda:1", True)


@pytest.mark.parametrize(
    ("settings", "on_gpu", "complaint"),
    [
        (Settings("torch", amp="fp16"), False, "--amp fp16 needs a GPU"),
        (Settings("paddle", amp="auto"), False, "Paddle has no mixed precision on a CPU"),
        (Settings("torch", amp="O2"), True, "--amp O2 is a level of Paddle's"),
        (Settings("torch", pin=True), False, "--pin needs a GPU"),
        (Settings("paddle", compile=True), True, "--compile"),
        (Settings("torch", dali="cpu", data="synthetic"), False, "exclude each other"),
        (
            Settings("torch", dali="cpu", bad_samples="skip"),
            False,
            "needs the framework's own loader",
        ),
        (Settings("torch", dali="gpu"), False, "--dali gpu needs a GPU to decode on"),
        (Settings("torch", autotune=True), False, "--autotune needs a GPU"),
        (Settings("torch", checkpoint_every=5), True, "--checkpoint-every needs --checkpoint"),
        (
            Settings("torch", dali="cpu", resume=Path("x")),
            False,
            "--resume needs the framework's own loader",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_else_done_instead(
    settings: Settings, on_gpu: bool, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        check(WORKLOAD, settings, on_gpu=on_gpu)


@pytest.mark.parametrize(
    ("settings", "on_gpu", "precision"),
    [
        (Settings("torch", amp="auto"), False, "bf16"),
        (Settings("torch", amp="auto"), True, "fp16"),
        (Settings("torch", amp="bf16"), True, "bf16"),
        (Settings("paddle", amp="O2"), True, "fp16"),
        (Settings("paddle"), False, "fp32"),
    ],
)
def test_the_precision_is_what_the_label_says(
    settings: Settings, on_gpu: bool, precision: str
) -> None:
    assert (
        final_config(WORKLOAD, settings, Seat(gpu=0 if on_gpu else None))["precision"] == precision
    )


def test_a_data_folder_that_is_not_there_is_named_with_what_is_expected() -> None:
    with pytest.raises(
        UnreadableError, match=r"/nowhere: no such folder; --data takes .*ImageNet folders"
    ):
        find_data(WORKLOAD, Settings("torch", data="/nowhere"))


def test_two_ranks_with_half_the_batch_train_as_one_with_all_of_it(tmp_path: Path) -> None:
    job = Path(__file__).parent / "jobs" / "shared_batch.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    endpoint = find_endpoint(Team(2))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(job), str(tmp_path)],
            env={**environment, **rank_environment(rank, 2, rank, 2, endpoint)},
        )
        for rank in range(2)
    ]
    alone = subprocess.run(
        [sys.executable, str(job), str(tmp_path)], env=environment, check=False
    ).returncode
    assert [alone, *(process.wait(300) for process in ranks)] == [0] * 3
    whole, *halves = (
        json.loads((tmp_path / name).read_text()) for name in ("1-0.json", "2-0.json", "2-1.json")
    )
    assert np.allclose(np.mean(halves, axis=0), whole, rtol=1e-4)
    assert whole[-1] < whole[0]
