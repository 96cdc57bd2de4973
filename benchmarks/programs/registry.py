"""The programs: how each is started, and how its steps are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TORCHRUN = ("{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LAUNCH = ("{python}", "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")
PADDLE = (
    *("{python}", "-m", "paddle.distributed.launch", "--nproc_per_node", "2"),
    *("--backend", "gloo", "--log_dir", "log"),
)
NOTEBOOK = ("{python}", "-m", "nbconvert", "--to", "notebook", "--execute")

MOST = "the optimizer that steps most"
LEAST = "the optimizer that steps least"
BACKWARDS = "backwards"


@dataclass(frozen=True)
class Program:
    """One program. `words` may hold `{python}` and `{jobs}`."""

    name: str
    about: str
    words: tuple[str, ...]
    packages: tuple[str, ...] = ("torch",)
    ranks: int = 1
    counts: str = MOST
    """The event of the probe that happens once in a step."""
    has_loader: bool = True
    is_seeded: bool = True
    in_tests: bool = False
    """True if the tests run it: it needs the test environment only, and a few seconds."""
    samples_per_step: int | None = None
    """What the user tells profkit, for a loop that has no loader."""

    @property
    def options(self) -> list[str]:
        """The options of `profkit run`."""
        if self.samples_per_step is None:
            return []
        return ["--samples-per-step", str(self.samples_per_step)]

    def command(self, python: str, jobs: str) -> list[str]:
        return [word.format(python=python, jobs=jobs) for word in self.words]


def job(script: str, *words: str, by: Sequence[str] = ("{python}",)) -> tuple[str, ...]:
    return (*by, f"{{jobs}}/{script}", *words)


HF, LIGHTNING = ("torch", "transformers"), ("torch", "lightning")
VISION = ("torch", "torchvision")

PROGRAMS: tuple[Program, ...] = (
    Program(
        "mnist",
        "pytorch/examples mnist: test and schedule each epoch",
        job("mnist.py"),
        in_tests=True,
    ),
    Program(
        "imagenet",
        "pytorch/examples imagenet: image folder, 2 workers, 2 epochs",
        job("imagenet.py"),
        VISION,
    ),
    Program("vae", "pytorch/examples vae", job("vae.py"), in_tests=True),
    Program(
        "dcgan",
        "pytorch/examples dcgan: two optimizers, three backwards",
        job("dcgan.py"),
        in_tests=True,
    ),
    Program(
        "word_lm",
        "pytorch/examples word_language_model with an optimizer, no loader",
        job("word_language_model.py", "--use-optimizer"),
        has_loader=False,
    ),
    Program(
        "word_lm_by_hand",
        "pytorch/examples word_language_model, its default: updated by hand",
        job("word_language_model.py"),
        counts=BACKWARDS,
        has_loader=False,
        in_tests=True,
    ),
    Program(
        "regression",
        "pytorch/examples regression: updated by hand",
        job("regression.py"),
        counts=BACKWARDS,
        has_loader=False,
        samples_per_step=32,
    ),
    Program(
        "reinforce",
        "pytorch/examples reinforcement_learning: an episode a step",
        job("reinforce.py"),
        has_loader=False,
        in_tests=True,
    ),
    Program(
        "hogwild",
        "pytorch/examples mnist_hogwild: two processes, one model",
        job("mnist_hogwild.py"),
        ranks=2,
        is_seeded=False,
    ),
    Program("ddp_spawn", "DDP by mp.spawn, buffers broadcast", job("ddp.py", "--spawn"), ranks=2),
    Program("ddp_torchrun", "DDP by torchrun", job("ddp.py", by=TORCHRUN), ranks=2, in_tests=True),
    Program(
        "fsdp2",
        "FSDP2: fully_shard, by torchrun",
        job("fsdp2.py", by=TORCHRUN),
        ranks=2,
        has_loader=False,
    ),
    Program(
        "nanogpt",
        "nanoGPT: no loader, accumulation 2, evaluation every 10",
        job("nanogpt.py"),
        has_loader=False,
        samples_per_step=24,
        in_tests=True,
    ),
    Program(
        "nanogpt_ddp",
        "nanoGPT by torchrun, rank 0 evaluates",
        job("nanogpt.py", by=TORCHRUN),
        ranks=2,
        has_loader=False,
    ),
    Program("amp", "bf16 autocast, gradient scaler, clipping", job("amp.py")),
    Program("compiled", "torch.compile (aot_eager)", job("compiled.py")),
    Program(
        "trainer_lm", "transformers Trainer: masked LM, accumulation 2", job("trainer.py", "lm"), HF
    ),
    Program(
        "trainer_glue",
        "transformers Trainer: DataCollatorWithPadding, bf16",
        job("trainer.py", "glue"),
        HF,
        in_tests=True,
    ),
    Program(
        "trainer_default",
        "transformers Trainer: default collator",
        job("trainer.py", "default"),
        HF,
    ),
    Program(
        "trainer_stream",
        "transformers Trainer: iterable data set, torchrun",
        job("trainer.py", "stream", by=TORCHRUN),
        HF,
        ranks=2,
    ),
    Program(
        "accelerate",
        "accelerate, no Trainer: accumulation 2",
        job("no_trainer.py"),
        ("torch", "accelerate", "transformers"),
    ),
    Program(
        "accelerate_launch",
        "accelerate, by accelerate launch",
        job("no_trainer.py", by=LAUNCH),
        ("torch", "accelerate", "transformers"),
    ),
    Program(
        "accelerate_ranks",
        "accelerate, by torchrun",
        job("no_trainer.py", by=TORCHRUN),
        ("torch", "accelerate", "transformers"),
        ranks=2,
    ),
    Program(
        "lightning",
        "Lightning autoencoder: automatic",
        job("lightning_auto.py"),
        LIGHTNING,
        in_tests=True,
    ),
    Program(
        "lightning_gan", "Lightning GAN: manual, two optimizers", job("lightning_gan.py"), LIGHTNING
    ),
    Program(
        "lightning_cli",
        "LightningCLI: fit, then test",
        job("lightning_cli.py"),
        (*LIGHTNING, "jsonargparse"),
    ),
    Program(
        "vision_classification",
        "torchvision classification: mixup, EMA",
        job("vision_classification.py"),
        VISION,
    ),
    Program(
        "vision_detection", "torchvision detection: SSDlite", job("vision_detection.py"), VISION
    ),
    Program("timm", "timm: mixup, EMA", job("timm_train.py"), ("torch", "timm")),
    Program(
        "timm_amp",
        "timm: bf16, accumulation 2",
        job("timm_train.py", "--amp", "--accumulate"),
        ("torch", "timm"),
    ),
    Program("ultralytics", "ultralytics: YOLO.train", job("yolo.py"), ("torch", "ultralytics")),
    Program("mmengine", "MMEngine Runner", job("mmengine_train.py"), ("torch", "mmengine")),
    Program(
        "deepspeed",
        "DeepSpeed ZeRO-1, bf16, torchrun",
        job("deepspeed_train.py", by=TORCHRUN),
        ("torch", "deepspeed"),
        ranks=2,
    ),
    Program(
        "datasets", "datasets: streaming, 2 workers", job("streamed.py"), ("torch", "datasets")
    ),
    Program(
        "ray", "Ray Train: its linear example", job("ray_linear.py"), ("torch", "ray"), ranks=2
    ),
    Program(
        "paddle_clas",
        "PaddleClas' loop: 2 workers, evaluation each epoch",
        job("paddle_clas.py"),
        ("paddle",),
    ),
    Program(
        "paddle_clas_launch",
        "PaddleClas' loop, by paddle.distributed.launch",
        job("paddle_clas.py", by=PADDLE),
        ("paddle",),
        ranks=2,
    ),
    Program(
        "paddle_seg",
        "PaddleSeg's loop: evaluation twice",
        job("paddle_seg.py"),
        ("paddle",),
        in_tests=True,
    ),
    Program("paddle_det", "PaddleDetection's loop: 2 workers", job("paddle_det.py"), ("paddle",)),
    Program("paddle_hapi", "paddle.Model.fit", job("paddle_hapi.py"), ("paddle",)),
    Program(
        "notebook",
        "a plain notebook, by nbconvert --execute",
        (*NOTEBOOK, "--output-dir", ".", "{jobs}/notebook.ipynb"),
        ("torch", "nbconvert", "ipykernel"),
    ),
)


def named(names: Sequence[str]) -> list[Program]:
    """Return the programs of these names, or all."""
    unknown = set(names) - {program.name for program in PROGRAMS}
    if unknown:
        raise SystemExit(f"no such program: {', '.join(sorted(unknown))}")
    return [program for program in PROGRAMS if not names or program.name in names]
