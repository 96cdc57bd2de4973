"""Why two runs differ: the ledger, its evidence and its causes."""
