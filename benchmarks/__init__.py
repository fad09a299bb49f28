"""The benchmark: what durability costs, beside the same work on other systems (issue D)."""
