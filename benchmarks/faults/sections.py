"""The section of docs/accuracy.md that another benchmark writes."""

from __future__ import annotations

BEGIN, END = "<!-- by benchmarks/healthy.py -->\n", "<!-- end of benchmarks/healthy.py -->\n"
BEFORE = "## Errors"
"""The section of healthy twins is before this one."""


def find_healthy(document: str) -> str:
    """Return the section of healthy twins with its marks; empty if there is none."""
    _, begin, rest = document.partition(BEGIN)
    text, end, _ = rest.partition(END)
    return begin + text + end if end else ""


def replace_healthy(document: str, text: str) -> str:
    """Return the document with this section of healthy twins."""
    document = (
        document.replace(find_healthy(document) + "\n", "") if BEGIN in document else document
    )
    before, mark, after = document.partition(BEFORE)
    return f"{before}{BEGIN}\n{text}\n\n{END}\n{mark}{after}"
