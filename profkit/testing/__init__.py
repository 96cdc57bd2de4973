"""What tests of profkit, and of plug-ins for it, stand on: fakes, and synthetic runs of any size."""

from profkit.testing.fakes import FakeClock, FakeDevice
from profkit.testing.synthetic import synthetic_trace

__all__ = ["FakeClock", "FakeDevice", "synthetic_trace"]
