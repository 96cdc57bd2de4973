"""The kernels of two runs: those of phases and modules, and what a precision changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profkit.explain.explained import Explained
from profkit.explain.kernel_ledger import KernelLedger, KernelRow
from profkit.explain.ledger import Ledger
from profkit.explain.precision import MATRIX
from profkit.report import ledger_words
from profkit.report.code_sections import BASE, TARGET
from profkit.report.words import role_of
from profkit.show.document import NAMED, Column, Section, Table, missing
from profkit.show.figures import AMOUNT, NS, NUMBER, SIGNED_NS, TIMES
from profkit.text import amount, plural

PAGE_KERNELS, SCREEN_KERNELS = 20, 5
"""Kernels of a phase that a page and a screen show; all of them are in the JSON."""


def kernels(view: Explained, *, is_page: bool) -> Iterator[Section]:
    """Yield the phases in the captured steps, then the kernels of each that changed most."""
    found = view.kernels
    if found is None:
        yield from missing("kernels")
        return
    captured = (
        f"{found.noun.capitalize()}s in the captured steps ({found.base_steps:,} and "
        f"{found.target_steps:,} of all ranks)"
    )
    if "imported_from" not in view.case.base.config:
        captured += ", which are slower than others"
    notes = (f"{captured}.", *ledger_words.kernel_words(found, view.ledger))
    rows = [KernelSum.of(phase, found.of_phase(phase)) for phase in found.phases]
    title = f"{found.noun.capitalize()}s"
    yield Section(title, notes, table=Table(_KERNEL_SUMS, rows), brief=NAMED)
    facts = {
        "captured_steps": {BASE: found.base_steps, TARGET: found.target_steps},
        "rows": Table(KERNELS, found.rows),
        "casts_and_layout_copies_added_ns_per_step": found.moving_added_ns,
        "tensor_core_share": found.tensor_core_share,
        "launched_late_share": found.launched_late_share,
        "ceiling_share": found.ceiling_share,
        "modules": Table(_MODULES, found.modules),
    }
    yield Section(key="kernels", facts=facts)
    least = ledger_words.least_kernel_ns(view.ledger)
    changed = [each for each in found.modules if abs(each.delta_ns) >= least]
    if changed:
        table = Table(_MODULES, changed[:SCREEN_KERNELS], only_known=True)
        yield Section("Modules whose kernels changed most", table=table, brief=NAMED)
    for phase in found.phases:
        yield from phase_kernels(found, view.ledger, phase, is_page=is_page)


def precision(view: Explained) -> Iterator[Section]:
    """Yield what the change of precision did to the captured steps, or what would show it."""
    found, title = view.precision, "What the precision changes"
    if found is None:
        if view.changes_precision:
            yield Section(title, (ledger_words.NO_KERNELS_OF_BOTH,))
        yield from missing("precision")
        return
    notes = tuple(ledger_words.precision_words(found))
    table = Table(_PRECISION, found.parts)
    facts = {"matrix_share_of_base": found.share(MATRIX), "parts": table}
    shown = Table(_PRECISION, [each for each in found.parts if each.base_ns or each.target_ns])
    yield Section(title, notes, table=shown, brief=NAMED, key="precision", facts=facts)


def phase_kernels(
    found: KernelLedger, ledger: Ledger, phase: str, *, is_page: bool
) -> Iterator[Section]:
    most = SCREEN_KERNELS
    if is_page:
        most = PAGE_KERNELS
    shown, others = ledger_words.kernels_to_show(found.of_phase(phase), ledger, most)
    rows = [KernelSum.of(row.name, [row]) for row in shown]
    if others:
        rows.append(KernelSum.of(f"{plural(len(others), 'other row')}, in --json", others))
    if shown:
        title = f"{phase}: {plural(len(shown), found.noun)} that changed"
        table = Table(_KERNEL_SUMS, rows)
        yield Section(title, table=table, folded=is_page, brief=NAMED)


@dataclass(frozen=True)
class KernelSum:
    """Kernels of both sides together."""

    name: str
    base_ns: float
    target_ns: float
    base_calls: float
    target_calls: float

    @classmethod
    def of(cls, name: str, rows: Sequence[KernelRow]) -> KernelSum:
        figures = [(row.base_ns, row.target_ns, row.base_calls, row.target_calls) for row in rows]
        return cls(name, *map(sum, zip(*figures, strict=True)))

    @property
    def calls(self) -> str:
        return f"{amount(self.base_calls)} to {amount(self.target_calls)}"


KERNELS = (
    Column("name", "name", lambda row: row.name, stretches=True),
    Column("phase", "phase", lambda row: row.phase, role=role_of),
    Column("base_ns", BASE, lambda row: row.base_ns, NS),
    Column("target_ns", TARGET, lambda row: row.target_ns, NS),
    Column("", "difference", lambda row: row.target_ns - row.base_ns, SIGNED_NS),
    Column("base_calls", "base calls", lambda row: row.base_calls, AMOUNT),
    Column("target_calls", "target calls", lambda row: row.target_calls, AMOUNT),
    Column("category", "category", lambda row: row.category),
)
"""Kernels, or operators, of the captured steps of both runs."""

_MODULES = (
    Column("module", "module", lambda row: row.module),
    Column("base_ns", BASE, lambda row: row.base_ns, NS),
    Column("target_ns", TARGET, lambda row: row.target_ns, NS),
    Column("", "difference", lambda row: row.delta_ns, SIGNED_NS),
    Column("line", "called in", lambda row: row.line, stretches=True),
)

_PRECISION = (
    Column("name", "in a captured step", lambda row: row.name),
    Column("base_ns", BASE, lambda row: row.base_ns, NS),
    Column("target_ns", TARGET, lambda row: row.target_ns, NS),
    Column("", "difference", lambda row: row.delta_ns, SIGNED_NS),
    Column("ratio", "ratio", lambda row: row.ratio, TIMES),
)

_KERNEL_SUMS = (
    Column("", "", lambda row: row.name),
    Column("", BASE, lambda row: row.base_ns, NS),
    Column("", TARGET, lambda row: row.target_ns, NS),
    Column("", "difference", lambda row: row.target_ns - row.base_ns, SIGNED_NS),
    Column("", "calls", lambda row: row.calls, NUMBER),
)
