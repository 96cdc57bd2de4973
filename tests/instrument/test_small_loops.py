"""Small loops of torch whose steps, samples and phases are known."""

from __future__ import annotations

import collections
import copy
import dataclasses
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from profkit.vocab import EventKind
from tests.instrument.test_frameworks import Follow, TorchKit, _failures, follow

torch = pytest.importorskip("torch", reason="torch is not installed")

__all__ = ["_failures", "follow"]

BATCH, STEPS, WIDTH = 8, 40, 4
COUNT = BATCH * STEPS
PLAIN = ("backward", "forward", "optimizer")


@dataclass(frozen=True)
class Loop:
    """A loop, with the steps and samples that it has."""

    run: Callable[[], object]
    steps: int = STEPS
    samples: int | None = COUNT
    """The samples of all steps; `None` if a loop without a loader has none."""
    phases: tuple[str, ...] = PLAIN
    """The phases that each step has, apart from those of input."""
    even: bool = True
    """True if every step has the same number of samples."""


LOOPS: dict[str, Loop] = {}


def loop(**known: Any) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def add(run: Callable[[], object]) -> Callable[[], object]:
        LOOPS[run.__name__] = Loop(run, **known)
        return run

    return add


def pairs() -> Any:
    torch.manual_seed(0)
    inputs = torch.randn(COUNT, WIDTH)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))


