"""What the rule-based model knows about tickets, invoices and replies."""
