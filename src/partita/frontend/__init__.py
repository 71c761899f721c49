"""Front ends: JAX functions and files become programs; what users write about shardings is read."""
