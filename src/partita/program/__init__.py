"""The program being partitioned: values, operations, factors and blocks. Nothing is sharded yet."""

from partita.program.ir import Operation, Program, TensorType, Value
from partita.program.rule import Factor, Rule

__all__ = ["Factor", "Operation", "Program", "Rule", "TensorType", "Value"]
