"""Emission: SPMD programs and loop nests as StableHLO."""
