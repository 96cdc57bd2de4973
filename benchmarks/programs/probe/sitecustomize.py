"""Start the independent probe; Python imports this at its start."""

import os

if os.environ.get("PROBE_OUT"):
    import independent_probe

    independent_probe.arm()
