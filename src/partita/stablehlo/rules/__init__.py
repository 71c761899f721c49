"""Sharding rules as text, made from types alone, and those of custom calls."""
