"""Write the figures of docs/ into README.md and README.zh-CN.md.

    python benchmarks/figures.py

`make accuracy`, `make trust` and `make bench` do this at their end, and a test compares. The
figures come from docs/accuracy.md, docs/reliability/results.json and
docs/performance/results.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from promises import CHECKS
from reliability_page import found_of

TOP = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- figures, by benchmarks/figures.py -->\n", "<!-- end of figures -->\n"
LONG_STEP, SHORT_STEP = "convolutions, about 20 ms", "transformer, about 2 ms"
LIMIT_MS = 0.15
"""The most that recording may add to a step of a few milliseconds."""

WORDS: Mapping[str, str] = {
    "README.md": """
- **Accuracy.** `explain` ranks the true cause first in {first} injected faults, and in {first_held_out}
  of a second job; the median error of its cost is {cost} and {cost_held_out}. It reports no cause in
  {quiet} and {quiet_held_out} healthy pairs.
- **Faults by an author who had not read the rules.** At their first run, the true cause was first in
  {blind_first}, and {blind_false_first} healthy pairs had a wrong cause. We then added rules: now
  {blind} and {blind_false}. The verdict was right in {verdict_first} before, and in {verdict} now.
- **Reliability.** {run} of {checks} checks ran, {whole} of them at full length and the others at {least}
  to {most} of it; {broken} failed.
- **Performance.** Recording adds {long} ms ({long_interval}) to a step of {long_bare} ms, and {short} ms
  ({short_interval}) to one of {short_bare} ms; `torch.profiler` adds {long_peer} ms and {short_peer} ms.
  On two ranks it adds {ddp} ms ({ddp_interval}) to a DDP step of {ddp_bare} ms with one bucket, and
  {ddp2} ms ({ddp2_interval}) to one of {ddp2_bare} ms with two ({ddp_pairs} pairs of processes); torch's
  own `allreduce_hook` adds {ddp_peer} ms and {ddp2_peer} ms. Over our limit of 0.15 ms: {ddp_over} of 2
  DDP steps. `profkit --help` takes {start} ms more than Python alone; a report of 32 ranks, {open} s.

Ranges in parentheses are 95 % confidence intervals.
""",
    "README.zh-CN.md": """
- **准确度**：人为注入的故障中，真正的原因排在第一位的有 {first}；另一个任务（数据、模型和批大小都不同）为
  {first_held_out}。原因代价的误差中位数为 {cost}（另一个任务为 {cost_held_out}）。\
健康的对照中
  没有误报的有 {quiet}（另一个任务为 {quiet_held_out}）。
- **由没有读过规则的人编写的故障**：首次运行时，真正的原因排在第一位的有 {blind_first}，健康的对照中误报的有
  {blind_false_first}；我们补充规则之后分别为 {blind} 和 {blind_false}。\
结论正确的有
  {verdict_first}，现在为 {verdict}。
- **可靠性**：{checks} 项检查中已运行 {run} 项，其中 {broken} 项未通过；{whole} 项按完整规模运行，其余运行了 {least} 到 {most}
  （[详情](docs/reliability.md)）。
- **性能**：记录使 {long_bare} ms 的一步增加 {long} ms（{long_interval}），使 {short_bare} ms 的一步增加 {short} ms
  （{short_interval}）；`torch.profiler` 分别增加 {long_peer} ms 和 {short_peer} ms。两个 rank 上 \
{ddp_bare} ms 的 DDP 一步（一个桶）
  增加 {ddp} ms（{ddp_interval}），{ddp2_bare} ms 的一步（两个桶）增加 {ddp2} ms\
（{ddp2_interval}），共 {ddp_pairs} 对进程；\
PyTorch 自带的
  `allreduce_hook` 分别增加 {ddp_peer} ms 和 {ddp2_peer} ms。\
我们的上限是 0.15 ms，2 种 DDP 步中有 {ddp_over} 种超出。\
`profkit --help` 比裸解释器多用 {start} ms；
  32 个 rank 的报告用时 {open} s。

