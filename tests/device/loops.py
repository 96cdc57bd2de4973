"""Training loops with evaluation, a scaler, own streams, or captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.accelerator.devices import Device, Event, OutOfMemory, Stream
from tests.accelerator.jobs import Loop
from tests.accelerator.torch_fakes import on_cuda
from tests.accelerator.torch_job import TorchRank
from tests.accelerator.torch_parts import Scaler


def with_late_wait(rank: TorchRank) -> None:
    """Wait for the step before at the end of each step, so that the host is one step ahead."""
    model = rank.make_model()
    optimizer, before = rank.make_optimizer(model), Event(rank.device)
    for batch in rank.batches():
        on_cuda(model(rank.copy(batch)).sum()).backward()
        optimizer.step()
        before.synchronize()
        before = Event(rank.device)
        before.record()


def with_loss_in_forward(rank: TorchRank) -> None:
    """Read a value of the device in the middle of the forward, as detectors do."""
    model = rank.make_model()
    optimizer = rank.make_optimizer(model)
    layers = list(getattr(model, "module", model))
    layers[len(layers) // 2].register_forward_hook(lambda own, given, out: _read(out))
    for batch in rank.batches():
        on_cuda(model(rank.copy(batch)).sum()).backward()
        optimizer.step()
        torch.cuda.synchronize()


def _read(output: torch.Tensor) -> None:
    on_cuda(output.detach().sum()).item()


def with_scaler(skips_every: int) -> Loop:
    """Return a loop with a gradient scaler that skips every so many steps."""

    def train(rank: TorchRank) -> None:
        model, scaler = rank.make_model(), Scaler(rank.device)
        optimizer = rank.make_optimizer(model)
        for step, batch in enumerate(rank.batches(), 1):
            loss = on_cuda(model(rank.copy(batch)).sum())
            scaler.scale(loss).backward()
            if step % skips_every == 0:
                for parameter in model.parameters():
                    parameter.grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return train


def _train_steps(rank: TorchRank) -> Iterator[tuple[int, Any]]:
    """Train, and yield each step's number, from 1, and the model."""
    model = rank.make_model()
    optimizer = rank.make_optimizer(model)
    for step, batch in enumerate(rank.batches(), 1):
        loss = on_cuda(model(rank.copy(batch)).sum())
        loss.backward()
        optimizer.step()
        loss.item()
        yield step, model


def with_evaluation(every: int, batches: int) -> Loop:
    """Return a loop that evaluates so many batches every so many steps."""

    def train(rank: TorchRank) -> None:
        for step, model in _train_steps(rank):
            if step % every == 0:
                with torch.no_grad():
                    for held_out in rank.batches(batches):
                        on_cuda(model(rank.copy(held_out)).sum()).item()

    return train


def with_checkpoint(every: int, saving_ns: int) -> Loop:
    """Return a loop that saves its state every so many steps, which takes the host some time."""

    def train(rank: TorchRank) -> None:
        for step, _ in _train_steps(rank):
            if step % every == 0:
                file: Any = SlowFile(rank.device, saving_ns)
                torch.save({}, file)

    return train


class SlowFile:
    """A file that takes the host some time to write, once."""

    def __init__(self, device: Device, ns: int) -> None:
        self._device = device
        self._ns = ns

    def write(self, content: Any) -> int:
        self._device.host.work(self._ns)
        self._ns = 0
        return len(content)

    def flush(self) -> None:
        """Do nothing: all is written."""


def with_own_stream(rank: TorchRank) -> None:
    """Train on a stream of the job's own."""
    with torch.cuda.stream(torch.cuda.Stream()):
        model = rank.make_model()
        optimizer = rank.make_optimizer(model)
        for batch in rank.batches():
            loss = on_cuda(model(rank.copy(batch)).sum())
            loss.backward()
            optimizer.step()
            loss.item()


def with_compiled_model(rank: TorchRank) -> None:
    """Train a model whose call is compiled, as after `Module.compile`."""
    model = rank.make_model()
    model._compiled_call_impl = model._call_impl
    optimizer = rank.make_optimizer(model)
    for batch in rank.batches():
        loss = on_cuda(model(rank.copy(batch)).sum())
        loss.backward()
        optimizer.step()
        loss.item()


def with_too_little_memory(bytes_of_batch: Callable[[int], int]) -> Loop:
    """Return a loop that drops a batch which does not fit into the device's memory."""

    def train(rank: TorchRank) -> None:
        model, memory = rank.make_model(), rank.device.memory
        optimizer = rank.make_optimizer(model)
        layers = list(model)
        size = 0

        def allocate(own: Any, given: Any, output: Any) -> None:
            memory.allocate(size)

        layers[len(layers) // 2].register_forward_hook(allocate)
        for number, batch in enumerate(rank.batches()):
            size = bytes_of_batch(number)
            try:
                loss = on_cuda(model(rank.copy(batch)).sum())
            except OutOfMemory:
                memory.free_all()
                continue
            loss.backward()
            optimizer.step()
            loss.item()
            memory.free_all()

    return train


def with_prefetch(rank: TorchRank) -> None:
    """Copy the next batch on a stream of its own while the device computes."""
    model = rank.make_model()
    copies: Any = Stream(rank.device)
    optimizer, before = rank.make_optimizer(model), Event(rank.device)
    for batch in rank.batches():
        with torch.cuda.stream(copies):
            inputs = rank.copy(batch)
        rank.device.stream.wait(copies.tail)
        on_cuda(model(inputs).sum()).backward()
        optimizer.step()
        before.synchronize()
        before = Event(rank.device)
        before.record()


class Replays(torch.nn.Module):
    """A module whose forward and backward are graphs, as of `make_graphed_callables`.

    The capture is warmed up on a stream of its own (PyTorch's notes on CUDA, "CUDA Graphs").
    """

    def __init__(self, rank: TorchRank, model: Any, capturing_ns: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(rank.job.elements))
        self.graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        outputs = None
        with torch.cuda.stream(torch.cuda.Stream()):
            self.graphs[0].capture_begin()
            outputs = model(torch.zeros(rank.job.batch_size, 1))
            rank.host.work(capturing_ns)
            self.graphs[0].capture_end()
            self.graphs[1].capture_begin()
            torch.autograd.grad(outputs.sum(), list(model.parameters()))
            self.graphs[1].capture_end()

    def forward(self, inputs: torch.Tensor) -> Any:
        return _Replay.apply(inputs, self.weight, self)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, _: torch.Tensor, own: Replays) -> Any:
        ctx.own = own
        own.graphs[0].replay()
        return inputs + 0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.own.graphs[1].replay()
        return gradient, torch.zeros_like(ctx.own.weight), None


def with_graphs(capture_at: int, capturing_ns: int = 0) -> Loop:
    """Return a loop that replays captured graphs from one of its steps on."""

    def train(rank: TorchRank) -> None:
        model = rank.make_model()
        optimizer = rank.make_optimizer(model)
        for step, batch in enumerate(rank.batches()):
            if step == capture_at:
                torch.cuda.synchronize()
                model = Replays(rank, model, capturing_ns)
            loss = on_cuda(model(rank.copy(batch)).sum())
            loss.backward()
            optimizer.step()
            loss.item()

    return train
