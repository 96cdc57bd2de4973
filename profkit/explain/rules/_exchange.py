"""What the rules of the gradient exchange share."""

from __future__ import annotations

from profkit.explain.ledger import Ledger, Row, sum_rows
from profkit.vocab import Phase

EXCHANGE = (Phase.BACKWARD.value, Phase.ALLREDUCE.value)


def exchange_row(ledger: Ledger) -> Row:
    """Backward and the exchange as one row: handing messages over is backward's time, waiting for them the exchange's."""
    return sum_rows(ledger, "backward and exchange", EXCHANGE)
