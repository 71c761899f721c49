"""The program being partitioned: values, operations, factors and blocks. Nothing is sharded yet."""

from partita.program.ir import Factor, Operation, Program, Rule, TensorType, Value

__all__ = ["Factor", "Operation", "Program", "Rule", "TensorType", "Value"]
