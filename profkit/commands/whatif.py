"""Predict the step and the throughput of a changed job from a recorded run.

  profkit whatif RUN                          all that the run can answer by itself
  profkit whatif RUN --without late_rank      a cause that 'profkit explain' names
  profkit whatif RUN --base OTHER --without CAUSE
  profkit whatif RUN --workers 8              another number of loader workers
  profkit whatif RUN --faster forward=2x      a faster phase
  profkit whatif RUN --link 2x                faster links
  profkit whatif RUN --ranks 64               more ranks, with a chart from 1 to 1,024

Each answer is a best guess with its range, what it rests on, and what it leaves out. With --base,
--ranks extends what the job lost between the two runs. Exit code 11: an answer is inconclusive.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from profkit.address import to_path
from profkit.commands._options import add_run, run_or_newest, whole
from profkit.commands._shapes import add_shapes, check_shape, deliver, renderers
from profkit.errors import ExitCode, UsageError
from profkit.text import did_you_mean, safe_text
from profkit.vocab import FASTER_PHASES

if TYPE_CHECKING:
    from profkit.explain.predict.prediction import Question

MOST_RANKS, MOST_FACTOR = 1_024, 1_000.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_questions(parser.add_argument_group("questions"))
    parser.add_argument(
        "--base", type=to_path, metavar="OTHER", help="a run that the answers may rest on as well"
    )
    add_shapes(parser)


def add_questions(asked: Any) -> None:
    """Declare what can be asked. No setting of a job has these names."""
    asked.add_argument(
        "--without",
        action="append",
        dest="ask_without",
        metavar="CAUSE",
        help="without a cause of 'profkit explain', such as late_rank; may be repeated",
    )
    asked.add_argument(
        "--faster",
        action="append",
        dest="ask_faster",
        type=faster_phase,
        metavar="PHASE=2x",
        help="a faster phase: " + ", ".join(FASTER_PHASES) + "; may be repeated",
    )
    asked.add_argument(
        "--link", dest="ask_link", type=factor, metavar="2x", help="links of another bandwidth"
    )
    asked.add_argument(
        "--workers",
        dest="ask_workers",
        type=whole(0, 1_024),
        metavar="N",
        help="loader workers per rank",
    )
    asked.add_argument(
        "--ranks",
        dest="ask_ranks",
        type=whole(1, MOST_RANKS),
        metavar="N",
        help="ranks, each with as many samples as now",
    )


def faster_phase(word: str) -> tuple[str, float]:
    """Convert a phase and its factor, such as `data=2x`."""
    phase, _, number = word.partition("=")
    if phase not in FASTER_PHASES or not number:
        raise argparse.ArgumentTypeError(
            f"'{word}' is not a phase and a factor, such as data=2x"
            f"{did_you_mean(phase, FASTER_PHASES)}"
        )
    return phase, factor(number)


def factor(word: str) -> float:
    """Convert a factor such as `2x` or `1.5`."""
    try:
        value = float(word.lower().removesuffix("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{word}' is not a factor such as 2x") from None
    if not 1 / MOST_FACTOR <= value <= MOST_FACTOR:
        raise argparse.ArgumentTypeError(f"{word} is out of range: 0.001x to 1000x")
    return value


def run(args: argparse.Namespace) -> int:
    check_shape(args)
    questions = read_questions(args)
    from profkit.explain.predict.ask import answer_all, ask
    from profkit.explain.predict.job import read_job
    from profkit.explain.predict.prediction import WITH_BASE
    from profkit.report import whatif_document
    from profkit.trace import Trace

    path = run_or_newest(args.path, args.output)
    job = read_job(Trace.open(path))
    if args.base is not None and not any(each.kind in WITH_BASE for each in questions):
        raise UsageError("--base helps to answer --without and --ranks only")
    base = read_job(Trace.open(args.base)) if args.base is not None else None
    answers = [ask(job, question, base) for question in questions] or answer_all(job)
    deliver(args, renderers(lambda: whatif_document.whatif(answers)))
    if questions and not all(answer.conclusive for answer in answers):
        return ExitCode.NOT_JUDGED
    return ExitCode.DONE


def read_questions(args: argparse.Namespace) -> list[Question]:
    """Return what was asked, in the order of the help."""
    from profkit import plugins
    from profkit.explain.named import KINDS
    from profkit.explain.predict.prediction import FASTER, LINK, RANKS, WITHOUT, WORKERS, Question

    found = []
    known = sorted({*plugins.RULES.names(), *KINDS})
    for cause in args.ask_without or ():
        if cause not in known:
            raise UsageError(
                f"unknown cause '{safe_text(cause)}'{did_you_mean(cause, known)} "
                "(docs/causes.md lists them)"
            )
        found.append(Question(WITHOUT, cause=cause))
    for phase, times in args.ask_faster or ():
        found.append(Question(FASTER, times, cause=phase))
    for kind in (LINK, WORKERS, RANKS):
        value = getattr(args, f"ask_{kind}")
        if value is not None:
            found.append(Question(kind, float(value)))
    return found
