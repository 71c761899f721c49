"""Commands for those who develop partita: benchmarks and tables. Not part of the package."""
