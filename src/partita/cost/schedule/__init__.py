"""Overlap in loops: which work of an iteration hides its collectives."""
