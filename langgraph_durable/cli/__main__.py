"""`python -m langgraph_durable.cli`."""

from langgraph_durable.cli import main

if __name__ == "__main__":
    main()
