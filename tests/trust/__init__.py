"""Short checks of profkit's promises under damage, hostile input and failures.

`make trust` runs the long versions, and docs/results.md has the figures.
"""
