"""Parts of the product switched off, one at a time: a check of a scenario must notice each.

A mutation that no check notices means that the scenarios do not test that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from profkit.instrument import buckets, captures, device, recorder
from profkit.instrument.frameworks.pytorch import device as pytorch_device
from profkit.instrument.guard import FAILURES
from tests.device.checks import CHECKS, Runs
from tests.device.scenarios import BY_NAME


@dataclass(frozen=True)
class Mutation:
    """A method that is replaced, and the check of the scenario that must fail then."""

    name: str
    owner: Any
    attribute: str
    replacement: Callable[..., Any]
    scenario: str
    check: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        with mock.patch.object(self.owner, self.attribute, self.replacement):
            yield


def _raise(site: str, error: Exception) -> None:
    raise error


def _late(anchor: Any, event: Any) -> int:
    return int(anchor.host_ns + 1.05 * event.ns_since(anchor.event))


MUTATIONS = (
    Mutation(
        "no event is recorded at a boundary",
        device.DeviceTimer,
        "mark",
        lambda own: None,
        "compute_bound",
        "overview",
    ),
    Mutation(
        "the tail of the exchange is not marked",
        recorder.Recorder,
        "keep_marked",
        lambda own, phase, name, times, marks: own.drop_marks(*marks),
        "two_ranks_tail",
        "overview",
    ),
    Mutation(
        "captures of graphs are not noticed",
        captures.Captures,
        "begin",
        lambda own: None,
        "graph_captured_while_the_writer_looks",
        "job",
    ),
    Mutation(
        "an event that fails stops the rows behind it",
        device,
        "report_failure",
        _raise,
        "elapsed_time_fails_ever",
        "job",
    ),
    Mutation(
        "the device's clock runs 5 % too fast",
        device.DeviceAnchor,
        "host_ns_of",
        _late,
        "compute_bound",
        "overview",
    ),
    Mutation(
        "buckets end when they are launched",
        buckets.BucketLog,
        "done",
        lambda own, bucket: setattr(bucket, "end_ns", own._clock()),
        "late_in_forward",
        "exchange",
    ),
    Mutation(
        "a collective has the times of its launch",
        device.DeviceTimer,
        "_finish_collective",
        lambda own, row, times, append, has_end: append(row),
        "late_in_forward_with_tail",
        "exchange",
    ),
    Mutation(
        "the device's clock is never tied to the host's",
        pytorch_device.CudaDevice,
        "reach_idle_event",
        lambda own, clock: None,
        "compute_bound",
        "report",
    ),
)


def survives(mutation: Mutation, folder: Path) -> bool:
    """Return true if no check notices the mutation."""
    runs = Runs(folder)
    with mutation.applied():
        try:
            outcome = CHECKS[mutation.check](runs, BY_NAME[mutation.scenario])
        except Exception:  # noqa: BLE001  # a job that fails is noticed
            return False
        finally:
            FAILURES.clear()
    return outcome.good
