"""Memory: the peak by liveness, what fills it, and what to gather again where it is short."""
