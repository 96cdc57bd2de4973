"""Loops that are not conventional: their steps, their samples and their phases are known."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from profkit.instrument.batches import count_batch, count_samples
from profkit.instrument.tracking.pending import EVALUATION
from profkit.instrument.tracking.steps import MOST_ROUNDS
from profkit.vocab import EventKind
from tests.instrument.test_frameworks import (
    BATCH,
    COUNT,
    SAMPLES,
    Follow,
    Kit,
    Numbers,
    PaddleKit,
    TorchKit,
    _failures,
    follow,
    kit,
)

__all__ = ["_failures", "follow", "kit"]

STEPS = 8


@dataclasses.dataclass
class Part:
    """A tensor of a batch, as far as counting is concerned."""

    shape: tuple[int, ...]


@dataclasses.dataclass
class Graphs:
    x: Part
    num_graphs: int = 8


@dataclasses.dataclass
class Pair:
    image: Part
    label: Part


class Packed(NamedTuple):
    """As a `PackedSequence` of torch."""

    data: Part
    batch_sizes: list[int]


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ([Part((8, 3)), Part((8,))], 8),
        (collections.UserDict(ids=Part((8, 5)), mask=Part((8, 5)), labels=Part((8,))), 8),
        ({"trans_info": [], "img": Part((2, 3, 4, 4)), "label": Part((2, 4, 4))}, 2),
        ((Part((1,)), Part((8, 3)), Part((8,))), 8),
        (Packed(Part((40, 3)), [8, 8, 8, 8, 4, 4]), 8),
        (Graphs(Part((100, 3))), 8),
        (Pair(Part((8, 3)), Part((8,))), 8),
        ([{"image": Part((3, 9, 9))}, {"image": Part((3, 7, 9))}], 2),
        ([[Part((3, 9, 9))] * 2, [{}, {}]], 2),
        ({"name": "x"}, 0),
        (object(), 0),
        (8, 8),
    ],
)
def test_a_batch_is_counted_by_what_most_of_it_says(batch: Any, samples: int) -> None:
    assert count_batch(batch) == samples
    if not isinstance(batch, int):
        assert count_samples(batch) == samples


def _time_first(kit: Kit) -> Callable[[list[Any]], list[Any]]:
    """A `collate_fn` whose batches have their samples in the second dimension."""

    def collate(samples: list[Any]) -> list[Any]:
        arrays = [np.stack([sample[0] for sample in samples], axis=1)]
        arrays.append(np.stack([sample[1] for sample in samples]))
        if isinstance(kit, PaddleKit):
            return arrays  # of which its loader makes tensors
        return [_tensor(kit, array) for array in arrays]

    return collate


def _tensor(kit: Kit, values: Any) -> Any:
    if isinstance(kit, TorchKit):
        return kit.torch.from_numpy(values)
    assert isinstance(kit, PaddleKit)
    return kit.paddle.to_tensor(values)


def _transposed(kit: Kit, batches: Any) -> Iterator[Any]:
    for inputs, targets in batches:
        yield inputs.t(), targets


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sampler_says_how_many_samples_a_batch_has(
    kit: Kit, follow: Follow, workers: int
) -> None:
    followed = follow()
    model = kit.model()
    loader = kit.loader(collate_fn=_time_first(kit), num_workers=workers)
    optimizer = kit.optimizer(model)
    for _ in range(2):
        kit.train(model, optimizer, _transposed(kit, loader))
    followed.finish()
    assert followed.samples == SAMPLES * 2
    assert not [row for row in followed.events if row[2] is EventKind.UNMEASURED]


def _data(kit: Kit) -> Any:
    """The module with a framework's loader and data sets."""
    if isinstance(kit, TorchKit):
        return kit.torch.utils.data
    assert isinstance(kit, PaddleKit)
    return kit.paddle.io


def _iterable(kit: Kit, **options: Any) -> Any:
    base: Any = _data(kit).IterableDataset

    def iterate(stream: Any) -> Iterator[Any]:
        numbers = Numbers()
        return (numbers[place] for place in range(COUNT))

    stream = type("Stream", (base,), {"__iter__": iterate})()
    return _data(kit).DataLoader(stream, batch_size=BATCH, **options)


