"""Predicted beside compiled: a plan's collectives, memory and time, and what a real XLA makes."""

from partita.verify.check import verify
from partita.verify.comparison import AGREEMENTS, Comparison, compare
from partita.verify.compile import Compiled, OutOfMemoryError, compile_plan, provide_host_devices
from partita.verify.exchanges import Exchange, compiled_exchanges
from partita.verify.memory import Memory
from partita.verify.rewrites import REWRITES
from partita.verify.verification import Verification

__all__ = [
    "AGREEMENTS",
    "REWRITES",
    "Comparison",
    "Compiled",
    "Exchange",
    "Memory",
    "OutOfMemoryError",
    "Verification",
    "compare",
    "compile_plan",
    "compiled_exchanges",
    "provide_host_devices",
    "verify",
]
