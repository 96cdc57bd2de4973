"""The rows that the phases of a run are computed from: the same for every view of it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from profkit.analysis.costs import RunCosts, run_costs
from profkit.analysis.device_clock import exposed_spans
from profkit.analysis.device_times import PhaseClock, clock_of, ranks_on_device, rows_of_ranks
from profkit.analysis.estimate import Ints
from profkit.analysis.exchange import Exchange, LateRank, find_late_rank, split_exchange
from profkit.analysis.exposed import untimed_exchanges
from profkit.analysis.selection import steady_steps
from profkit.trace import Trace

UNTIMED_EXCHANGE = (
    "the device's wait for the gradient exchange was not timed: it is part of forward or backward, "
    "and its share there is not known"
)

SHARED_ENDS = (
    "the framework shows only when the last gradient bucket of a backward is done: a rank counts "
    "as waiting until the last rank is ready for that bucket, also while earlier ones are sent; "
    "what backward hides, and the transfer of a bucket, are not known"
)


@dataclass(frozen=True, eq=False)
class PhaseBasis:
    """The ranks, steps and spans that phases are about.

    If there are device times, the spans are on the device's clock, and `costs` are the ledger's:
    all screens show these.
    """

    steps: pa.Table
    spans: pa.Table
    collectives: pa.Table
    used: Ints
    clock: PhaseClock
    exchange_timed: bool
    costs: RunCosts | None = None

    @property
    def why_no_exchange(self) -> str:
        """The reason why nothing is known of the exposed exchange; empty if there is none."""
        if not self.exchange_timed:
            return "the device's wait for the exchange was not timed"
        if self.costs is not None and self.costs.unclocked:
            return "some ranks have no device times"
        return ""

    def exchange(self) -> Exchange | None:
        """Return the gradient exchange, or `None` if its exposed part was not timed everywhere."""
        if self.why_no_exchange:
            return None
        return split_exchange(self.collectives, self.spans, self.used)

    def late_rank(self, exchange: Exchange | None) -> LateRank | None:
        """Return the rank that is late again and again in the exchange."""
        if exchange is None:
            return None
        return find_late_rank(exchange, self.steps, self.spans, self.used)


def phase_basis(
    trace: Trace, costs: RunCosts | None = None, *, used: Ints | None = None
) -> PhaseBasis:
    """Return the rows of a run that its phases are computed from.

    `costs` and the steps to be `used` are the run's, if they are known already.
    """
    if used is None:
        used = steady_steps(trace).steps
    steps, spans, collectives = trace.steps, trace.spans, trace.collectives
    ranks = ranks_on_device(spans, used)
    if len(ranks):
        costs = costs or run_costs(trace)
        return PhaseBasis(
            rows_of_ranks(steps, ranks),
            exposed_spans(rows_of_ranks(spans, ranks)),
            rows_of_ranks(collectives, ranks),
            costs.selection.steps,
            costs.clock,
            costs.exchange_timed,
            costs,
        )
    clock, exchange_timed = clock_of(trace, on_device=False), True
    if clock is PhaseClock.LAUNCH:
        exchange_timed = not untimed_exchanges(collectives, spans.slice(0, 0), used).any()
    return PhaseBasis(steps, spans, collectives, used, clock, exchange_timed)
