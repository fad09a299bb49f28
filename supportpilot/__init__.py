"""SupportPilot: a support agent that refunds, in both modes of langgraph_durable."""
