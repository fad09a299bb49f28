"""What users need to test their own agents.

Kill an agent everywhere, and show that nothing is done twice or lost:

    report = crash_everywhere(graph, {"ticket": "..."}, tools=tools, models=models)
    report.assert_ok()

Check that today's code replays what was recorded (`langgraph-durable runs export`):

    replay_check(graph, json.loads(exported)).assert_ok()

Test a node by itself, with a journal in memory:

    ctx = context(MemoryJournal(), models={"fast": ScriptedModel(["refund"])})
    with running(ctx):
        await graph.ainvoke({...}, context=ctx)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported at their first use: pytest loads the plugin in every session
    from langgraph_durable.testing.crash import Crashed, CrashReport, crash_everywhere
    from langgraph_durable.testing.fakes import (
        FakeClock,
        MemoryJournal,
        SeededChance,
        context,
        running,
    )
    from langgraph_durable.testing.ledger import Ledger, LedgerLine, RecordingTools
    from langgraph_durable.testing.points import Point, acting
    from langgraph_durable.testing.replay import (
        Diverged,
        Divergence,
        ReplayReport,
        export_run,
        replay_check,
    )
    from langgraph_durable.testing.scenes import Scene, agree
    from langgraph_durable.testing.scripted import ScriptedModel

__all__ = [
    "CrashReport",
    "Crashed",
    "Diverged",
    "Divergence",
    "FakeClock",
    "Ledger",
    "LedgerLine",
    "MemoryJournal",
    "Point",
    "RecordingTools",
    "ReplayReport",
    "Scene",
    "ScriptedModel",
    "SeededChance",
    "acting",
    "agree",
    "context",
    "crash_everywhere",
    "export_run",
    "replay_check",
    "running",
]

_HOMES = {
    "CrashReport": "crash",
    "Crashed": "crash",
    "Diverged": "replay",
    "Divergence": "replay",
    "FakeClock": "fakes",
    "Ledger": "ledger",
    "LedgerLine": "ledger",
    "MemoryJournal": "fakes",
    "Point": "points",
    "RecordingTools": "ledger",
    "ReplayReport": "replay",
    "Scene": "scenes",
    "ScriptedModel": "scripted",
    "SeededChance": "fakes",
    "acting": "points",
    "agree": "scenes",
    "context": "fakes",
    "crash_everywhere": "crash",
    "export_run": "replay",
    "replay_check": "replay",
    "running": "fakes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
