"""Predict the step and the throughput of a changed job from a recorded run.

  profkit whatif RUN                          all that the run can answer by itself
  profkit whatif RUN --without late_rank      a cause that 'profkit explain' names
  profkit whatif RUN --base OTHER --without CAUSE
  profkit whatif RUN --faster data=2x        measured, if the run has experiments
  profkit whatif RUN --link 2x --overlap      faster links; the exchange under backward
  profkit whatif RUN --workers 8 --dali       another data loader
  profkit whatif RUN --ranks 64               more ranks, with a chart from 1 to 1,024
  profkit whatif --record                     how earlier predictions came out

Each answer is an interval, with what it rests on and leaves out. Predictions are kept in
predictions.jsonl next to the run. If a later run of the same job makes the change, it scores them.
With --base, batch sizes and ranks follow the line through two runs. Exit code 11: an answer is
inconclusive.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.commands._options import add_run, run_or_newest, whole
from profkit.commands._predictions import add_predictions, check_predictions
from profkit.commands._shapes import add_shapes, check_shape, deliver, renderers
from profkit.errors import ExitCode, UsageError
from profkit.text import did_you_mean, safe_text
from profkit.vocab import EXPERIMENT_PHASES, RECORD

if TYPE_CHECKING:
    from profkit.explain.predict.prediction import Question

MOST_RANKS, MOST_FACTOR = 1_024, 1_000.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_questions(parser.add_argument_group("questions"))
    parser.add_argument(
        "--base", type=Path, metavar="OTHER", help="a run that the answers may rest on as well"
    )
    parser.add_argument(
        "--record",
        nargs="?",
        type=Path,
        const=True,
        metavar="FOLDER",
        help="show how the predictions of a folder of runs came out (default: that of --output)",
    )
    add_predictions(parser)
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
        help="a faster phase: " + ", ".join(EXPERIMENT_PHASES) + "; measured, if the run was "
        "recorded with --experiment; may be repeated",
    )
    asked.add_argument(
        "--link", dest="ask_link", type=factor, metavar="2x", help="links of another bandwidth"
    )
    number = {"metavar": "N"}
    asked.add_argument(
        "--workers", dest="ask_workers", type=whole(0, 1_024), help="loader workers per rank",
        **number,
    )  # fmt: skip
    asked.add_argument(
        "--dali", dest="ask_dali", action="store_true", help="batches made by DALI on the GPU"
    )
    asked.add_argument("--amp", dest="ask_amp", action="store_true", help="mixed precision")
    asked.add_argument(
        "--batch-size", dest="ask_batch_size", type=whole(1, 1_000_000),
        help="samples per rank and step", **number,
    )  # fmt: skip
    asked.add_argument(
        "--ranks", dest="ask_ranks", type=whole(1, MOST_RANKS),
        help="ranks, each with as many samples as now", **number,
    )  # fmt: skip
    asked.add_argument(
        "--no-bubble", dest="ask_no_bubble", action="store_true", help="a full pipeline"
    )
    asked.add_argument(
        "--overlap", dest="ask_overlap", action="store_true", help="the exchange under backward"
    )


def faster_phase(word: str) -> tuple[str, float]:
    """Convert a phase and its factor, such as `data=2x`."""
    phase, _, number = word.partition("=")
    if phase not in EXPERIMENT_PHASES or not number:
        raise argparse.ArgumentTypeError(
            f"'{word}' is not a phase and a factor, such as data=2x"
            f"{did_you_mean(phase, EXPERIMENT_PHASES)}"
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
    if args.record is not None:
        if questions or args.path is not None or args.base is not None:
            raise UsageError("--record shows a folder's record; leave questions and runs out")
        return show_record(args)
    if not questions:  # whose answers are kept, which makes the file
        check_predictions(args)
    from profkit.explain.predict.ask import ask
    from profkit.explain.predict.board import answer_all
    from profkit.explain.predict.job import read_job
    from profkit.explain.predict.prediction import WITH_BASE
    from profkit.explain.predict.record import keep, record_file
    from profkit.explain.predict.scoring import score_record
    from profkit.report import whatif_document
    from profkit.trace import Trace

    path = run_or_newest(args.path, args.output)
    job = read_job(Trace.open(path))
    if args.base is not None and not any(each.kind in WITH_BASE for each in questions):
        raise UsageError("--base helps to answer --without, --batch-size and --ranks only")
    base = read_job(Trace.open(args.base)) if args.base is not None else None
    answers = [ask(job, question, base) for question in questions] or answer_all(job)
    if not answers:
        why = job.why_no_model or "the run shows no cause by itself, and no exchange"
        raise UsageError(f"{safe_text(str(path))}: {why}; ask a question (see 'profkit whatif -h')")
    file = record_file(path, args.predictions)
    entries = score_record(file, path.resolve().parent)
    for answer in answers[: len(questions)]:
        if why := keep(answer, job.evidence.trace, file, base.evidence.trace if base else None):
            print(f"profkit: {safe_text(why)}", file=sys.stderr)
    makers = renderers(
        brief=lambda: whatif_document.whatif(answers, path, entries),
        full=lambda: whatif_document.whatif(answers, path, entries),
        figures=lambda: whatif_document.whatif_json(answers, path, entries),
    )
    deliver(args, makers)
    if questions and not all(answer.conclusive for answer in answers):
        return ExitCode.NOT_JUDGED
    return ExitCode.DONE


def read_questions(args: argparse.Namespace) -> list[Question]:
    """Return what was asked, in the order of the help."""
    from profkit import plugins
    from profkit.explain.predict.prediction import FASTER, KINDS, WITHOUT, Question

    found = []
    known = sorted(plugins.RULES.load_all()[0])
    for cause in args.ask_without or ():
        if cause not in known:
            raise UsageError(
                f"unknown cause '{safe_text(cause)}'{did_you_mean(cause, known)} "
                "(docs/causes.md lists them)"
            )
        found.append(Question(WITHOUT, cause=cause))
    for phase, times in args.ask_faster or ():
        found.append(Question(FASTER, times, cause=phase))
    for kind in KINDS:
        value = getattr(args, f"ask_{kind}")
        if kind not in {WITHOUT, FASTER} and value is not None and value is not False:
            found.append(Question(kind, float(value)))
    return found


def show_record(args: argparse.Namespace) -> int:
    from profkit.errors import UnreadableError
    from profkit.explain.predict.scoring import score_record
    from profkit.report import whatif_document

    folder: Path = args.output if args.record is True else args.record
    file = args.predictions or folder / RECORD
    if not file.is_file():
        raise UnreadableError(
            f"{safe_text(str(file))}: no predictions; 'profkit whatif RUN --link 2x' makes one"
        )
    entries = score_record(file, folder)
    makers = renderers(
        brief=lambda: whatif_document.record(entries, file),
        full=lambda: whatif_document.record(entries, file),
        figures=lambda: whatif_document.record_json(entries, file),
    )
    deliver(args, makers)
    return ExitCode.DONE
