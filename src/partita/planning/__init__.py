"""Planning: the schedule of tactics, prepared, applied and compared."""
