"""Each limit of the lint step sees what it forbids."""

from __future__ import annotations

from pathlib import Path

from tests.house import measures


def test_each_limit_sees_what_it_forbids(tmp_path: Path) -> None:
    """A module with one violation of each kind, so that no limit is blind."""
    body = "\n".join(["    pass"] * measures.LONGEST_FUNCTION)
    lines = [
        f'"""What it is, {"x" * 80}"""',
        "value = 1 if a else 2 if b else 3",
        "pair = [x for x in y], [x for x in y]",
        f"text = '{'x' * measures.LONGEST_LINE}'",
        f"def _once():\n{body}",
        "_once()",
        "try: a()\nexcept (Exception, SystemExit): pass\nexcept BaseException: raise",
        "@dataclass(frozen=True)\nclass OurError(Exception): pass",
        *["pass"] * measures.LONGEST_MODULE,
    ]
    path = tmp_path / "module.py"
    path.write_text("\n".join(lines))
    module = measures.measure_file(path)
    summary = measures.summarise([module])
    forbidden = [name for name, most in measures.MOST.items() if most == 0]
    assert {name: summary[name] for name in forbidden} == dict.fromkeys(forbidden, 1)
    assert summary["private functions used once, %"] == 100
    assert summary["vague docstring openings, %"] == 100
    assert summary["ternaries per 1,000"] > 0
    assert summary["comprehensions per 1,000"] > 0
    assert len(measures.broken([module])) >= len(forbidden)


def test_a_circle_of_imports_is_named(tmp_path: Path) -> None:
    (tmp_path / "profkit").mkdir()
    (tmp_path / "profkit" / "one.py").write_text("from profkit import two\n")
    (tmp_path / "profkit" / "two.py").write_text("import profkit.one\n")
    assert {"profkit.one", "profkit.two"} <= set(measures.find_circle(tmp_path))
    (tmp_path / "profkit" / "two.py").write_text("")
    assert measures.find_circle(tmp_path) == []
