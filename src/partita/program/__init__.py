"""Import: JAX functions and StableHLO modules become a `Program`; nothing is partitioned yet."""

from partita.program.importer import import_stablehlo
from partita.program.ir import Factor, Operation, Program, Rule, TensorType, Value

__all__ = ["Factor", "Operation", "Program", "Rule", "TensorType", "Value", "import_stablehlo"]
