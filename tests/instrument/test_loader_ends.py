"""Whether the loaders of a loop are over, which tells a hang from work after an epoch."""

from __future__ import annotations

import itertools

from tests.instrument.test_frameworks import Follow, Followed, Kit, follow, kit

__all__ = ["follow", "kit"]


def is_over(followed: Followed) -> bool:
    return followed.tracker.loaders_over


def test_the_loaders_are_over_between_epochs_and_after_the_last(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    assert not is_over(followed)  # it has not begun
    loader = kit.loader()
    for _ in range(2):
        kit.train(model, optimizer, loader)
        assert is_over(followed)
        iterator = iter(loader)
        next(iterator)
        assert not is_over(followed)
        assert list(iterator)  # Paddle's would live on for a moment
        assert is_over(followed)


def test_an_evaluation_within_an_epoch_ends_no_training(kit: Kit, follow: Follow) -> None:
    followed = follow()
    model = kit.model()
    optimizer = kit.optimizer(model)
    training = iter(kit.loader())
    kit.train(model, optimizer, itertools.islice(training, 2))
    assert len(list(kit.loader())) > 1
    assert not is_over(followed)
    kit.train(model, optimizer, training)
    assert is_over(followed)


def test_a_loop_that_trains_on_something_else_later_is_not_over(kit: Kit, follow: Follow) -> None:
    followed = follow()
    batches = list(kit.loader())  # as a loop that first reads its data
    assert is_over(followed)
    model = kit.model()
    kit.train(model, kit.optimizer(model), batches)
    assert not is_over(followed)


def test_a_loop_without_a_loader_is_never_over(kit: Kit, follow: Follow) -> None:
    batches = list(kit.loader())
    followed = follow()
    model = kit.model()
    kit.train(model, kit.optimizer(model), batches)
    assert not is_over(followed)
