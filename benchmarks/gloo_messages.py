"""Pipelines over gloo with torch before 2.8, which waits for one message of several.

There, a schedule keeps the last work that `batch_isend_irecv` returns: enough with NCCL, which has
one work for all. With gloo the other messages are lost, and the ranks wait for each other
(https://github.com/pytorch/pytorch/pull/152938).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist

FIRST_GOOD = (2, 8)


class Together:
    """Several works, for a caller that waits for one."""

    def __init__(self, works: list[Any]) -> None:
        self.works = works

    def wait(self) -> bool:
        for work in self.works:
            work.wait()
        return True


def wait_for_all_messages() -> None:
    """Let this process's pipelines wait for all messages of a batch, if its torch does not."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version >= FIRST_GOOD:
        return
    start = dist.batch_isend_irecv

    def start_together(messages: list[Any]) -> list[Any]:
        return [Together(start(messages))]

    vars(dist)["batch_isend_irecv"] = start_together
