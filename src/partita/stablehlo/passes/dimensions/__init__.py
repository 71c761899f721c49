"""Dimensions that a program merges or fuses, and what they become where it need not."""

from partita.stablehlo.passes.dimensions.fused import takes_apart, unfuse
from partita.stablehlo.passes.dimensions.merged import unmerge

__all__ = ["takes_apart", "unfuse", "unmerge"]
