"""Inner loops in C: what a search does most often with numbers alone.

Whoever uses one does the same in Python where there is none, to the same bits: where the package
was installed without a C compiler. Arrays are those of numpy.
"""

from __future__ import annotations

try:
    from partita.native._messages import pass_messages
    from partita.native._sparse import add_differences, add_rows, reach
except ImportError:  # no C compiler when it was installed
    pass_messages = add_rows = add_differences = reach = None  # type: ignore[assignment]

__all__ = ["add_differences", "add_rows", "pass_messages", "reach"]
