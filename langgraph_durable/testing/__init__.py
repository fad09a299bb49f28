"""What users need to test their own agents: a journal in memory, a clock that tests turn.

journal = MemoryJournal()
ctx = context(journal, models={"fast": lambda messages, route: "refund"})
with running(ctx):
    await graph.ainvoke({...}, context=ctx)
"""

from langgraph_durable.testing.fakes import (
    FakeClock,
    MemoryJournal,
    SeededChance,
    context,
    running,
)

__all__ = ["FakeClock", "MemoryJournal", "SeededChance", "context", "running"]
