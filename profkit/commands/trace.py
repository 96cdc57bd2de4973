"""Run a reference system, time every step, and show where the time went.

  profkit trace resnet50
  profkit trace psenet --framework paddle --batch-size 4 --steps 50
  profkit trace resnet50 --ranks 2                    two processes on the CPU
  profkit trace mask_rcnn --gpus 8 --amp              eight GPUs of this machine
  profkit trace tsm --gpus 8 --nnodes 4 --node-rank 0 --rdzv-endpoint node0:29500
  srun profkit trace hrnet_w18                        ranks as Slurm starts them

profkit keeps the run in the output folder. Ctrl-C ends it early; the recorded rows stay readable.
"""

from __future__ import annotations

import argparse
import os

from profkit.commands._options import (
    add_collect,
    add_hang_after,
    add_json,
    add_output,
    pass_on_collect,
    pass_on_hang_after,
)
from profkit.commands._places import find_team, own_rank
from profkit.commands._preflight import check_machine
from profkit.commands._signals import terminable
from profkit.commands._trace_alone import train_alone
from profkit.commands._trace_options import add_data, add_end, add_scale, add_training
from profkit.commands._trace_ranks import train_as_rank, train_team
from profkit.commands._trace_request import TraceRequest
from profkit.errors import UsageError
from profkit.text import shell_word


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload", metavar="WORKLOAD", help="its name; 'profkit workloads' lists them"
    )
    add_training(parser.add_argument_group("training"))
    add_data(parser.add_argument_group("data"))
    add_scale(parser.add_argument_group("scale"))
    add_end(parser.add_argument_group("end"))
    add_collect(parser.add_argument_group("collected during training"))
    add_hang_after(parser)
    add_output(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.plugins import WORKLOADS
    from profkit.workloads.training.target import Target

    if args.workload.endswith(".py"):
        raise UsageError(
            "trace runs reference systems; a script of your own is recorded by "
            f"'profkit run -- python {shell_word(args.workload)}'"
        )
    request = TraceRequest.from_args(args, WORKLOADS.load(args.workload))
    request.workload.check(request.settings)
    pass_on_collect(args)
    pass_on_hang_after(args)
    Target.parse(request.settings.until, request.workload.figures)
    if args.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = args.devices
    with terminable():
        rank = own_rank(request)
        if rank is not None:
            return train_as_rank(request, rank)
        team = find_team(request)
        check_machine(
            [request.settings.framework],
            gpus=request.gpus,
            on_cpu=bool(request.ranks),
            amp=bool(request.settings.amp),
            dali=bool(request.settings.dali),
        )
        if team is not None:
            return train_team(request, team)
        return train_alone(request)
