"""The version of partita."""

__version__ = "0.1.0"
