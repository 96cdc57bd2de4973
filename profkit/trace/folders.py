"""Find runs and their ranks in folders."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from profkit.address import Address
from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.text import plural, safe_text
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.trace.rank import RankTrace
from profkit.vocab import REPEATS, RUN_FILE, RunState

_RANK_FOLDER = re.compile(r"r(\d{5})")
_OF_A_LAUNCH = r"-\d{8}-[\w.]+(-\d+)?"


def find_ranks(run: Path) -> Iterator[RankTrace]:
    """Yield the ranks of a run, in order."""
    for folder in sorted(run.iterdir()):
        match = _RANK_FOLDER.fullmatch(folder.name)
        if match and folder.is_dir():
            yield RankTrace(folder, int(match[1]))


def read_run(run: Path, ranks: Iterable[RankTrace]) -> RunManifest:
    """Return a run's manifest; that of a run that is open, with what its ranks know."""
    manifest = RunManifest.read(run)
    if manifest.state is not RunState.RUNNING:
        return manifest
    return manifest.with_ranks(rank_manifests(ranks))


def rank_manifests(ranks: Iterable[RankTrace]) -> list[RankManifest]:
    """Return the ranks' manifests; one that was killed while it opened its files has none."""
    found = []
    for rank in ranks:
        with contextlib.suppress(UnreadableError):
            found.append(rank.manifest)
    return found


MOST_NAMES = 4


def find_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(file.lstat().st_mtime_ns, file.parent) for file in folder.glob("*/" + RUN_FILE)]
    return [path for _, path in sorted(found)]


def newest_run(runs: Sequence[Path], *, or_running: bool = False) -> Path:
    """Return the last of the runs that has steps, or the last one if none has.

    A job that fails before its first step leaves a run without. `or_running` also takes a run that
    has not ended.
    """
    taken = (run for run in reversed(runs) if _is_of_use(run, or_running=or_running))
    return next(taken, runs[-1])


def _is_of_use(run: Path, *, or_running: bool) -> bool:
    try:
        manifest = RunManifest.read(run)
        if "imported_from" in manifest.config:  # it may be of something else than steps
            return True
        if or_running and manifest.state is RunState.RUNNING:
            return True
        return any(rank.content("steps").rows for rank in find_ranks(run))
    except (ProfkitError, OSError):  # who opens a damaged run hears of it
        return True


def read_manifests(folder: Path) -> Iterator[tuple[Path, RunManifest]]:
    """Yield the runs of a folder whose manifest can be read, oldest first."""
    for path in find_runs(folder):
        with contextlib.suppress(ProfkitError):
            yield path, RunManifest.read(path)


def group_of(manifest: RunManifest) -> str:
    """Return the group of repeats that a run belongs to; empty if it belongs to none."""
    return _note_of(manifest, "group")


def session_of(manifest: RunManifest) -> tuple[str, str]:
    """Return the group of a run and the session that recorded it; both empty without a group.

    Repeats belong to one session: the job may have changed before the next, whatever its name.
    """
    return _note_of(manifest, "group"), _note_of(manifest, "session")


def _note_of(manifest: RunManifest, name: str) -> str:
    repeats = manifest.config.get(REPEATS)
    value = repeats.get(name) if isinstance(repeats, dict) else None
    return value if isinstance(value, str) else ""


def find_group(path: Path) -> list[Path]:
    """Return the complete runs of a group, which is named like a run in the folder of runs.

    If several sessions used the name, they are those of the newest.
    """
    found: dict[tuple[str, str], list[Path]] = {}
    for run, manifest in read_manifests(path.parent):
        if group_of(manifest) == path.name and manifest.state is RunState.COMPLETE:
            found.setdefault(session_of(manifest), []).append(run)
    return found.popitem()[1] if found else []


