"""The page for people: inbox, runs, a run's timeline. No build step, no script from elsewhere."""

from langgraph_durable.web.page import routes

__all__ = ["routes"]
