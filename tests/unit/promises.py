"""Which lines the checklist has, and which tests say that they prove one.

python tests/unit/promises.py      rewrites the test columns of docs/promises.md
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "promises.md"

#: The issue that makes each line of the checklist true.
LETTERS = {
    "A": "01-13 20-24 40-41 46 51 63 65 67-68 71 73 75",
    "B": "30-39 66 69-70 72 78-79 81",
    "C": "14-16 42-45 47-48 50 60-62 64 74 76-77 80 82",
}
CASES = tuple(f"H-{number:02d}" for number in range(1, 21))
_ROW = re.compile(r"^\| (S-\d\d) \| ([A-D]) \| (.+?) \| (.+?) \| (.+?) \|$")
_CASE = re.compile(r"^\| (H-\d\d) \| (.+?) \| (.+?) \|$")


def lines() -> dict[str, str]:
    """Return the checklist: line -> letter."""
    found = {}
    for letter, spans in LETTERS.items():
        for span in spans.split():
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found[f"S-{number:02d}"] = letter
    return dict(sorted(found.items()))


def rows() -> dict[str, tuple[str, str, str, str]]:
    """Return the table of docs/promises.md: line -> (letter, what, where, tests)."""
    matches = (_ROW.match(text) for text in PAGE.read_text(encoding="utf-8").splitlines())
    return {m[1]: (m[2], m[3], m[4], m[5]) for m in matches if m}


def cases() -> dict[str, str]:
    """Return the table of hard cases: case -> tests."""
    matches = (_CASE.match(text) for text in PAGE.read_text(encoding="utf-8").splitlines())
    return {m[1]: m[3] for m in matches if m}


def tests_named(cell: str) -> list[str]:
    """Return the test ids of a cell."""
    return re.findall(r"`([^`]+\.py::[^`]+)`", cell)


def marked() -> dict[str, list[str]]:
    """Return what each line is proved by: line or case -> test ids, by their marks."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, name in _marks(tree):
            ids = found.setdefault(line, [])
            test = f"{path.relative_to(ROOT).as_posix()}::{name}"
            if test not in ids:
                ids.append(test)
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    everywhere = [
        line
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
        for line in _lines_of(node.value)
    ]
    for name, decorators in _tests(tree.body, "", []):
        for line in [*everywhere, *(one for d in decorators for one in _lines_of(d))]:
            yield line, name


def _tests(
    body: list[ast.stmt], prefix: str, outer: list[ast.expr]
) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            marks = [*outer, *node.decorator_list]
            yield from _tests(node.body, f"{prefix}{node.name}::", marks)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:4] == "test":
            yield prefix + node.name, [*outer, *node.decorator_list]


def _lines_of(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "promise"
        ):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def rewrite(limit: int = 4) -> None:
    """Write the tests that are marked now into the page; a line without any is open."""
    proved = marked()

    def shown(line: str) -> str:
        ids = proved.get(line, [])
        more = "<br>and more" if len(ids) > limit else ""
        return "<br>".join(f"`{test}`" for test in ids[:limit]) + more

    out = []
    for text in PAGE.read_text(encoding="utf-8").splitlines():
        row, case = _ROW.match(text), _CASE.match(text)
        if row:
            cell = shown(row[1]) or f"open: issue {row[2]}"
            text = f"| {row[1]} | {row[2]} | {row[3]} | {row[4]} | {cell} |"
        elif case:
            text = f"| {case[1]} | {case[2]} | {shown(case[1])} |"
        out.append(text)
    PAGE.write_text("\n".join(out) + "\n", encoding="utf-8")


if __name__ == "__main__":
    rewrite()