def test_a_set_without_an_index_has_the_loaders_batch_size(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    kit.train(model, optimizer, _iterable(kit))
    followed.finish()
    assert followed.samples == SAMPLES


def test_a_set_without_an_index_may_have_batches_of_any_shape(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    loader = _iterable(kit, collate_fn=_time_first(kit), drop_last=True)
    kit.train(model, kit.optimizer(model), _transposed(kit, loader))
    followed.finish()
    assert followed.samples == [BATCH, BATCH]


def test_a_guess_by_shapes_is_said(follow: Follow, kit: Kit) -> None:
    followed = follow()
    model = kit.model()
    whole = [_tensor(kit, Numbers().values), _tensor(kit, Numbers().values[:, :1].copy())]

    class Batches:
        def __getitem__(self, place: int) -> Any:
            if place >= STEPS:
                raise IndexError
            return whole

        def __len__(self) -> int:
            return STEPS

    kit.train(model, kit.optimizer(model), _data(kit).DataLoader(Batches(), batch_size=None))
    followed.finish()
    assert followed.samples == [COUNT] * STEPS
    notes = [row for row in followed.events if row[2] is EventKind.UNMEASURED]
    assert len(notes) == 1


# -- steps ---------------------------------------------------------------------------------------


def test_a_batch_that_is_trained_on_again_and_again_is_many_steps(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    batch = next(iter(kit.loader()))
    rounds = STEPS + MOST_ROUNDS
    kit.train(model, kit.optimizer(model), [batch] * rounds)
    followed.finish()
    if isinstance(kit, TorchKit):
        assert followed.samples == [BATCH] * rounds
    else:  # a thread of Paddle's loader keeps it alive: only the rounds show that it is not asked
        assert sum(followed.samples) == BATCH * rounds
        assert followed.samples[1:] == [BATCH] * (STEPS - 2)


def test_a_list_of_batches_has_the_steps_and_samples_of_its_loader(
    kit: Kit, follow: Follow
) -> None:
    followed = follow()
    model = kit.model()
    batches = list(kit.loader())
    optimizer = kit.optimizer(model)
    for _ in range(3):
        kit.train(model, optimizer, batches)
    followed.finish()
    assert followed.samples == SAMPLES * 3


def test_a_batch_may_be_trained_on_more_than_once_in_a_step(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model, critic = kit.model(), kit.model()
    optimizers = kit.optimizer(model), kit.optimizer(critic)
    for batch in kit.loader():
        for _ in range(5):
            kit.train(critic, optimizers[1], [batch])
        kit.train(model, optimizers[0], [batch])
    followed.finish()
    assert followed.samples == SAMPLES


def test_batches_may_come_from_another_rank(kit: Kit, follow: Follow) -> None:
    """Each epoch creates the loader's iterator, as all ranks do, and takes no batch of it."""
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    batches = [[_tensor(kit, Numbers(BATCH).values), 0.0]] * STEPS
    for _ in range(3):
        iterator = iter(kit.loader())
        kit.train(model, optimizer, batches)
        del iterator
    followed.finish()
    assert len(followed.steps) == 3 * STEPS


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("clears", [False, True])
def test_parameters_may_be_updated_by_hand(
    follow: Follow, kit: Kit, *, loads: bool, clears: bool
) -> None:
    if not isinstance(kit, TorchKit):
        pytest.skip("written for torch's tensors")
    followed = follow()
    model = kit.model()
    batches = list(kit.loader()) if not loads else kit.loader()
    for _ in range(3):
        for batch in batches:
            if clears:
                model.zero_grad()
            loss = kit.loss(model, batch)
            loss.backward()
            for parameter in model.parameters():
                if clears:
                    parameter.data.add_(parameter.grad, alpha=-0.1)
                    continue
                with kit.torch.no_grad():
                    parameter.sub_(parameter.grad, alpha=0.1)
                    parameter.grad.zero_()
    followed.finish()
    assert followed.samples == SAMPLES * 3


def test_accumulated_gradients_are_no_update_by_hand(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    losses = []
    for batch in kit.loader(6 * BATCH):
        losses.append(kit.loss(model, batch) / 3)
        losses[-1].backward()
        if len(losses) % 3 == 0:
            optimizer.step()
            kit.zero(optimizer)
    followed.finish()
    assert followed.samples == [3 * BATCH] * 2
    for step, place in zip(followed.steps, (0, 3), strict=True):
        summed = sum(float(loss.detach()) for loss in losses[place : place + 3])
        assert step.loss == pytest.approx(summed, rel=1e-5)


def test_gradients_of_ones_own_making_are_recorded_too(follow: Follow, kit: Kit) -> None:
    if not isinstance(kit, TorchKit):
        pytest.skip("only torch has this function apart from the backward")
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    for batch in kit.loader():
        parameters = list(model.parameters())
        made = kit.torch.autograd.grad(kit.loss(model, batch), parameters)
        for parameter, gradient in zip(parameters, made, strict=True):
            parameter.grad = gradient
        optimizer.step()
    followed.finish()
    assert followed.samples == SAMPLES


# -- phases --------------------------------------------------------------------------------------


def _evaluations(followed: Any) -> list[Any]:
    """The evaluations within steps; the wait after the last batch is called one, too."""
    last = len(followed.steps) - 1
    return [span for span in followed.spans if span.name == EVALUATION and span.step <= last]


@pytest.mark.parametrize("loads", [False, True])
def test_an_evaluation_without_a_loader_is_other(kit: Kit, follow: Follow, *, loads: bool) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    batches = kit.loader() if loads else [[_tensor(kit, Numbers(BATCH).values), 0.0]] * STEPS
    for batch in batches:
        kit.train(model, optimizer, [batch])
        model.eval()
        with kit.without_gradients():
            for _ in range(3):
                model(batch[0])
        model.train()
    followed.finish()
    evaluations = _evaluations(followed)
    forwards = [span for span in followed.spans if span.phase == "forward"]
    assert {span.phase for span in evaluations} == {"other"}
    assert len(evaluations) == 3 * len(followed.steps)
    assert len(forwards) == len(followed.steps) == (len(SAMPLES) if loads else STEPS)


def test_another_model_that_is_only_asked_is_a_part_of_the_forward(
    kit: Kit, follow: Follow
) -> None:
    followed = follow()
    model, teacher = kit.model(), kit.model()
    teacher.eval()
    optimizer = kit.optimizer(model)
    for batch in kit.loader():
        with kit.without_gradients():
            teacher(batch[0])
        kit.train(model, optimizer, [batch])
    followed.finish()
    assert [span.phase for span in followed.spans].count("forward") == 2 * len(SAMPLES)
    assert not _evaluations(followed)


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_closure_is_no_part_of_its_optimizer(
    follow: Follow, kit: Kit, *, loads: bool, named: bool
) -> None:
    if not isinstance(kit, TorchKit):
        pytest.skip("Paddle's optimizers take no closure but for one")
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    batches = kit.loader() if loads else [[_tensor(kit, Numbers(BATCH).values), 0.0]] * STEPS
    for batch in batches:

        def closure(batch: Any = batch) -> Any:
            kit.zero(optimizer)
            loss = kit.loss(model, batch)
            loss.backward()
            return loss

        if named:
            optimizer.step(closure=closure)
        else:
            optimizer.step(closure)
    followed.finish()
    assert len(followed.steps) == (len(SAMPLES) if loads else STEPS)
    for step in followed.steps[1:]:
        inside = [phase for phase in followed.phases(step.step) if phase not in {"data", "h2d"}]
        assert sorted(inside) == ["backward", "forward", "optimizer", "optimizer"]


def test_a_loss_that_is_no_number_is_recorded_as_such(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    for batch in kit.loader():
        (kit.loss(model, batch) * float("nan")).backward()
        optimizer.step()
        kit.zero(optimizer)
    followed.finish()
    assert [str(step.loss) for step in followed.steps] == ["nan"] * len(SAMPLES)
