"""A process group that times the gradient buckets that DDP's reducer sends through it."""

from __future__ import annotations

from typing import Any

import torch

from profkit.instrument.buckets import Bucket, BucketLog
from profkit.instrument.collectives import HERE
from profkit.instrument.frameworks.pytorch.compiler import (
    outside_compiler,
    set_eval_frame,
    skip_code,
)
from profkit.instrument.guard import guarded, report_failure
from profkit.instrument.recorder import Recorder

SMALL_BYTES = 262_144
"""Up to this size, a callback from another thread costs more than copying the bucket.

That thread needs the interpreter just when the backward returns to Python: 0.1 ms per step.
"""

_ProcessGroup: Any = getattr(torch.distributed, "ProcessGroup", object)
"""The base of process groups; torch can be built without them."""


class ObservedGroup(_ProcessGroup):  # type: ignore[misc]  # see above
    """A process group on the backends of another one, which times the reducer's buckets.

    Collectives are handed to the real group. Everything else that torch asks a process group for,
    from C++ as well, is answered by the backends that both groups share.

    Every collective that a reducer calls must be a method here. For one that is not, torch runs its
    own while it holds the interpreter, and gloo's threads need the interpreter to release tensors:
    a deadlock.
    """

    def __init__(
        self, real: Any, log: BucketLog, recorder: Recorder, *, follows: bool = True
    ) -> None:
        super().__init__(real.rank(), real.size())
        self.bound_device_id = real.bound_device_id  # registering a backend sets it there, too
        kinds = _ProcessGroup.BackendType
        for device in real._device_types:  # noqa: SLF001  # torch has no public name for it
            backend = real._get_backend(device)  # noqa: SLF001  # the same
            kind = getattr(kinds, backend.name().upper(), kinds.CUSTOM)
            self._register_backend(device, kind, backend)
            if hasattr(_ProcessGroup, "_set_default_backend"):  # later than torch 2.4
                self._set_default_backend(kind)
        self.log = log
        self.follows = follows
        """True if the end of each bucket is timed."""
        self._real = real
        self._recorder = recorder
        self._known: list[tuple[int, Any, tuple[int, str]]] = []
        self._follow = guarded("bucket followed", self._follow_bucket, None)

    @outside_compiler
    def getBackendName(self) -> str:  # noqa: N802  # the name that torch calls
        return str(self._real.name())

    @outside_compiler
    def broadcast(self, tensors: Any, opts: Any) -> Any:
        return self._real.broadcast(tensors, opts)

    @outside_compiler
    def barrier(self, opts: Any) -> Any:
        return self._real.barrier(opts)

    @outside_compiler
    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self._real.allgather(outputs, inputs, opts)

    @outside_compiler
    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Any:
        return self._real.allreduce_coalesced(tensors, opts)

    def allreduce(self, tensors: Any, opts: Any) -> Any:
        """Reduce as the real group does; what is reduced here is a bucket of gradients.

        This is `outside_compiler` written out, and nothing follows the launch of a last small
        bucket: gloo's thread needs the processor then, and other ranks wait for it.
        """
        before, was_quiet = set_eval_frame(None), HERE.inside
        try:
            try:
                bucket = self._begin_bucket(tensors[0])
            except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
                report_failure("bucket launched", failure)
                bucket = None
            if bucket is None:
                return self._real.allreduce(tensors, opts)
            work = self._real.allreduce(tensors, opts)
            self._follow(work, bucket)
            return work
        finally:
            HERE.inside = was_quiet
            set_eval_frame(before)

    skip_code(allreduce.__code__)

    def _begin_bucket(self, tensor: torch.Tensor) -> Bucket | None:
        """Note a bucket; return it if its end is to be timed.

        The end of a last bucket that is small is the backward's own. The map of used parameters,
        which holds integers, is no bucket.
        """
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return None
        HERE.inside = True  # the row of a bucket is made here
        log, recorder = self.log, self._recorder
        if not recorder.recording:
            log.skipped()
            return None
        index = log.pending
        bucket = log.launched(index, *self._describe(index, tensor))
        if not self.follows:
            return None
        ends_with_backward = bucket.bytes <= SMALL_BYTES and recorder.device is None
        if ends_with_backward and index + 1 == log.expected:
            return None
        return bucket

    def _describe(self, index: int, tensor: torch.Tensor) -> tuple[int, str]:
        """Return the bucket's bytes and type, which mostly are those of the backward before."""
        if index < len(self._known) and not tensor.is_sparse:
            count, dtype, described = self._known[index]
            if tensor.numel() == count and tensor.dtype is dtype:
                return described
        described = size_of(tensor), str(tensor.dtype).removeprefix("torch.")
        del self._known[index:]
        self._known.append((tensor.numel(), tensor.dtype, described))
        return described

    def _follow_bucket(self, work: Any, bucket: Bucket) -> None:
        """Take the time when the collective has its result; nobody waits for that call."""
        done = self.log.done
        work.get_future().add_done_callback(lambda _: done(bucket))


def size_of(tensor: torch.Tensor) -> int:
    """Return the bytes that a bucket sends; a sparse one sends this rank's values."""
    if not tensor.is_sparse:
        return tensor.numel() * tensor.element_size()
    values = tensor._values()  # noqa: SLF001  # the public name needs the gradient coalesced
    return values.numel() * values.element_size()