def loader(data: Any = None, **options: Any) -> Any:
    return torch.utils.data.DataLoader(data or pairs(), **{"batch_size": BATCH, **options})


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def error(model: Any, batch: Any) -> Any:
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def train(batches: Any, model: Any = None) -> None:
    """The plain loop."""
    model = model or network()
    optimizer = sgd(model)
    for batch in batches:
        loss = error(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def tensors() -> Iterator[Any]:
    """Batches that no loader makes."""
    data = pairs()
    for start in range(0, COUNT, BATCH):
        yield data[start : start + BATCH]


# -- loaders -------------------------------------------------------------------------------------


@loop()
def plain() -> None:
    train(loader())


@loop()
def iterable_data_set() -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[Any]:
            data = pairs()
            return (data[place] for place in range(COUNT))

    train(loader(Stream()))


@loop()
def batches_of_the_data_set() -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[Any]:
            return tensors()

    train(loader(Stream(), batch_size=None))


@loop()
def infinite_generator() -> None:
    def forever() -> Iterator[Any]:
        while True:
            yield from loader(torch.utils.data.Subset(pairs(), range(COUNT // 2)))

    stream = forever()
    train(next(stream) for _ in range(STEPS))


@loop()
def progress_bar() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    with open(os.devnull, "w") as nowhere:
        train(tqdm(loader(), disable=False, file=nowhere))


@loop()
def copied_model_and_loader() -> None:
    train(copy.deepcopy(loader()), copy.deepcopy(network()))


@loop()
def list_of_batches() -> None:
    train(list(loader()))


@loop(samples=COUNT)
def one_batch_again_and_again() -> None:
    train([next(iter(loader()))] * STEPS)


@loop(samples=2 * COUNT)
def two_loaders_side_by_side() -> None:
    train(first for first, second in zip(loader(), loader(), strict=True))


@loop(even=False)
def fetched_one_ahead() -> None:
    def ahead() -> Iterator[Any]:
        batches = iter(loader())
        following = next(batches, None)
        while following is not None:
            batch, following = following, next(batches, None)
            yield batch

    train(ahead())


@loop()
def fetched_by_another_thread() -> None:
    def background() -> Iterator[Any]:
        waiting: queue.Queue[Any] = queue.Queue(2)

        def fill() -> None:
            for batch in loader():
                waiting.put(batch)
            waiting.put(None)

        threading.Thread(target=fill, daemon=True).start()
        yield from iter(waiting.get, None)

    train(background())


# -- batches -------------------------------------------------------------------------------------


def collated(make: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
    """Train on batches that `make` puts together, and `read` takes apart."""
    collate = torch.utils.data.default_collate
    batches = loader(collate_fn=lambda samples: make(collate(samples)))
    train(map(read, batches))


@loop()
def dictionary_with_names() -> None:
    collated(lambda pair: {"x": pair[0], "y": pair[1], "name": ["a"], "none": []}, _x_and_y)


@loop()
def empty_list_first() -> None:
    collated(lambda pair: {"info": [], "x": pair[0], "y": pair[1]}, _x_and_y)


@loop()
def mapping_that_is_no_dictionary() -> None:
    collated(lambda pair: collections.UserDict(x=pair[0], y=pair[1], mask=pair[1]), _x_and_y)


@loop()
def time_first() -> None:
    collated(lambda pair: (pair[0].t(), pair[1]), lambda batch: (batch[0].t(), batch[1]))


@loop()
def index_first() -> None:
    collated(lambda pair: (torch.tensor([7]), *pair), lambda batch: batch[1:])


@loop()
def packed_sequence_first() -> None:
    def pack(pair: Any) -> Any:
        lengths = [3] * len(pair[0])
        rows = pair[0].unsqueeze(1).expand(-1, 3, -1)
        packed = torch.nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True)
        return packed, *pair

    collated(pack, lambda batch: batch[1:])


@dataclasses.dataclass
class Pair:
    x: Any
    y: Any


@loop()
def dataclass_batch() -> None:
    collated(lambda pair: Pair(*pair), lambda batch: (batch.x, batch.y))


def _x_and_y(batch: Any) -> Any:
    return batch["x"], batch["y"]


# -- models and gradients --------------------------------------------------------------------------


@loop()
def traced_module() -> None:
    train(loader(), torch.jit.trace(network(), torch.randn(BATCH, WIDTH)))


@loop(phases=("forward", "optimizer"))
def gradients_by_autograd_grad() -> None:
    model = network()
    optimizer = sgd(model)
    for batch in loader():
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(error(model, batch), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


@loop(phases=("optimizer",))
def gradients_by_torch_func() -> None:
    model = network()
    optimizer = sgd(model)
    named = dict(model.named_parameters())
    for inputs, targets in loader():

        def compute(values: Any, given: Any = inputs, wanted: Any = targets) -> Any:
            found = torch.func.functional_call(model, values, (given,))
            return torch.nn.functional.mse_loss(found, wanted)

        gradients = torch.func.grad(compute)({name: each.detach() for name, each in named.items()})
        for name, each in named.items():
            each.grad = gradients[name]
        optimizer.step()


@loop(phases=("backward", "forward"))
def optimizer_class_of_ones_own() -> None:
    class Own:
        def __init__(self, parameters: Any) -> None:
            self.parameters = list(parameters)

        def step(self) -> None:
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter.sub_(0.01 * parameter.grad)
                    parameter.grad = None

    model = network()
    optimizer = Own(model.parameters())
    for batch in loader():
        error(model, batch).backward()
        optimizer.step()


@loop(phases=("backward", "forward"))
def parameters_updated_by_hand() -> None:
    model = network()
    for batch in loader():
        model.zero_grad()
        error(model, batch).backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.01)


@loop()
def sharpness_aware_minimisation() -> None:
    model = network()
    optimizer = sgd(model)
    for batch in loader():
        error(model, batch).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * parameter.grad)
        optimizer.zero_grad()
        error(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


@loop()
def critics_five_to_one() -> None:
    model, critic = network(), network()
    optimizers = sgd(model), sgd(critic)
    for number, batch in enumerate(loader()):
        error(critic, batch).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        if number % 5 == 4:
            error(model, batch).backward()
            optimizers[0].step()
            optimizers[0].zero_grad()


@loop()
def second_order_closure() -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for batch in loader():

        def closure(batch: Any = batch) -> Any:
            optimizer.zero_grad()
            loss = error(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


def _steps_in_backward(batches: Any) -> None:
    model = network()
    optimizers = {each: torch.optim.SGD([each], lr=0.01) for each in model.parameters()}

    def update(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for batch in batches:
        error(model, batch).backward()


@loop(phases=("backward", "forward"))
def optimizers_that_step_in_backward() -> None:
    _steps_in_backward(loader())


@loop(samples=None, phases=("backward", "forward"))
def optimizers_that_step_in_backward_without_a_loader() -> None:
    _steps_in_backward(tensors())


@loop(steps=STEPS // 2, samples=None)
def accumulation_without_a_loader() -> None:
    model = network()
    optimizer = sgd(model)
    for number, batch in enumerate(tensors()):
        (error(model, batch) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


@loop(samples=None)
def two_networks_without_a_loader() -> None:
    generator, critic = network(), network()
    optimizers = sgd(generator), sgd(critic)
    for batch in tensors():
        error(critic, batch).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        error(generator, batch).backward()
        optimizers[0].step()
        optimizers[0].zero_grad()


@loop(samples=None)
def networks_against_each_other_without_a_loader() -> None:
    """The first network is called with gradients in the update of the second."""
    generator, critic = torch.nn.Linear(WIDTH, WIDTH), network()
    optimizers = sgd(generator), sgd(critic)
    for inputs, targets in tensors():
        made = generator(torch.randn(BATCH, WIDTH))
        optimizers[1].zero_grad()
        error(critic, (inputs, targets)).backward()
        error(critic, (made.detach(), -targets)).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        error(critic, (made, targets)).backward()
        optimizers[0].step()


@loop(samples=None)
def three_networks_without_a_loader() -> None:
    networks = network(), network(), network()
    optimizers = [sgd(each) for each in networks]
    for batch in tensors():
        for each, optimizer in zip(networks, optimizers, strict=True):
            optimizer.zero_grad()
            error(each, batch).backward()
            optimizer.step()


@loop(samples=None, phases=("optimizer",))
def network_that_nobody_trains() -> None:
    """Its parameters have gradients, and no optimizer updates them.

    The first step waits for one that does, until the second update begins.
    """
    features, head = torch.nn.Linear(WIDTH, WIDTH), network()
    optimizer = sgd(head)
    for inputs, targets in tensors():
        optimizer.zero_grad()
        error(head, (features(inputs), targets)).backward()
        optimizer.step()


@loop(samples=None)
def updated_through_its_data() -> None:
    """Such updates count up no version of a parameter."""

    class Own(torch.optim.Optimizer):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.data.add_(parameter.grad, alpha=-0.01)

    model = network()
    optimizer = Own(model.parameters(), {})
    for batch in tensors():
        optimizer.zero_grad()
        error(model, batch).backward()
        optimizer.step()


@loop(samples=None, phases=("forward", "backward"))
def first_updates_are_skipped() -> None:
    model = network()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for number, batch in enumerate(tensors()):
        optimizer.zero_grad()
        scaler.scale(error(model, batch) * (1e30 if number < 3 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()


@loop()
def trained_in_a_thread() -> None:
    thread = threading.Thread(target=plain)
    thread.start()
    thread.join()


@loop(samples=None, steps=STEPS // 2)
def minibatches_of_rollouts() -> None:
    model = network()
    optimizer = sgd(model)
    for _ in range(STEPS // 4):
        with torch.no_grad():
            for _ in range(6):
                model(torch.randn(1, WIDTH))
        for _ in range(2):
            batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)
            error(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()


# -- evaluation ------------------------------------------------------------------------------------


@loop()
def inference_before_training() -> None:
    model = network()
    model.eval()
    with torch.no_grad():
        for batch in loader():
            model(batch[0])
    model.train()
    train(loader(), model)


def _evaluates(evaluate: Callable[[Any], object], every: int = 10) -> None:
    model = network()
    optimizer = sgd(model)
    for number, batch in enumerate(loader()):
        error(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % every == every - 1:
            model.eval()
            evaluate(model)
            model.train()


@loop()
def evaluation_with_a_loader() -> None:
    def evaluate(model: Any) -> None:
        with torch.no_grad():
            for batch in loader(batch_size=64):
                model(batch[0])

    _evaluates(evaluate)


@loop()
def evaluation_of_a_tensor() -> None:
    def evaluate(model: Any) -> None:
        with torch.no_grad():
            for batch in tensors():
                model(batch[0])

    _evaluates(evaluate)


@loop()
def evaluation_that_computes_gradients() -> None:
    def evaluate(model: Any) -> None:
        for batch in loader(batch_size=64):
            error(model, batch).item()

    _evaluates(evaluate)


@loop(phases=("backward", "optimizer"))
def compiled_function() -> None:
    model = network()
    optimizer = sgd(model)
    step = torch.compile(lambda inputs: model(inputs) * 1.0, backend="eager")
    for inputs, targets in loader():
        loss = torch.nn.functional.mse_loss(step(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# -- tests -----------------------------------------------------------------------------------------


@pytest.fixture
def kit() -> TorchKit:
    return TorchKit()


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("name", sorted(LOOPS))
def test_a_small_loop_has_its_steps_samples_and_phases(name: str, follow: Follow) -> None:
    known = LOOPS[name]
    followed = follow()
    known.run()
    followed.finish()
    samples = followed.samples
    assert len(samples) == known.steps
    assert sum(samples) == (known.samples or 0)
    if known.even:
        assert len(set(samples)) == 1
    for step in followed.steps[1:]:
        assert set(known.phases) <= set(followed.phases(step.step)), step


def test_the_steps_before_an_exception_are_kept(follow: Follow) -> None:
    followed = follow()

    def fails() -> Iterator[Any]:
        for number, batch in enumerate(loader()):
            if number == 26:
                raise RuntimeError
            yield batch

    with pytest.raises(RuntimeError):
        train(fails())
    followed.finish()
    assert followed.samples == [BATCH] * 26


def test_evaluation_is_no_part_of_a_forward(follow: Follow) -> None:
    followed = follow()
    evaluation_of_a_tensor()
    followed.finish()
    forwards = [span for span in followed.spans if span.phase == "forward"]
    assert len(forwards) == STEPS


def test_the_wait_for_another_threads_batches_is_said_to_be_unknown(follow: Follow) -> None:
    followed = follow()
    fetched_by_another_thread()
    followed.finish()
    notes = [row[3] for row in followed.events if row[2] is EventKind.UNMEASURED]
    assert len(notes) == 1
    assert "another thread" in notes[0]


def test_threads_that_train_as_well_are_said_not_to_be_followed(follow: Follow) -> None:
    """Steps and samples are those of one thread, and the run says so."""
    followed = follow()
    gate = threading.Barrier(2)

    def work() -> None:
        gate.wait()
        train(loader())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    followed.finish()
    assert STEPS - 2 <= len(followed.samples) <= STEPS  # until it is known which one trains
    notes = [row[3] for row in followed.events if row[2] is EventKind.UNMEASURED]
    assert len([note for note in notes if "updates of weights by other threads" in note]) == 1


@pytest.mark.parametrize("name", ["plain", "trained_in_a_thread", "two_networks_without_a_loader"])
def test_a_loop_of_one_thread_has_no_other_trainer(name: str, follow: Follow) -> None:
    followed = follow()
    LOOPS[name].run()
    followed.finish()
    assert not [row for row in followed.events if "other threads" in row[3]]
