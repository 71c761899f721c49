"""A compiler of which nothing is known: what hardware files have that name no other.

Each product has a kernel of its own, every kind of collective can overlap with other work, and
small sums are combined.
"""

from __future__ import annotations

from partita.cost.compilers.base import Compiler

COMPILER = Compiler("plain", "a compiler of which nothing is known but what a file states")
