"""Faults planted in the sources on purpose, to see whether the tests find them."""
