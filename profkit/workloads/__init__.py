"""The reference systems, one package each. A system's `__init__` defines its `WORKLOAD`."""
