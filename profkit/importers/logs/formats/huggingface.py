"""Grammar of the Hugging Face Trainer, and of what is built on it (axolotl, TRL, ...).

     50%|█████     | 30/60 [03:02<03:02,  6.07s/it]
    {'loss': 1.7631, 'grad_norm': 1.03, 'learning_rate': 7.2e-06, 'epoch': 0.09}
    {'train_runtime': 364.4972, 'train_samples_per_second': 1.317, ..., 'epoch': 0.1}

A line with a loss has neither step nor time: these are those of the progress bar before it, whose
time is in whole seconds and counts from the first step. The evaluations in it are subtracted, as
the lines state them. A `trainer_state.json` has no bar. Then one record has the mean of all steps,
from the time that its last entry states.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, as_number

_KEYS = r"(?=.{0,9999}['\"]learning_rate['\"]: )(?=.{0,9999}['\"]epoch['\"]: )"
_ENTRY = re.compile(
    rf"\{{(?!\"current_steps){_KEYS}.{{0,9999}}?['\"]loss['\"]: "
    r"|\{.{0,9999}?['\"]train_runtime['\"]: "
)
_BAR = re.compile(r"\| (\d{1,12})/(\d{1,12}) \[(?:(\d{1,4}):)?(\d{1,3}):(\d\d)<")
_BATCH = re.compile(r"Total train batch size .{1,60}\) = ([\d,]{1,12})")
STATES_ALL = "huggingface"
"""The grammar of logs of which one line may be about the whole training."""
RESUMED = "if the job was resumed, what the log states of the whole training is wrong"


def value_of(text: str, name: str) -> float | None:
    """Return the number of a key in an entry."""
    found = re.search(rf"['\"]{name}['\"]: ['\"]?([-+.\deE]{{1,30}})", text)
    return as_number(found[1]) if found else None


def read(line: Line, found: Found) -> None:
    text, memory = line.text, found.memory
    for match in _BAR.finditer(text):
        step, total = as_count(match[1]), as_count(match[2])
        hours, minutes, seconds = (as_count(word) or 0 for word in match.groups()[2:])
        memory["bar"] = step, total, 3600.0 * hours + 60 * minutes + seconds
    if evaluation_s := value_of(text, r"eval_(?:\w{1,40}_)?runtime"):
        found.evaluation_lines.append(line.number)
        memory["evaluation_s"] = memory.get("evaluation_s", 0.0) + evaluation_s
    elif batch := _BATCH.search(text):
        found.add_facts(global_batch_size=as_count(batch[1].replace(",", "")))
    elif "train_runtime" in text and (runtime := value_of(text, "train_runtime")):
        _add_whole(line, runtime, found)
    elif _ENTRY.search(text):
        _add_window(line, found)


def _add_window(line: Line, found: Found) -> None:
    """Take the steps since the last line with a later time; evaluations are excluded."""
    memory, text = found.memory, line.text
    step, total, clock_s = memory.get("bar") or (value_of(text, "step"), None, None)
    before, since_s = memory.get("last", (0, 0.0))
    if not step or step <= before or total != memory.setdefault("total", total):
        return  # the bar is that of an evaluation
    steps, step_s = round(step - before), None
    if clock_s is not None:
        step_s = (clock_s - since_s - memory.pop("evaluation_s", 0.0)) / steps
        if step_s <= 0:
            return
    memory["last"] = step, clock_s
    loss, lr = value_of(text, "loss"), value_of(text, "learning_rate")
    found.add_record(line, round(step), step_s=step_s, steps=steps, loss=loss, lr=lr)


def _add_whole(line: Line, runtime: float, found: Found) -> None:
    """Take what the tool states of the whole training, as a record if nothing else has a time."""
    memory, text = found.memory, line.text
    found.add_result(line.number, "time of the whole training", runtime, "s", "with evaluations")
    rate, per_s = (value_of(text, f"train_{name}_per_second") for name in ("samples", "steps"))
    if rate:
        how = "mean over the whole training, with evaluations"
        found.add_result(line.number, "throughput", rate, "samples/s", how)
    steps = round(value_of(text, "step") or memory.get("total") or (per_s or 0.0) * runtime)
    trained_s = runtime - memory.get("evaluation_s", 0.0)
    if steps and trained_s > 0 and not any(each.step_s for each in found.records):
        found.warn(RESUMED, line.number)
        found.records.clear()
        samples = rate * runtime / steps if rate else None
        found.add_record(line, steps, step_s=trained_s / steps, steps=steps, samples=samples)
    memory.clear()  # another training may follow


GRAMMAR = Grammar(
    name=STATES_ALL,
    title="Hugging Face Trainer",
    framework="pytorch",
    marker="loss",
    pattern=_ENTRY,
    read=read,
    scope=Scope.ALL,
    unit="samples",
    times=Mean.WINDOW,
    restarts_each_epoch=False,
    states_windows=True,
    first_step=1,
    evaluates_apart=True,
    warm_up_records=1,
)
