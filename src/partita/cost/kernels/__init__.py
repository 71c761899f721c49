"""Kernels: what a compiler makes of a program, whatever the tiling: what is stored, and when."""
