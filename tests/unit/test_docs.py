"""The documents are true: their code runs, their links lead somewhere, their tests exist."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import promises
import pytest
from langgraph.graph import END, START, StateGraph

from langgraph_durable import Durable
from supportpilot.build import make
from supportpilot.settings import Settings

ROOT = promises.ROOT
DOCS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
ADRS = sorted((ROOT / "docs" / "adr").glob("*.md"))

_BLOCK = re.compile(r"^```python run[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _blocks(path: Path) -> list[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in _BLOCK.finditer(text)]


RUNNABLE = [path for path in DOCS if _blocks(path)]


@pytest.mark.promise("S-51")
@pytest.mark.promise("S-75")
@pytest.mark.parametrize("path", RUNNABLE, ids=_named)
def test_the_code_of_a_page_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page are one program; what they claim, they assert."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page_" + path.stem.replace("-", "_"))
    monkeypatch.setitem(sys.modules, module.__name__, module)  # its classes are looked up by name
    for line, code in _blocks(path):
        padded = "\n" * line + code  # so that a traceback names the page's own line
        exec(compile(padded, str(path), "exec"), module.__dict__)


def test_every_guide_has_code_that_runs() -> None:
    guides = set((ROOT / "docs" / "guides").glob("*.md"))
    assert guides - set(RUNNABLE) == set()


@pytest.mark.parametrize("path", DOCS, ids=_named)
def test_links_lead_somewhere(path: Path) -> None:
    text = _FENCED.sub("", path.read_text(encoding="utf-8"))
    for target in _LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue  # another site
        name, _, anchor = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        assert to.exists(), f"{target} is not there"
        if anchor:
            assert anchor in _anchors(to), f"{target}: there is no such heading"


def _anchors(path: Path) -> set[str]:
    headings = _HEADING.findall(_FENCED.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / t.partition("#")[0]).resolve() for t in _LINK.findall(index)}
    pages = {path for path in DOCS if path.parent != ROOT and path.name != "index.md"}
    assert {_named(path) for path in pages - linked} == set()


# --- what the guides say of lints --------------------------------------------------------


_CONFIG = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.promise("S-75")
@pytest.mark.parametrize(
    ("code", "rule", "line"),
    [
        ("import time\n\n\ndef route(state):\n    return time.time()\n", "TID251", 5),
        ("import random\n\n\ndef route(state):\n    return random.random()\n", "TID251", 5),
        ("from datetime import UTC, datetime\n\nnow = datetime.now(UTC)\n", "TID251", 3),
        ("import uuid\n\nkey = f'pay:{uuid.uuid4()}'\n", "TID251", 3),
        ("import time\n\n\nasync def node(state):\n    time.sleep(8)\n", "ASYNC251", 5),
    ],
    ids=["clock", "random", "datetime", "generated key", "blocking call"],
)
def test_the_lint_of_the_guide_names_the_line(
    code: str, rule: str, line: int, tmp_path: Path
) -> None:
    guide = (ROOT / "docs" / "guides" / "determinism.md").read_text(encoding="utf-8")
    config = _CONFIG.search(guide)
    assert config is not None
    (tmp_path / "ruff.toml").write_text(config[1].replace("tool.ruff.", ""), encoding="utf-8")
    (tmp_path / "agent.py").write_text(code, encoding="utf-8")
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--output-format=concise",
            "--no-cache",
            "agent.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert f"agent.py:{line}:" in found
    assert rule in found


@pytest.mark.promise("S-75")
def test_the_six_usual_mistakes_have_an_entry_each() -> None:
    guide = (ROOT / "docs" / "guides" / "determinism.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^### [1-6]\. ", guide, re.MULTILINE)) == 6


@pytest.mark.promise("S-51")
@pytest.mark.promise("S-75")
def test_comparison_and_sources_name_who_they_speak_of() -> None:
    comparison = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    for name in ("LangGraph", "Temporal", "Restate", "DBOS", "operation_outputs"):
        assert name in comparison
    sources = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    for name in ("Temporal", "Restate", "DBOS", "LangGraph", "Postgres", "Kleppmann", "Sagas"):
        assert name in sources


# --- decisions ---------------------------------------------------------------------------


@pytest.mark.promise("S-23")
@pytest.mark.parametrize("path", ADRS, ids=_named)
def test_a_decision_has_status_date_and_its_three_parts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    matter = re.match(r"\A---\n(.*?)\n---\n", text, re.DOTALL)
    assert matter is not None
    assert re.search(r"^status: (proposed|accepted|superseded)$", matter[1], re.MULTILINE)
    assert re.search(r"^date: \d{4}-\d\d-\d\d$", matter[1], re.MULTILINE)
    for heading in ("## Context", "## Decision", "## Consequences"):
        assert heading in text


@pytest.mark.promise("S-73")
def test_the_decision_on_temporal_has_the_method_of_evaluation() -> None:
    text = (ROOT / "docs" / "adr" / "0004-why-not-temporal-yet.md").read_text(encoding="utf-8")
    for part in ("Pains", "Gains", "New costs", "Pilot", "two to four weeks", "Verdict"):
        assert part in text
    for condition in ("steps a day", "timers", "maintain", "incidents"):
        assert condition in text


@pytest.mark.promise("S-24")
def test_supportpilots_decisions_agree_with_its_registration(sqlite_url: str) -> None:
    durable = make(Settings(database_url=sqlite_url))
    assert {agent.mode for agent in durable.agents} == {"graph", "steps"}
    assert durable.check_adrs(ROOT) == {}


@pytest.mark.promise("S-24")
def test_a_missing_or_disagreeing_decision_is_named(sqlite_url: str) -> None:
    durable = Durable(sqlite_url)
    graph = StateGraph(dict).add_node("n", lambda state: state)
    graph.add_edge(START, "n").add_edge("n", END)
    now = "docs/adr/0002-supportpilot-graph-mode-now.md"
    durable.graph("none", graph, mode="steps")
    durable.graph("gone", graph, mode="steps", adr="docs/adr/9999-nothing.md")
    durable.graph("support.v1", graph, mode="steps", adr=now)
    durable.graph("other", graph, mode="graph", adr=now)
    found = durable.check_adrs(ROOT)
    assert "names no ADR" in found["none 1"]
    assert "is not there" in found["gone 1"]
    assert "says mode 'graph'" in found["support.v1 1"]
    assert "is about 'support.v1'" in found["other 1"]


@pytest.mark.promise("S-46")
def test_the_record_of_the_kill_experiment_is_whole() -> None:
    page = (ROOT / "docs" / "kill-experiment.md").read_text(encoding="utf-8")
    record = page.partition("<!-- record:begin -->")[2].partition("<!-- record:end -->")[0]
    figures = [json.loads(line) for line in record.splitlines() if line.startswith("{")]
    assert [one["mode"] for one in figures] == ["graph", "steps"]
    for one in figures:
        assert one["status"] == "succeeded"
        assert (one["kills"], one["refunds"], one["duplicate_approvals_ignored"]) == (3, 1, 1)
        assert one["model_calls"] == one["model_calls_without_kills"] == 3
        assert one["tool_calls"] == {"list_invoices": 2, "create_refund": 2}


# --- promises ----------------------------------------------------------------------------

PAGE_ROWS = promises.rows()
CHECKLIST = promises.lines()
PROVED = promises.marked()


@pytest.mark.parametrize("line", CHECKLIST)
def test_a_line_of_the_checklist_is_in_the_page(line: str) -> None:
    letter, _, _, cell = PAGE_ROWS[line]
    assert letter == CHECKLIST[line]
    assert promises.tests_named(cell) or cell == f"open: issue {letter}"


def test_the_page_has_no_line_of_its_own() -> None:
    assert set(PAGE_ROWS) == set(CHECKLIST)


@pytest.mark.parametrize("line", CHECKLIST)
def test_tests_named_in_the_page_exist_and_say_so(line: str) -> None:
    unproved = set(promises.tests_named(PAGE_ROWS[line][3])) - set(PROVED.get(line, []))
    assert not unproved, "run: python tests/unit/promises.py"


@pytest.mark.parametrize("line", [one for one, letter in CHECKLIST.items() if letter == "A"])
def test_a_line_of_issue_a_is_proved_by_a_test(line: str) -> None:
    tests = PROVED.get(line, [])
    assert tests, f'no test is marked promise("{line}")'
    assert not PAGE_ROWS[line][3].startswith("open"), "run: python tests/unit/promises.py"


@pytest.mark.parametrize("case", promises.CASES)
def test_a_hard_case_is_in_the_page_with_tests_that_say_so(case: str) -> None:
    named = promises.tests_named(promises.cases()[case])
    assert named, "run: python tests/unit/promises.py"
    assert set(named) <= set(PROVED.get(case, [])), "run: python tests/unit/promises.py"


def test_marks_are_lines_or_cases() -> None:
    known = {*CHECKLIST, *promises.CASES}
    assert set(PROVED) <= known


def test_marks_are_found_wherever_pytest_finds_them() -> None:
    source = (
        "import pytest\npytestmark = [pytest.mark.promise('S-01')]\n"
        "@pytest.mark.promise('S-02')\nclass TestIt:\n"
        "    @pytest.mark.promise('S-03')\n    async def test_one(self): ...\n"
    )
    found = set(promises._marks(ast.parse(source)))
    assert found == {(line, "TestIt::test_one") for line in ("S-01", "S-02", "S-03")}
