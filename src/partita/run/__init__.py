"""Running plans: artifacts of `jax.export`, executables, and PartIR:Core on one device."""
