"""`python -m partita`: the command."""

from partita.cli import main

main()
