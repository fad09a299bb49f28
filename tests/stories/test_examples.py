"""Each example runs as it stands, and says what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KEY_LINES = {
    "01_steps_mode.py": "the first worker ended with -9",
    "02_graph_mode.py": "the letter: Dear Ms Li, we are sorry.",
    "03_create_agent.py": "graph ends: Done.",
    "04_approval.py": "Sorry. The call was refused by mei: already refunded in May",
    "05_plain_function.py": "its journal: ['started', 'ticket', 'report', 'sample', 'cool down']",
    "06_saga.py": "crm: compensated by compensate:crm",
}


@pytest.mark.parametrize("name", sorted(KEY_LINES))
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert KEY_LINES[name] in done.stdout
    assert list(tmp_path.iterdir()) == []  # it leaves nothing behind


def test_every_example_is_short_listed_and_tested() -> None:
    found = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert found == sorted(KEY_LINES)
    listed = re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text())
    assert listed == found
    for name in found:
        assert len((EXAMPLES / name).read_text().splitlines()) < 80, name


def test_an_agent_of_create_agent_is_durable_by_fewer_than_ten_changed_lines() -> None:
    lines = (EXAMPLES / "03_create_agent.py").read_text().splitlines()
    assert 0 < sum("# durable" in line for line in lines[1:]) < 10
