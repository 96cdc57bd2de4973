"""Sections of a page between marks, which a benchmark writes again."""

from __future__ import annotations


def replace_section(page: str, section: str, begin: str, end: str) -> str:
    """Return the page with the section between its marks, at the end if it has none yet."""
    before, mark, rest = page.partition(begin)
    after = rest.partition(end)[2] if mark else ""
    following = f"\n{after.lstrip()}" if after.strip() else ""
    return f"{before.rstrip()}\n\n{begin}\n\n{section}\n{end}\n{following}"


def keep_section(page: str, old: str, begin: str, end: str) -> str:
    """Return a page that was written again, with the section that the old one has."""
    section = old.partition(begin)[2].partition(end)[0].strip()
    return replace_section(page, section + "\n", begin, end) if section else page
