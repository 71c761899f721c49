"""Random programs under random schedules; `tests/whole/test_ops_random.py` says what for and how.

`pool` holds a program while it grows, `elements`, `shapes`, `sums`, `indexing` and `control` are
the operations it grows by, `programs` draws whole programs and schedules, `checking` compares a
partitioned program with the original, `shrinking` makes a faulty example small.
"""
