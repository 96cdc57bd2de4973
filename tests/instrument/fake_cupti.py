"""A fake of the bindings `cupti.cupti`: real names and fields, and a clock of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

AHEAD_NS = 7_000_000_000_000
"""How far this clock is from the host's: nothing may take one for the other."""

GEMM = "_ZN7cutlass6KernelI52cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4EEvT_"

FIELDS = {
    "ActivityKernel": (
        "kind name start end correlation_id device_id stream_id grid_x grid_y grid_z "
        "block_x block_y block_z registers_per_thread static_shared_memory dynamic_shared_memory"
    ),
    "ActivityMemcpy": (
        "kind start end correlation_id device_id stream_id bytes copy_kind src_kind dst_kind"
    ),
    "ActivityMemcpyPtoP": (
        "kind start end correlation_id device_id stream_id bytes copy_kind src_kind dst_kind"
    ),
    "ActivityMemset": "kind start end correlation_id device_id stream_id bytes memory_kind",
    "ActivityAPI": "kind start end correlation_id process_id thread_id cbid",
}
"""What is read of each class of records, whose generations are numbered."""

CALLS = (
    "activity_register_callbacks activity_enable activity_disable activity_flush_all "
    "get_timestamp finalize"
)


class ActivityKind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    MEMCPY2 = 22


class ActivityMemoryKind(IntEnum):
    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2
    DEVICE = 3


class ActivityMemcpyKind(IntEnum):
    HTOD = 1
    DTOH = 2
    DTOD = 8


class CuptiError(Exception):
    """Says what the real one does."""


class FakeCupti:
    """Hands out the records that `launch` made between enabling and flushing.

    It raises `refusal` if more kinds are enabled than it admits.
    """

    def __init__(self, refusal: str = "", *, admits: int = 0) -> None:
        self.ActivityKind = ActivityKind  # as the module has them
        self.ActivityMemcpyKind = ActivityMemcpyKind
        self.enabled: set[int] = set()
        self.flushes = 0
        self.finalized = 0
        self._refusal = refusal
        self._admits = admits
        self._records: list[SimpleNamespace] = []
        self._complete: Callable[[list[SimpleNamespace]], None] = lambda records: None
        self._correlation = itertools.count(1)

    def get_timestamp(self) -> int:
        return time.perf_counter_ns() + AHEAD_NS

    def activity_register_callbacks(
        self, requested: Callable[[], tuple[int, int]], completed: Callable[[list[Any]], None]
    ) -> None:
        size, most = requested()
        assert size > 0
        assert most == 0
        self._complete = completed

    def activity_enable(self, kind: int) -> None:
        if self._refusal and len(self.enabled) == self._admits:
            raise CuptiError(self._refusal)
        self.enabled.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.discard(kind)

    def activity_flush_all(self, flag: int) -> None:
        assert flag == 1
        self.flushes += 1
        records, self._records = self._records, []
        self._complete(records)
        for record in records:
            vars(record).clear()  # the buffer is not the callback's to keep

    def finalize(self) -> None:
        self.finalized += 1

    def launch(
        self,
        name: str = GEMM,
        *,
        through: ActivityKind = ActivityKind.RUNTIME,
        ended: bool = True,
        took_ns: int = 20_000,
    ) -> int:
        """A kernel that runs as soon as it is launched; its correlation."""
        number, now = next(self._correlation), self.get_timestamp()
        self._call(number, now, through)
        self._work(
            ActivityKind.CONCURRENT_KERNEL, number,
            now + 5_000, now + 5_000 + took_ns if ended else 0,
            name=name, grid_x=8, grid_y=4, grid_z=1, block_x=128, block_y=1, block_z=1,
            registers_per_thread=96, static_shared_memory=1_024, dynamic_shared_memory=2_048,
        )  # fmt: skip
        return number

    def copy(
        self,
        size: int,
        copy_kind: ActivityMemcpyKind = ActivityMemcpyKind.HTOD,
        kind: ActivityKind = ActivityKind.MEMCPY,
        source: ActivityMemoryKind = ActivityMemoryKind.PINNED,
    ) -> None:
        number, now = next(self._correlation), self.get_timestamp()
        self._call(number, now, ActivityKind.RUNTIME)
        self._work(
            kind, number, now + 2_000, now + 9_000,
            bytes=size, copy_kind=int(copy_kind), src_kind=int(source),
            dst_kind=int(ActivityMemoryKind.DEVICE),
        )  # fmt: skip

    def fill(self, size: int) -> None:
        number, now = next(self._correlation), self.get_timestamp()
        self._call(number, now, ActivityKind.RUNTIME)
        self._work(ActivityKind.MEMSET, number, now + 2_000, now + 3_000, bytes=size, memory_kind=3)

    def idle_call(self) -> None:
        """A call that launches nothing, as frameworks make by the thousand."""
        self._call(next(self._correlation), self.get_timestamp(), ActivityKind.RUNTIME)

    def _call(self, number: int, now: int, kind: ActivityKind) -> None:
        inner = [(ActivityKind.DRIVER, now + 500)] if kind is ActivityKind.RUNTIME else []
        for each, start in [*inner, (kind, now)]:  # an inner call ends first, and is recorded first
            self._records.append(
                SimpleNamespace(
                    kind=int(each),
                    start=start,
                    end=start + 3_000,
                    correlation_id=number,
                    process_id=1,
                    thread_id=77,
                    cbid=211,
                )
            )

    def _work(self, kind: ActivityKind, number: int, start: int, end: int, **more: Any) -> None:
        self._records.append(
            SimpleNamespace(
                kind=int(kind),
                start=start,
                end=end,
                correlation_id=number,
                device_id=0,
                stream_id=7,
                **more,
            )
        )
