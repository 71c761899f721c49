"""Sharding rules: which dimensions of an operation's operands and results are one factor."""
