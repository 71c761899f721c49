"""Plans in files: what a schedule has come to, as JSON, and back without a search.

A file holds what was decided, for which program, and what the tactics said. It holds no program:
that is traced again and has to be the same one, and lowered and estimated anew.
"""

from partita.saved.keep import contents, table
from partita.saved.load import take_up
from partita.saved.translate import NotKept

__all__ = ["NotKept", "contents", "table", "take_up"]
