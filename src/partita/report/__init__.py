"""Reports: plans and what belongs to them, as text and as plain data."""
