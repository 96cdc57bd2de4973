"""Record a job: start it, wire its ranks, collect beside it."""
