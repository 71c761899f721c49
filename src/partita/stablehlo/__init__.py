"""StableHLO: modules read as programs, and all that touches MLIR and JAX's internals."""