括号中的范围是 95 % 置信区间。
""",
}
"""The text of each file. Both quote the same figures."""

ROWS = {
    "first": "single faults whose cause is named first",
    "cost": "error of the cause's cost, median",
    "quiet": "healthy pairs without a cause",
}
"""The rows of docs/accuracy.md that are quoted."""

BLIND_ROWS = {
    "blind": "right cause first",
    "blind_false": "healthy pairs with a wrong cause",
    "verdict": "right verdict",
}
"""The rows of its second suite that are quoted: now, and when its faults first ran."""

Z_95 = 1.96


def figures(top: Path = TOP) -> dict[str, str]:
    """Return each figure as it is quoted."""
    return {**_accuracy(top), **_reliability(top), **dict(_performance(top))}


def _accuracy(top: Path) -> dict[str, str]:
    lines = (top / "docs/accuracy.md").read_text(encoding="utf-8").splitlines()
    found = {}
    for name, title in ROWS.items():
        cells = next(line for line in lines if line.startswith(f"| {title} |")).split("|")
        for cell, job in ((cells[3], ""), (cells[4], "_held_out")):
            share, _, total = cell.strip().partition(" of ")
            found[name + job] = share if name == "cost" else _count(share, int(total))
    for name, title in BLIND_ROWS.items():
        cells = next(line for line in lines if line.startswith(f"| {title} |")).split("|")
        for cell, at in ((cells[3], ""), (cells[4], "_first")):
            share, _, total = cell.strip().partition(" of ")
            found[name + at] = _count(share, int(total))
    return found


def _count(share: str, total: int) -> str:
    """Return a share as a count of cases with its 95 % interval by Wilson's formula."""
    count = round(float(share.rstrip("%")) / 100 * total)
    rate = count / total
    spread = Z_95**2 / total
    middle = (rate + spread / 2) / (1 + spread)
    half = Z_95 * math.sqrt(rate * (1 - rate) / total + spread / total / 4) / (1 + spread)
    return f"{count} of {total} ({middle - half:.0%} to {min(1.0, middle + half):.0%})"


def _reliability(top: Path) -> dict[str, str]:
    results = _read(top / "docs/reliability/results.json")
    steps: list[Any] = []
    for check in CHECKS.values():
        steps.extend(check.steps)
    found = [found_of(step, results) for step in steps]
    run = [each for each in found if each is not None]
    shares = []
    for step, each in zip(steps, found, strict=True):
        if each is not None and each["amount"] < step.full:
            shares.append(each["amount"] / step.full)
    return {
        "checks": str(len(found)),
        "run": str(len(run)),
        "broken": str(sum(not each["kept"] for each in run)),
        "whole": str(len(run) - len(shares)),
        "least": f"{min(shares, default=1):.0%}",
        "most": f"{max(shares, default=1):.0%}",
    }


def _performance(top: Path) -> Iterator[tuple[str, str]]:
    results = _read(top / "docs/performance/results.json")
    cases = results["overhead"]["found"]["cases"]
    for name, step in (("long", LONG_STEP), ("short", SHORT_STEP)):
        cost = cases[step]["profkit"]
        yield name, f"{cost['over_bare_ms']:.2f}"
        yield f"{name}_interval", _interval(cost)
        yield f"{name}_bare", f"{cases[step]['bare']['median_ms']:.1f}"
        yield f"{name}_peer", f"{cases[step]['torch.profiler']['over_bare_ms']:.2f}"
    cases = results["ddp"]["found"]["cases"].values()
    over = []
    for name, case in zip(("ddp", "ddp2"), cases, strict=True):
        added = case["profkit"]["median_ms"]
        over.append(added["added_ms"] > LIMIT_MS)
        yield name, f"{added['added_ms']:.2f}"
        yield f"{name}_interval", _interval(added)
        yield f"{name}_bare", f"{case['bare_median_ms']:.1f}"
        yield f"{name}_peer", f"{case['allreduce_hook']['median_ms']['added_ms']:.2f}"
        yield "ddp_pairs", str(case["pairs"])
    yield "ddp_over", str(sum(over))
    yield "start", f"{results['startup']['found']['profkit --help']['over_bare_ms']:.0f}"
    yield "open", f"{results['open_trace']['found']['profkit report']['median_s']:.2f}"


def _interval(cost: Mapping[str, float]) -> str:
    low, high = (round(cost[end], 2) + 0.0 for end in ("low_ms", "high_ms"))  # + 0.0: no -0.00
    return f"{low:.2f} … {high:.2f}"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def quoted(readme: str, content: str, found: Mapping[str, str]) -> str:
    """Return a README with these figures."""
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
