"""Fake clocks and devices, and synthetic runs, for tests of profkit and its plug-ins."""

from profkit.testing.fakes import FakeClock, FakeDevice, OpenStep, report_step
from profkit.testing.synthetic import synthetic_trace

__all__ = ["FakeClock", "FakeDevice", "OpenStep", "report_step", "synthetic_trace"]
