"""Predicted beside compiled: a plan's collectives, memory and time, and what a real XLA makes."""

from partita.verify.check import verify
from partita.verify.collectives import HloCollective, compiled_collectives
from partita.verify.comparison import AGREEMENTS, Comparison, compare
from partita.verify.compile import Compiled, OutOfMemoryError
from partita.verify.gpu_rewrites import GPU_REWRITES
from partita.verify.host_rewrites import HOST_REWRITES
from partita.verify.memory import Memory
from partita.verify.rewrites import REWRITES
from partita.verify.verification import Verification

__all__ = [
    "AGREEMENTS",
    "GPU_REWRITES",
    "HOST_REWRITES",
    "REWRITES",
    "Comparison",
    "Compiled",
    "HloCollective",
    "Memory",
    "OutOfMemoryError",
    "Verification",
    "compare",
    "compiled_collectives",
    "verify",
]
