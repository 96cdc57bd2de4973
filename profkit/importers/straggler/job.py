"""The job of a trace: its dimensions, from the meta file next to it or from its rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profkit.analysis.whatif.operations import Operations
from profkit.errors import UnreadableError
from profkit.text import safe_text

MAX_BYTES = 65_536
MAX_SIZE = 1_000_000
_SIZES = ("dp_size", "dsp_size", "pp_size", "tp_size")
_NUMBERS = (*_SIZES, "vpp_size", "world_size", "run_id")
_LINE = re.compile(r"([A-Za-z_]\w*)\s*:(?:\s+(.*?))?\s*")
_COMMENT = re.compile(r"(^|\s)#.*$")


@dataclass(frozen=True)
class Job:
    """A job that is parallel in several dimensions."""

    name: str
    data_ranks: int
    sequence_ranks: int
    stages: int
    tensor_ranks: int
    chunks: int
    world_size: int
    tensor_place: Mapping[int, int]
    """The place of each rank among those of its stage and data-parallel rank."""
    flags: tuple[str, ...] = ()

    @property
    def dimensions(self) -> dict[str, int]:
        """The size of each dimension; empty if they do not make the number of ranks."""
        sizes = {"dp": self.data_ranks, "pp": self.stages, "tp": self.tensor_ranks}
        if self.sequence_ranks > 1:
            sizes = {"dp": self.data_ranks, "dsp": self.sequence_ranks, **sizes}
        if math.prod(sizes.values()) == self.world_size:
            return sizes
        return {}


def find_job(path: Path, operations: Operations) -> Job:
    """Return the job of a trace; raise `UnreadableError` if its meta file contradicts it."""
    # Each rank's place among the ranks of its stage and data-parallel rank.
    ranks, first = np.unique(operations.rank, return_index=True)
    counts: dict[tuple[int, int], int] = {}
    place = {}
    for rank, row in zip(ranks.tolist(), first.tolist(), strict=True):
        group = int(operations.data_rank[row]), int(operations.stage[row])
        place[rank] = counts.get(group, 0)
        counts[group] = place[rank] + 1
    for meta in meta_files(path):
        if meta.is_file():
            stated = _read_meta(meta)
            _check(meta, stated, operations)
            sizes = map(int, map(stated.__getitem__, _SIZES))
            data_ranks, sequence_ranks, stages, tensor_ranks = sizes
            return Job(
                str(stated["trial_name"]), data_ranks, sequence_ranks, stages, tensor_ranks,
                int(stated["vpp_size"]), int(stated["world_size"]), place,
            )  # fmt: skip
    return _infer(path, operations, place)


def meta_files(path: Path) -> Iterator[Path]:
    """Yield the files that may describe the job: `meta-X.yaml` next to `trace-X.parquet`."""
    stems = dict.fromkeys([path.stem.replace("trace", "meta", 1), f"meta-{path.stem}"])
    for stem in stems:
        if stem != path.stem:
            for suffix in (".yaml", ".yml"):
                yield path.with_name(stem + suffix)


def _read_meta(path: Path) -> dict[str, str | int]:
    """Return the fields of a meta file: lines of `name: value`, and nothing else of YAML."""
    shown = safe_text(str(path))
    try:
        text = path.read_bytes()[: MAX_BYTES + 1].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{shown}: cannot be read as text ({error}); correct it") from error
    found: dict[str, str | int] = {"trial_name": "", "run_id": 0, "vpp_size": 1, "dsp_size": 1}
    for number, written in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", written).rstrip()
        if not line or line in ("---", "..."):
            continue
        match = _LINE.fullmatch(line)
        if match is None or len(text) > MAX_BYTES:
            raise UnreadableError(f"{shown}: line {number} is not 'name: value'; correct it")
        name, value = match[1], (match[2] or "").strip("'\"")
        if name not in _NUMBERS:
            found[name] = value
        elif re.fullmatch(r"\d{1,7}", value, re.ASCII) and (int(value) or name == "run_id"):
            found[name] = int(value)
        else:
            raise UnreadableError(
                f"{shown}: line {number}: {name} is not a whole number above zero; correct it"
            )
    missing = [name for name in (*_SIZES, "world_size") if name not in found]
    if missing:
        raise UnreadableError(f"{shown}: does not say {', '.join(missing)}; add it")
    return found


def _check(path: Path, stated: Mapping[str, str | int], operations: Operations) -> None:
    """Raise if the meta file contradicts itself or the trace."""
    world = math.prod(int(stated[name]) for name in _SIZES)
    remedy = "it is another job's, or wrong: correct or remove it"
    if world != stated["world_size"]:
        raise UnreadableError(
            f"{safe_text(str(path))}: its sizes make {world:,} ranks and world_size is "
            f"{stated['world_size']:,}; {remedy}"
        )
    for name, column in (
        ("dp_size", operations.data_rank),
        ("pp_size", operations.stage),
        ("vpp_size", operations.chunk),
        ("world_size", operations.rank),
    ):
        most = int(column.max())
        if most >= int(stated[name]):
            raise UnreadableError(
                f"{safe_text(str(path))}: {name} is {stated[name]:,}, and the trace has number "
                f"{most:,} of them, counted from 0; {remedy}"
            )


def _infer(path: Path, operations: Operations, place: Mapping[int, int]) -> Job:
    """Return the job as far as the rows show it."""
    ranks = np.unique(operations.rank)
    data_ranks, stages = int(operations.data_rank.max()) + 1, int(operations.stage.max()) + 1
    world = int(ranks[-1]) + 1
    distances = np.unique(np.diff(ranks))
    if len(distances) == 1:  # a rank of each group was recorded, and the others follow it
        world = max(world, int(distances[0]) * len(ranks))
    others, rest = divmod(world, data_ranks * stages)
    meta = next(meta_files(path)).name
    flag = (
        f"the file has no meta file next to it ({safe_text(meta)}): the number of ranks and the "
        "sizes of the dimensions are those that the rank numbers in its rows suggest"
    )
    chunks = max(1, int(operations.chunk.max()) + 1)
    tensor_ranks = others if not rest else 1
    return Job("", data_ranks, 1, stages, tensor_ranks, chunks, world, place, (flag,))
