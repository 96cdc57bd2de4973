"""Properties of all importers: their choice, clean names, and what a failure leaves."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.clock import Anchor
from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.importers.base import (
    Imported,
    Importer,
    ImportOptions,
    Target,
    clean_name,
    file_name,
    read_head,
)
from profkit.importers.reading.plan import plan_import
from profkit.plugins import IMPORTERS
from profkit.testing import synthetic_trace
from profkit.trace import RankManifest, RunManifest, Trace, verify
from profkit.trace.flag import Flag, FlagKind
from profkit.vocab import Integrity
from tests.documents import report_text


class Lines:
    """A format of lines `start end name`, each a step's phase."""

    name = "lines"
    title = "lines"

    def recognises(self, head: bytes, path: Path) -> float:
        return 0.9 if head.startswith(b"lines\n") else 0.0

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        with target.new_run(self.name, sources) as draft:
            for rank, source in enumerate(sources):
                tables = draft.rank(
                    RankManifest(rank, "", 0, "", Anchor(0, 0, 0), world_size=len(sources))
                )
                rows = [line.split(" ", 2) for line in source.read_text().splitlines()[1:]]
                if any(len(row) != 3 for row in rows):
                    raise UnreadableError(f"{source}: not lines")
                names = [row[2] for row in rows]
                columns = {
                    "phase": ["other"] * len(rows),
                    "name": names,
                    "depth": [0] * len(rows),
                    "thread": ["main"] * len(rows),
                }
                tables.write(
                    "spans",
                    {
                        **columns,
                        "start_ns": [int(row[0]) for row in rows],
                        "end_ns": [int(row[1]) for row in rows],
                    },
                )
            draft.dropped["lines that are empty"] += 2
            draft.flags.append("a flag\x1b[2J")
            yield draft.finish(RunManifest("lines", world_size=len(sources)))


LINES: dict[str, Importer] = {"lines": Lines()}


def _file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_files_of_ranks_become_one_run_that_verifies(tmp_path: Path) -> None:
    files = [
        _file(tmp_path, f"job.{rank}.txt", "lines\n1 2 a\x1b]52;c;Zm9v\x07\n3 4 b\n")
        for rank in range(2)
    ]
    plan = plan_import(files, LINES)
    (made,) = LINES["lines"].read(plan.sources["lines"], Target(tmp_path / "traces"))
    assert (made.ranks, made.rows, made.dropped) == (2, {"spans": 4}, {"lines that are empty": 2})
    assert verify(made.run).state is Integrity.COMPLETE
    trace = Trace.open(made.run)
    assert trace.spans["name"].to_pylist()[:2] == ["a\\x1b]52;c;Zm9v\\x07", "b"]
    assert made.flags == ("a flag\\x1b[2J",)
    assert "2 lines that are empty" in trace.manifest.notes


def test_a_failure_leaves_no_run(tmp_path: Path) -> None:
    broken = _file(tmp_path, "job.txt", "lines\nnonsense\n")
    with pytest.raises(UnreadableError):
        list(LINES["lines"].read([broken], Target(tmp_path / "traces")))
    assert list((tmp_path / "traces").iterdir()) == []


def test_a_folder_is_its_files_and_strangers_in_it_are_named(tmp_path: Path) -> None:
    known, stranger = _file(tmp_path, "a.txt", "lines\n"), _file(tmp_path, "b.txt", "else\n")
    plan = plan_import([tmp_path], LINES)
    assert (plan.sources, plan.unknown) == ({"lines": (known,)}, (stranger,))
    with pytest.raises(UnreadableError, match="not a format that profkit imports"):
        plan_import([stranger], LINES)
    assert plan_import([stranger], LINES, "lines").sources == {"lines": (stranger,)}
    with pytest.raises(UsageError, match="did you mean 'lines'"):
        plan_import([stranger], LINES, "line")


