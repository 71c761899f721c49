"""One step in time: the cost of every instruction, and when each runs."""
