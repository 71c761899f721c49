"""Dimensions that a program merges, and what they become where it need not."""

from partita.stablehlo.dimensions.merged import unmerge

__all__ = ["unmerge"]
