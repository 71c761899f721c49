"""Plans in files: what a schedule has come to, as JSON, and back without a search.

A file holds what was decided, for which program, and what the tactics said. It holds no program:
that is traced again and has to be the same one, and lowered and estimated anew.
"""

from partita.saved.keep import contents
from partita.saved.load import take_up

__all__ = ["contents", "take_up"]
