"""Runs that were measured elsewhere, such as on several machines, as cells of a matrix."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from profkit.analysis.matrix import Setting
from profkit.bench.run import AMP, FULL, is_whole
from profkit.environment import read_environment
from profkit.errors import UsageError
from profkit.text import safe_text, shell_word
from profkit.trace.folders import check_folder, find_runs
from profkit.trace.manifest import RunManifest
from profkit.vocab import RUN_FILE

Added = dict[Setting, list[Path]]


def find_added(places: Iterable[Path], workload: str) -> tuple[Added, str]:
    """Return the runs at these places by cell, and the option that scales them.

    A place is a run, or a folder of runs as `profkit bench` and `profkit trace` leave it.
    """
    added: Added = {}
    scales: dict[str, Path] = {}
    for place in dict.fromkeys(path.resolve() for path in places):
        runs = [place] if (place / RUN_FILE).exists() else find_runs(place)
        if not runs:
            check_folder(place)
        for run in runs:
            manifest = RunManifest.read(run)
            if manifest.workload != workload:
                name = safe_text(manifest.workload)
                raise _refusal(run, f"a run of '{name}', and this matrix is of '{workload}'")
            if not is_whole(run):
                raise _refusal(run, f"not complete; see 'profkit verify {shell_word(str(run))}'")
            setting = _setting_of(run, manifest)
            if run not in added.setdefault(setting, []):
                added[setting].append(run)
            on_cpu = manifest.config.get("device") == "cpu"
            scales["--ranks" if on_cpu else "--gpus"] = run
    if len(scales) > 1:
        raise _refusal(scales["--ranks"], "trained on the CPU, and others on GPUs")
    return added, next(iter(scales), "")


def check_machines(added: Added, settings: Collection[Setting], scale: str) -> None:
    """Refuse cells whose repeats come from different models of GPUs, or of CPUs without GPUs.

    The cells of `settings` are run on this machine.
    """
    fact = "gpu_models" if scale == "--gpus" else "cpu"
    here = _model(read_environment(), fact)
    for setting, runs in added.items():
        known = here if setting in settings else ""
        for run in runs:
            model = _model(RunManifest.read(run).environment, fact)
            if known and model and model != known:
                why = f"its machine has {model}, and other repeats of its cell have {known}"
                raise _refusal(run, safe_text(why))
            known = known or model


def _model(environment: Mapping[str, Any], fact: str) -> str:
    """Return the model of a machine's processors, whatever their number."""
    found = environment.get(fact) or ""
    if isinstance(found, str):
        return found
    return ", ".join(sorted(set(map(str, found))))


def _setting_of(run: Path, manifest: RunManifest) -> Setting:
    config = manifest.config
    precision = FULL if config.get("precision") == FULL else AMP
    try:
        size, batch_size, loader = config["world_size"], config["batch_size"], config["loader"]
    except KeyError as error:
        why = f"it has no '{error.args[0]}'; only runs of 'profkit trace' are cells"
        raise _refusal(run, why) from error
    return Setting(int(size), precision, int(batch_size), str(loader), manifest.framework)


def _refusal(run: Path, why: str) -> UsageError:
    return UsageError(f"--add {safe_text(str(run))}: {why}")
