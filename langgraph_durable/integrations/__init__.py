"""Bridges to other packages, each behind an extra: import the one you need."""
