"""`python -m partita.cli`."""

from partita.cli import main

main()
