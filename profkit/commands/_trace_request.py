"""The request that one `profkit trace` command makes."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.errors import UsageError

if TYPE_CHECKING:
    from profkit.trace import RunManifest
    from profkit.workloads.base import Settings, Workload
    from profkit.workloads.training.prepare import ReadyJob


@dataclass(frozen=True)
class TraceRequest:
    """A workload, its settings, where to train it, and where the run goes.

    `gpus` is the number of GPUs that were asked for, by count or by ids. `words` is the command
    line, with which other ranks are started.
    """

    name: str
    workload: Workload
    settings: Settings
    gpus: int | None
    ranks: int | None
    nodes: int
    node: int
    endpoint: str
    output: Path
    json: bool
    words: tuple[str, ...]

    @classmethod
    def from_args(cls, args: argparse.Namespace, workload: Workload) -> TraceRequest:
        from profkit.workloads.base import Settings

        listed = len(args.devices.split(",")) if args.devices else None
        if args.gpus and listed and args.gpus > listed:
            raise UsageError(f"--gpus {args.gpus}, but --devices lists {listed}")
        names = [field.name for field in dataclasses.fields(Settings)]
        return cls(
            name=args.workload,
            workload=workload,
            settings=Settings(**{name: getattr(args, name) for name in names}),
            gpus=args.gpus or listed,
            ranks=args.ranks,
            nodes=args.nnodes,
            node=args.node_rank,
            endpoint=args.rdzv_endpoint,
            output=args.output,
            json=args.json,
            words=tuple(args.words),
        )

    def manifest(self, job: ReadyJob) -> RunManifest:
        from profkit.trace import RunManifest

        return RunManifest(
            workload=self.name,
            framework=self.settings.framework,
            config=job.config,
            world_size=job.config["world_size"],
        )

    def run_name(self, job: ReadyJob) -> str:
        config = job.config
        scale = f"{config['world_size']}x{config['batch_size']}"
        return f"{self.name}-{self.settings.framework}-{config['precision']}-{scale}"
