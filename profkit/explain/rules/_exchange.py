"""The row that the rules about the gradient exchange share."""

from __future__ import annotations

from profkit.explain.ledger import Ledger, Row, sum_rows
from profkit.vocab import Phase

EXCHANGE = (Phase.BACKWARD.value, Phase.ALLREDUCE.value)


def exchange_row(ledger: Ledger) -> Row:
    """Return backward and the exchange as one row.

    Handing messages over is part of backward's time, waiting for them is part of the exchange's.
    """
    return sum_rows(ledger, "backward and exchange", EXCHANGE)
