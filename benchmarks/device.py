"""Check every screen against simulated jobs on accelerators, and write docs/device.md.

    python benchmarks/device.py [--write docs/device.md]

Each scenario of `tests/device/scenarios.py` trains on simulated devices, recorded by profkit's own
hooks. Its truth follows in closed form from its parameters. The page shows the truth and the
largest error of each screen; a check that fails although it is not known to fail gives exit code 1.
Parts of the product are then switched off one at a time, and the checks must notice.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle  # noqa: F401  # it warns as it is imported

from profkit.instrument.guard import FAILURES
from tests.device.checks import CHECKS, TOLERANCE, Outcome, Runs
from tests.device.known import KNOWN, find_reason
from tests.device.mutations import MUTATIONS, survives
from tests.device.scenarios import SCENARIOS, Scenario
from tests.device.truths import Truth, mean

MS = 1e6
PARTS = ("step", *Truth().parts, "idle")
SHOWN = tuple(name for name in CHECKS if name not in {"job", "agreement"})

HEAD = f"""# Device times against simulated jobs

`python benchmarks/device.py --write docs/device.md` writes this page, and `pytest tests/device`
checks the same. No GPU is involved, so this is no evidence of how drivers behave; gpu.md is about
a real one.

Jobs train on simulated accelerators (`tests/accelerator`). The simulation is below
profkit's hooks: hooks, recorder, writer, reader, analysis and screens are the real ones, and so are
torch's autograd engine and the reducer of `DistributedDataParallel`. Simulated are clocks, streams,
events, copies, graphs, NCCL, and Paddle's reducer. Each module's docstring states the source, and
what it simulates. Each truth follows in closed form from the job's parameters
(`tests/device/truths.py`). A screen may be wrong by {100 * TOLERANCE:.0f} % of the step.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page here")
    args = parser.parse_args()
    logging.getLogger("profkit").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        found = _check_all(Runs(Path(folder)))
        noticed = {}
        for number, mutation in enumerate(MUTATIONS):
            noticed[mutation.name] = not survives(mutation, Path(folder) / str(number))
    page = "\n".join([HEAD, *_truths(), *_errors(found), *_known(), *_mutations(noticed)])
    if args.write is None:
        print(page)
    else:
        args.write.write_text(page + "\n", encoding="utf-8")
    unexpected = []
    for (scenario, check), outcome in found.items():
        if outcome.good == bool(find_reason(check, scenario)):
            unexpected.append(f"{scenario}, {check}: {outcome.where or 'is right now'}")
    for line in (*unexpected, *[name for name, seen in noticed.items() if not seen]):
        print(line, file=sys.stderr)
    return int(bool(unexpected) or not all(noticed.values()))


def _check_all(runs: Runs) -> dict[tuple[str, str], Outcome]:
    found = {}
    for scenario in SCENARIOS:
        for name, check in CHECKS.items():
            try:
                outcome = check(runs, scenario)
            except Exception as error:  # noqa: BLE001  # a job that fails is a result
                outcome = Outcome(1.0, f"{type(error).__name__}: {error}")
            found[scenario.name, name] = outcome
            FAILURES.clear()
    return found


def _truths() -> Iterator[str]:
    yield "## What is true\n"
    yield "Milliseconds per step, as the mean over the ranks. `idle` is the time in which a device"
    yield "neither computes nor copies.\n"
    yield f"| scenario | ranks | {' | '.join(PARTS)} |"
    yield "|---|" + "---:|" * (len(PARTS) + 1)
    for scenario in SCENARIOS:
        truth = mean(scenario.truths)
        values = []
        for name in PARTS:
            value = float(getattr(truth, name)) / MS
            values.append(f"{value:.2f}" if value else "0")
        yield f"| {scenario.name} | {len(scenario.jobs)} | {' | '.join(values)} |"


def _errors(found: dict[tuple[str, str], Outcome]) -> Iterator[str]:
    yield "\n## What the screens say\n"
    yield "The largest error of any part, in percent of the step. `job` is `same` if the job takes"
    yield "the same time as without profkit and no row is lost. `agree` is `yes` if overview,"
    yield "report, ranks and ledger show equal figures to the nanosecond. *refused* means that"
    yield "device times are missing, and that the report says so with the reason.\n"
    yield f"| scenario | job | {' | '.join(SHOWN)} | agree |"
    yield "|---|---|" + "---:|" * len(SHOWN) + "---|"
    for scenario in SCENARIOS:
        cells = [_cell(scenario, name, found[scenario.name, name]) for name in SHOWN]
        same = "same" if found[scenario.name, "job"].good else "**no**"
        agree = "yes" if found[scenario.name, "agreement"].good else "**no**"
        yield f"| {scenario.name} | {same} | {' | '.join(cells)} | {agree} |"


def _cell(scenario: Scenario, check: str, outcome: Outcome) -> str:
    if len(scenario.jobs) == 1 and check in {"scaling", "exchange"}:
        return ""
    if outcome.refused:
        return "*refused*"
    words = f"{outcome.error:.2%}"
    return words if outcome.good else f"**{words}**"


def _known() -> Iterator[str]:
    yield "\n## Wrong today\n"
    if not KNOWN:
        yield "Nothing that is known."
        return
    yield "| screens | scenarios | why |"
    yield "|---|---|---|"
    for known in KNOWN:
        scenarios = ", ".join(known.scenarios).replace("*", "all")
        if known.but:
            scenarios += " but " + ", ".join(known.but).replace("*", "…")
        yield f"| {', '.join(known.checks)} | {scenarios} | {known.reason} |"


def _mutations(noticed: dict[str, bool]) -> Iterator[str]:
    yield "\n## Check of the checks\n"
    yield "Each part of the product is switched off; a check of the scenario must fail then.\n"
    yield "| switched off | scenario | check | noticed |"
    yield "|---|---|---|---|"
    for mutation in MUTATIONS:
        seen = "yes" if noticed[mutation.name] else "**no**"
        yield f"| {mutation.name} | {mutation.scenario} | {mutation.check} | {seen} |"


if __name__ == "__main__":
    sys.exit(main())
