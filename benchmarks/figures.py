"""Puts the figures of the three scoreboards into README.md and README.zh-CN.md, so that neither says what is no longer so.

    python benchmarks/figures.py

`make accuracy`, `make trust` and `make bench` do this at their end, and a test compares. The figures are taken from docs/accuracy.md,
docs/reliability/results.json and docs/performance/results.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- figures, by benchmarks/figures.py -->\n", "<!-- end of figures -->\n"
LONG_STEP, SHORT_STEP = "convolutions, about 20 ms", "transformer, about 2 ms"

WORDS: Mapping[str, str] = {
    "README.md": """
- **Accuracy.** Of {faults} faults planted in real jobs, the right cause is named first in {first}, and in {first_held_out} of {faults_held_out} in another job with other data, model and batch. \
The named cost is off by {cost} at the median ({cost_held_out}). Of {pairs} healthy pairs, {quiet} are without a finding ({quiet_held_out} of {pairs_held_out}).
- **Reliability.** {run} of {checks} checks run, {broken} of them broken; how much of each was run stands beside it.
- **Performance.** Recording adds {long} ms ({long_interval}) to a step of {long_bare} ms and {short} ms ({short_interval}) to one of {short_bare} ms; `torch.profiler` adds {long_peer} ms and {short_peer} ms. \
A DDP step of {ddp_bare} ms on two ranks takes {ddp} ms ({ddp_interval}) more, by the medians of {ddp_pairs} pairs of processes. \
`profkit --help` takes {start} ms over the bare interpreter; a run of 32 ranks is reported in {open} s.
""",
    "README.zh-CN.md": """
- **准确度**：在真实任务里人为植入的 {faults} 个故障中，{first} 的真正原因排在第一位；在数据、模型和批大小都不同的另一个任务里为 {faults_held_out} 个中的 {first_held_out}。\
代价误差的中位数为 {cost}（{cost_held_out}）。{pairs} 组健康的对照中，{quiet} 没有误报（另一个任务里 {pairs_held_out} 组中的 {quiet_held_out}）。
- **可靠性**：{checks} 项检查中已运行 {run} 项，其中 {broken} 项未通过；每项运行了多少，写在它旁边。
- **性能**：记录使 {long_bare} ms 的一步增加 {long} ms（{long_interval}），使 {short_bare} ms 的一步增加 {short} ms（{short_interval}）；`torch.profiler` 分别增加 {long_peer} ms 和 {short_peer} ms。\
两个 rank 上 {ddp_bare} ms 的 DDP 一步增加 {ddp} ms（{ddp_interval}，按 {ddp_pairs} 对进程的中位数）。\
`profkit --help` 比裸解释器多用 {start} ms；32 个 rank 的一次运行在 {open} s 内给出报告。
""",
}
"""What each file says; both say the same."""

ROWS = {
    ("first", "faults"): "single faults whose cause is named first",
    ("cost", "costs"): "error of the named cause's cost, median",
    ("quiet", "pairs"): "healthy pairs without a finding",
}
"""The rows of docs/accuracy.md that are quoted: what the share is called here, and what it is a share of."""


def figures(top: Path = TOP) -> dict[str, str]:
    """Each figure as it is quoted."""
    return {**dict(_accuracy(top)), **_reliability(top), **dict(_performance(top))}


def _accuracy(top: Path) -> Iterator[tuple[str, str]]:
    lines = (top / "docs/accuracy.md").read_text(encoding="utf-8").splitlines()
    rows = {
        cells[1]: cells
        for line in lines
        if len(cells := [cell.strip() for cell in line.split("|")]) > 4
    }
    for names, title in ROWS.items():
        for cell, job in ((rows[title][3], ""), (rows[title][4], "_held_out")):
            yield from zip((f"{name}{job}" for name in names), cell.split(" of "), strict=True)


def _reliability(top: Path) -> dict[str, str]:
    from reliability import CHECKS, found_of  # a neighbour, which quotes these figures itself

    results = _read(top / "docs/reliability/results.json")
    found = [found_of(step, results) for check in CHECKS.values() for step in check.steps]
    run = [each for each in found if each is not None]
    return {
        "checks": str(len(found)),
        "run": str(len(run)),
        "broken": str(sum(not each["kept"] for each in run)),
    }


def _performance(top: Path) -> Iterator[tuple[str, str]]:
    results = _read(top / "docs/performance/results.json")
    cases = results["overhead"]["found"]["cases"]
    for name, step in (("long", LONG_STEP), ("short", SHORT_STEP)):
        cost = cases[step]["profkit"]
        yield name, f"{cost['over_bare_ms']:.2f}"
        yield (
            f"{name}_interval",
            " … ".join(f"{round(cost[end], 2) + 0.0:.2f}" for end in ("low_ms", "high_ms")),
        )  # no -0.00
        yield f"{name}_bare", f"{cases[step]['bare']['median_ms']:.1f}"
        yield f"{name}_peer", f"{cases[step]['torch.profiler']['over_bare_ms']:.2f}"
    ddp = next(iter(results["ddp"]["found"]["cases"].values()))
    added = ddp["profkit"]["median_ms"]
    yield "ddp", f"{added['added_ms']:.2f}"
    yield (
        "ddp_interval",
        " … ".join(f"{round(added[end], 2) + 0.0:.2f}" for end in ("low_ms", "high_ms")),
    )
    yield "ddp_bare", f"{ddp['bare_median_ms']:.1f}"
    yield "ddp_pairs", str(ddp["pairs"])
    yield "start", f"{results['startup']['found']['profkit --help']['over_bare_ms']:.0f}"
    yield "open", f"{results['open_trace']['found']['profkit report']['median_s']:.2f}"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def quoted(readme: str, content: str, found: Mapping[str, str]) -> str:
    """The file as it is to be."""
    before, _, rest = content.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{WORDS[readme].format(**found)}\n{END}{after}"


def write(top: Path = TOP) -> None:
    found = figures(top)
    for readme in WORDS:
        path = top / readme
        path.write_text(quoted(readme, path.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    write()
