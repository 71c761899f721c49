"""Program passes: decisions that change the program, each as a function `Program -> Rewritten`.

A pass changes what runs and in which order, never what is computed: loops and branches stay what
they are, an operation may run twice. It works on the program's data alone. The module's text stays
as it was read, and emission copies from it what the program says.

A new pass is one file here. It describes its edit to a `Copier`, which renumbers everything.
"""

from partita.program.passes.copier import Copier, rebuilt
from partita.program.passes.recompute import recompute
from partita.program.passes.rewritten import Pass, Rewritten, run, unchanged

__all__ = ["Copier", "Pass", "Rewritten", "rebuilt", "recompute", "run", "unchanged"]
