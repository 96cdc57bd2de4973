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

MOST = "the optimizer that steps most"
LEAST = "the optimizer that steps least"
BACKWARDS = "backwards"


@dataclass(frozen=True)
class Program:
    """One program. `words` may hold `{python}` and `{jobs}`."""

    name: str
    words: tuple[str, ...]
    packages: tuple[str, ...] = ("torch",)
    ranks: int = 1
    counts: str = MOST
    """The event of the probe that happens once in a step."""
    has_loader: bool = True
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


BY = {"": ("{python}",), "torchrun": TORCHRUN, "launch": LAUNCH, "paddle": PADDLE}
TABLE = """
mnist             | mnist.py                             |          | in_tests
dcgan             | dcgan.py                             |          | in_tests
word_lm           | word_language_model.py --use-optimizer | | no_loader
word_lm_by_hand   | word_language_model.py               |          | backwards no_loader in_tests
ddp_spawn         | ddp.py --spawn                       |          | ranks=2
ddp_torchrun      | ddp.py                               | torchrun | ranks=2 in_tests
nanogpt           | nanogpt.py                           |          | no_loader samples=24 in_tests
nanogpt_ddp       | nanogpt.py                           | torchrun | ranks=2 no_loader
trainer_lm        | trainer.py lm                        |          | transformers
trainer_glue      | trainer.py glue                      |          | transformers in_tests
trainer_default   | trainer.py default                   |          | transformers
trainer_stream    | trainer.py stream                    | torchrun | transformers ranks=2
accelerate        | no_trainer.py                        |          | accelerate transformers
accelerate_launch | no_trainer.py                        | launch   | accelerate transformers
accelerate_ranks | no_trainer.py | torchrun | accelerate transformers ranks=2
lightning         | lightning_auto.py                    |          | lightning in_tests
lightning_gan     | lightning_gan.py                     |          | lightning
ultralytics       | yolo.py                              |          | ultralytics
ray               | ray_linear.py                        |          | ray ranks=2
paddle_clas       | paddle_clas.py                       |          | paddle
paddle_clas_ranks | paddle_clas.py                       | paddle   | paddle ranks=2
paddle_seg        | paddle_seg.py                        |          | paddle in_tests
paddle_hapi       | paddle_hapi.py                       |          | paddle
"""
"""Name, script with its arguments, launcher, and what is special; other words are packages."""


def _read(line: str) -> Program:
    name, script, by, special = (cell.strip() for cell in line.split("|"))
    words = special.split()
    values = dict(word.split("=") for word in words if "=" in word)
    flags = {"in_tests", "backwards", "no_loader"}
    packages = [word for word in words if word not in flags and "=" not in word]
    return Program(
        name,
        (*BY[by], *f"{{jobs}}/{script}".split()),
        tuple(packages if "paddle" in packages else ["torch", *packages]),
        ranks=int(values.get("ranks", 1)),
        counts=BACKWARDS if "backwards" in words else MOST,
        has_loader="no_loader" not in words,
        in_tests="in_tests" in words,
        samples_per_step=int(values["samples"]) if "samples" in values else None,
    )


NOTEBOOK = Program(
    "notebook",
    (
        *("{python}", "-m", "nbconvert", "--to", "notebook", "--execute"),
        *("--output-dir", ".", "{jobs}/notebook.ipynb"),
    ),
    ("torch", "nbconvert", "ipykernel"),
)
PROGRAMS: tuple[Program, ...] = (*map(_read, TABLE.strip().splitlines()), NOTEBOOK)


def named(names: Sequence[str]) -> list[Program]:
    """Return the programs of these names, or all."""
    unknown = set(names) - {program.name for program in PROGRAMS}
    if unknown:
        raise SystemExit(f"no such program: {', '.join(sorted(unknown))}")
    return [program for program in PROGRAMS if not names or program.name in names]
