"""Modules of libraries as arguments: split into arrays and static parts, put together again.

`jax.jit` takes trees of arrays. Libraries have modules, which hold other things too, refer to each
other, or are changed in place; each has a `jit` of its own for them. Here a function of modules
becomes one of trees of arrays (`Functional`), which is what is planned; where the planned function
is called, modules are split, and what it returns is put together again and written back.

`kinds.py` lists the libraries. A further one is a module here with a class that is a `Kind`.
"""
