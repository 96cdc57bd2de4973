"""Which tests run when: by default, before a change lands, or each night."""

from __future__ import annotations

TIERS = {
    "jobs": "starts real jobs; .ci/run runs it after the default tests",
    "nightly": "long or exhaustive; runs only if -m names it (make nightly)",
}
"""What runs only if -m names it, or the command line names its file."""

NIGHTLY = (
    "device/test_drawn.py",
    "device/test_mutations.py",
    "device/test_scenarios.py",
    "harmless/test_import_orders.py",
    "hangs/test_jobs.py",
    "house/test_python_versions.py",
    "importers/test_mutations.py",
    "importers/logs/test_mutants.py",
)
JOBS = (
    "device/test_simulator.py",
    "device/test_streams.py",
    "harmless/test_ddp.py",
    "harmless/test_functions_compared.py",
    "harmless/test_hints.py",
    "harmless/test_imports.py",
    "harmless/test_paddle.py",
    "harmless/test_ray.py",
)
MODULES = {
    f"tests/{name}": tier
    for tier, names in (("nightly", NIGHTLY), ("jobs", JOBS))
    for name in names
}
