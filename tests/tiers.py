"""Which tests run when: by default, before a change lands, or each night."""

from __future__ import annotations

TIERS = {
    "jobs": "starts real jobs; .ci/run runs it after the default tests",
    "nightly": "long or exhaustive; runs only if -m names it (make nightly)",
}
"""What runs only if -m names it, or the command line names its file."""

MODULES: dict[str, str] = {}
