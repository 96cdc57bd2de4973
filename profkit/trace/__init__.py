"""Writes and reads a run: a directory with one Arrow stream for each table and rank."""

from profkit.trace.manifest import RankManifest, RunManifest
from profkit.trace.reader import Trace
from profkit.trace.verify import Verification, verify
from profkit.trace.writer import RankWriter

__all__ = ["RankManifest", "RankWriter", "RunManifest", "Trace", "Verification", "verify"]