def find_named(path: Path) -> list[Path]:
    """Return the newest run of a name, or the runs of its group if that is the newest.

    A run's folder is called by its name, and by when or by which launch it was recorded.
    """
    repeats = find_group(path)
    pattern = re.compile(re.escape(path.name) + _OF_A_LAUNCH)
    named = [run for run in find_runs(path.parent) if pattern.fullmatch(run.name)]
    if not named:
        return repeats
    run = newest_run(named)
    with contextlib.suppress(ProfkitError):  # who opens a damaged run hears of it
        if repeats and group_of(RunManifest.read(run)) == path.name:
            return repeats
    return [run]


LAST, PREVIOUS = "last", "prev"


def find_run(path: Path, folder: Path) -> Path:
    """Return the run that a path names, or a name in the folder of runs; else the path itself."""
    if isinstance(path, Address) or path.exists():
        return path
    if path.name != str(path):
        folder = path.parent
    return find_called(path.name, folder) or path


def find_called(name: str, folder: Path) -> Path | None:
    """Return the run in a folder that is called so; `None` if there is none.

    It is the newest of the job of this name, or the only one whose name begins so, or the last one
    or that before it.
    """
    runs = find_runs(folder)
    if name in {LAST, PREVIOUS}:
        of_use = [run for run in runs if _is_of_use(run, or_running=False)]
        place = -1 if name == LAST else -2
        if len(of_use) < -place:
            held = plural(len(of_use), "run")
            raise UsageError(
                f"{name}: {held} with steps in {safe_text(str(folder))}; "
                "'profkit run -- COMMAND' records one"
            )
        return of_use[place]
    if named := find_named(folder / name):
        return named[0] if len(named) == 1 else None
    called = [run for run in runs if run.name.startswith(name)]
    if len(called) > 1:
        names = ", ".join(safe_text(run.name) for run in called[-MOST_NAMES:])
        raise UsageError(
            f"the names of {len(called)} runs in {safe_text(str(folder))} begin with "
            f"'{safe_text(name)}'; the newest are {names}"
        )
    return called[0] if called else None


def check_one_session(folder: Path) -> None:
    """Raise a `UsageError` if a folder has repeats of several sessions, or others as well."""
    sessions = {session_of(manifest) for _, manifest in read_manifests(folder)}
    groups = sorted({group for group, _ in sessions} - {""})
    if len(sessions) > 1 and groups:
        named = ", ".join(str(folder / group) for group in groups)
        raise UsageError(
            f"{safe_text(str(folder))} holds runs of several sessions, between which the job may "
            f"have changed; name one group ({safe_text(named)}), or runs with commas"
        )


def check_folder(path: Path) -> None:
    """Raise an `UnreadableError` that says why a folder is not a run, and which one might be."""
    try:
        entries = [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        near = _newest_run_near(path) or "; 'profkit run -- COMMAND' makes a run"
        problem = f"no such folder{near}"
        named = find_named(path)
        if named:
            newest = safe_text(str(named[-1]))
            problem = f"no such folder; the newest run of this name is {newest}"
        if len(named) > 1:
            problem = f"a group of {len(named)} runs and no run; name one, such as {newest}"
    except NotADirectoryError:
        problem = "a file, and a run is a folder; other tools' traces and logs are not runs"
    except PermissionError:
        remedy = "run as its owner, or have the owner allow it with chmod"
        problem = f"no permission to read it; {remedy}"
    else:
        if RUN_FILE in entries:
            return
        runs = find_runs(path)
        if not entries:
            problem = "an empty folder; 'profkit run -- COMMAND' makes a run"
        elif runs:
            newest = safe_text(str(newest_run(runs)))
            held = plural(len(runs), "run")
            problem = f"holds {held} and is none itself; name one, such as {newest}"
        else:
            problem = f"not a run (it has no {RUN_FILE}){_newest_run_near(path)}"
    raise UnreadableError(f"{safe_text(str(path))}: {problem}")


def _newest_run_near(path: Path) -> str:
    runs = find_runs(path.parent)
    if not runs:
        return ""
    return f"; the newest run in the same folder is {safe_text(str(newest_run(runs)))}"