@pytest.mark.parametrize("method", ["is_dir", "iterdir", "is_file"])
def test_a_place_that_may_not_be_searched_is_named(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder above may forbid it, or the folder itself; root may do everything."""
    _file(tmp_path, "a.txt", "lines\n")

    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(UnreadableError) as found:
        plan_import([tmp_path], LINES)
    text = str(found.value)
    assert text == f"{tmp_path}: Permission denied; copy the file or have its owner share it"


def test_a_name_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="name too long"):
        plan_import([tmp_path / ("x" * 300)], LINES)


def test_a_head_is_decompressed_and_bounded(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    assert read_head(tmp_path / "bomb.gz") == bytes(65_536)
    (tmp_path / "torn.gz").write_bytes(b"\x1f\x8bnothing like gzip")
    with pytest.raises(UnreadableError, match="damaged gzip"):
        read_head(tmp_path / "torn.gz")
    with pytest.raises(UnreadableError, match="No such file"):
        read_head(tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("../../etc/passwd", "etc-passwd"),
        (".hidden", "hidden"),
        ("a b\x1b[31m", "a-b-31m"),
        ("...", "imported"),
    ],
)
def test_a_name_from_a_file_is_never_a_path(name: str, folder: str) -> None:
    assert file_name(name) == folder


def test_a_user_names_the_run(tmp_path: Path) -> None:
    file = _file(tmp_path, "job.txt", "lines\n1 2 a\n")
    (made,) = LINES["lines"].read([file], Target(tmp_path / "traces", ImportOptions(name="mine")))
    assert made.run.name == "mine"


def test_a_name_has_an_end() -> None:
    assert len(clean_name("x" * 1_000_000)) == 4_096


@pytest.mark.parametrize("name", IMPORTERS.names())
def test_every_importer_keeps_the_contract(name: str) -> None:
    importer = IMPORTERS.load(name)
    assert importer.name == name
    assert importer.title
    for head in (b"", b"\0" * 100, b"{", b"[", b"\xff\xfe", b"hello\n" * 50):
        assert 0 <= importer.recognises(head, Path("unknown")) <= 1


@pytest.mark.parametrize(
    ("config", "state"),
    [({"imported_from": "training_log"}, Integrity.COMPLETE), ({}, Integrity.ENDED_EARLY)],
)
def test_a_log_of_rank_0_alone_is_a_whole_import(
    tmp_path: Path, config: dict[str, str], state: Integrity
) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=1, steps=4)
    dataclasses.replace(RunManifest.read(run), world_size=8, config=config).write(run)
    assert verify(run).state is state


@pytest.mark.parametrize(
    ("flag", "judged"),
    [
        (Flag("rank 0: dropped 3 events that end before they start", FlagKind.BAD_TIMES), False),
        (Flag("dropped in a name"), True),
    ],
)
def test_no_verdict_is_given_on_times_that_cannot_be(
    tmp_path: Path, flag: Flag, judged: bool
) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=1, steps=60)
    dataclasses.replace(RunManifest.read(run), flags=(flag,)).write(run)
    view = build_overview(Trace.open(run))
    assert view.judged is judged
    assert ("inconclusive: the source has impossible times" in report_text(view)) is not judged


@pytest.mark.parametrize(
    "call",
    [
        "pathlib.Path.write_bytes",
        "pathlib.Path.mkdir",
        "profkit.trace.manifest.replace_json",
        "profkit.trace.stream.os.write",
    ],
)
def test_a_disk_that_is_full_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    source = _file(tmp_path, "job.0.txt", "lines\n1 2 a\n")

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(call, full)
    with pytest.raises(ProfkitError) as raised:
        list(LINES["lines"].read([source], Target(tmp_path / "traces")))
    monkeypatch.undo()
    assert "No space left on device" in str(raised.value)
    assert str(raised.value).endswith("; choose another place with --output")
    assert [path for path in tmp_path.rglob("*") if path not in {source, tmp_path / "traces"}] == []
