"""Translation validation: proves that a lowered program computes what the original does.

The lowering decides where shards move and where sums stay outstanding. This package decides
nothing. It walks the device-local program once and derives, for each buffer and each mesh axis,
what the devices hold: a shard along a dimension, the same value, a part of a sum, or values that
differ. There is one transfer rule per instruction. A program passes if each operation gets what its
rule asks for, if what control flow depends on is the same on all devices that communicate inside,
and if arguments and results have the layouts that the plan states.

It shares no code with the decisions of `partita.spmd`: it reads instructions, and the sharding
rules of operations. See Pnueli, Siegel and Singerman, Translation Validation (TACAS 1998).
"""

from partita.validation.program import validate

__all__ = ["validate"]
