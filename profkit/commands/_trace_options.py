"""The options of `profkit trace`, by topic."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from profkit.commands._options import count_not_ids, duration_s, gpu_ids, positive, whole
from profkit.commands._training_options import add_training_options
from profkit.config import FALSE, TRUE


def add_training(group: Any) -> None:
    group.add_argument(
        "--framework",
        default="torch",
        metavar="NAME",
        help="torch or paddle (default: %(default)s)",
    )
    group.add_argument(
        "--batch-size", type=whole(1), metavar="N", help="samples per step on each rank"
    )
    add_training_options(group, "--image-size")
    group.add_argument(
        "--lr",
        type=positive,
        metavar="RATE",
        help="learning rate (default: the published one, scaled to the global batch)",
    )
    group.add_argument(
        "--amp",
        nargs="?",
        const="auto",
        default="",
        choices=("auto", "bf16", "fp16", "O1", "O2"),
        help="mixed precision: fp16 with a gradient scaler on a GPU, bf16 on a CPU; "
        "Paddle's level O1 or O2",
    )
    add_training_options(group, "--channels-last")
    group.add_argument("--compile", action="store_true", help="compile the model first")
    group.add_argument(
        "--autotune",
        action=argparse.BooleanOptionalAction,
        help="let cuDNN search the fastest convolution for each shape (default: on a GPU, unless "
        "every batch has another shape)",
    )
    add_training_options(group, "--seed")


def add_data(group: Any) -> None:
    add_training_options(group, "--data", "--workers")
    group.add_argument(
        "--prefetch",
        type=whole(1, 64),
        metavar="N",
        help="batches that each worker prepares ahead (default: 2)",
    )
    group.add_argument(
        "--pin",
        action=argparse.BooleanOptionalAction,
        help="batches in pinned memory (default: on a GPU)",
    )
    group.add_argument(
        "--dali",
        nargs="?",
        const="cpu",
        default="",
        type=dali_device,
        metavar="WHERE",
        help="decode with NVIDIA DALI, on the 'cpu' (without a value) or 'gpu'; a GPU normalises "
        "the images in both cases",
    )
    group.add_argument(
        "--bad-samples",
        default="error",
        choices=("error", "skip", "pad"),
        help="if an image is broken or missing: stop, take the next sample, or use a grey image "
        "(default: %(default)s)",
    )


def add_scale(group: Any) -> None:
    group.add_argument(
        "--gpus",
        type=count_not_ids,
        metavar="N",
        help="number of GPUs of this machine (ids go into --devices)",
    )
    group.add_argument("--devices", type=gpu_ids, metavar="IDS", help="GPUs to use, such as 0,2")
    group.add_argument(
        "--ranks", type=whole(1, 1024), metavar="N", help="processes on the CPU, over gloo"
    )
    group.add_argument(
        "--nnodes",
        type=whole(1, 4096),
        default=1,
        metavar="N",
        help="number of machines (default: %(default)s)",
    )
    group.add_argument(
        "--node-rank",
        type=whole(0, 4095),
        default=0,
        metavar="N",
        help="number of this machine, from 0",
    )
    group.add_argument(
        "--rdzv-endpoint",
        default="",
        metavar="HOST:PORT",
        help="address on the machine of --node-rank 0 where all ranks meet",
    )


def add_end(group: Any) -> None:
    add_training_options(group, "--steps", "--warmup")
    group.add_argument(
        "--epochs",
        type=whole(1),
        metavar="N",
        help="epochs to train, if --steps is not given",
    )
    group.add_argument(
        "--until",
        default="",
        metavar="TARGET",
        help="stop at loss<0.05, at loss<0.3x (a share of the first steps' loss; both are means of "
        "10 steps), or at a quality figure such as top1>0.711 or miou>0.78",
    )
    group.add_argument(
        "--max-time", type=duration_s, metavar="TIME", help="stop after 90, 15m or 2h"
    )
    group.add_argument(
        "--nan",
        default="stop",
        choices=("stop", "continue"),
        help="what to do if the loss becomes NaN or infinite (default: %(default)s)",
    )
    group.add_argument(
        "--evaluate",
        action="store_true",
        help="score the model on the validation set at the end, and after each epoch of --epochs",
    )
    group.add_argument(
        "--evaluate-every", type=whole(1), metavar="N", help="score it after every N steps as well"
    )
    group.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FOLDER",
        help="save the training there at the end; the newest two checkpoints are kept",
    )
    group.add_argument(
        "--checkpoint-every", type=whole(1), metavar="N", help="save after every N steps as well"
    )
    group.add_argument(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="continue from a checkpoint, or from the newest one in the folder",
    )


def dali_device(word: str) -> str:
    """Convert the value of --dali; truth values mean `cpu` and none, as for other flags."""
    known = (
        dict.fromkeys(TRUE, "cpu") | dict.fromkeys(FALSE, "") | {"": "", "cpu": "cpu", "gpu": "gpu"}
    )
    if word.lower() not in known:
        raise argparse.ArgumentTypeError(f"'{word}' is neither cpu nor gpu")
    return known[word.lower()]
