"""Measured speed of one device: each figure by one operation of growing sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from partita.cost.devices.fitting import TimedProduct, fit_products
from partita.cost.devices.stopwatch import Budget, best_of, rate

ROW = 256
"""Elements of the rows that are gathered."""

SIDES = ((64, 64), (256, 256), (1024, 64), (1024, 256), (256, 1024))
"""Rows, and elements that are contracted and made of each, of small products."""

LEAST = 1e-9
"""Seconds, below which the clock does not tell a time from none."""


def memory_bandwidth(device: Any, budget: Budget) -> float:
    """Bytes/s that a device reads and writes."""

    def case(size: int) -> tuple[Callable[[], Any], float]:
        array = jax.device_put(jnp.ones(size, jnp.float32), device)
        scale = jax.jit(lambda x: 2 * x + 1)
        return lambda: scale(array), 8.0 * size

    return rate((case(2**power) for power in range(20, 31)), budget)


def matmul_rate(device: Any, dtype: Any, budget: Budget) -> float:
    """Measures the FLOP/s of large products of an element type."""

    def case(size: int) -> tuple[Callable[[], Any], float]:
        matrix = jax.device_put(jnp.ones((size, size), dtype), device)
        product = jax.jit(lambda a: a @ a)
        return lambda: product(matrix), 2.0 * size**3

    return rate((case(2**power) for power in range(8, 15)), budget)


def gather_rate(device: Any, budget: Budget) -> float:
    """Bytes/s of reading single rows of a table, and writing them one after another."""

    def case(rows: int) -> tuple[Callable[[], Any], float]:
        table = jax.device_put(jnp.ones((rows, ROW), jnp.float32), device)
        order = jax.device_put(jax.random.permutation(jax.random.key(0), rows), device)
        gather = jax.jit(lambda table, order: table[order])
        return lambda: gather(table, order), 2.0 * table.nbytes

    return rate((case(2**power) for power in range(10, 21)), budget)


def convolution_rate(device: Any, budget: Budget) -> float:
    """Measures the FLOP/s of convolutions of float32 images."""
    channels, side = 256, 14

    def case(images: int) -> tuple[Callable[[], Any], float]:
        shape = (images, side, side, channels)
        x = jax.device_put(jnp.ones(shape, jnp.float32), device)
        kernel = jax.device_put(jnp.ones((3, 3, channels, channels), jnp.float32), device)
        names = ("NHWC", "HWIO", "NHWC")
        convolve = jax.jit(
            lambda x, kernel: jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=names
            )
        )
        return lambda: convolve(x, kernel), 2.0 * x.size * kernel.size / channels

    return rate((case(2**power) for power in range(9)), budget)


def launch(device: Any, budget: Budget) -> float:
    """Seconds that a kernel takes that does nothing to speak of, in a program of many."""
    few, many = 8, 72
    array = jax.device_put(jnp.ones(256, jnp.float32), device)

    def chain(kernels: int) -> Callable[[], Any]:
        def step(x: Any) -> Any:
            for _ in range(kernels):
                x = jax.lax.optimization_barrier(x * 1.0001 + 1)
            return x

        run = jax.jit(step)
        return lambda: run(array)

    longer = best_of(chain(many), budget) - best_of(chain(few), budget)
    return max(longer / (many - few), LEAST)


def products(device: Any, bandwidth: float, budget: Budget) -> dict[str, float]:
    """Measures the overhead of float32 products on top of multiplications: `start` and `ramp`.

    Each time is the difference between chains of several products and one, which excludes the cost
    of calling a program.
    """
    few, many, rows = 1, 9, []
    for m, k in SIDES:
        x, w = (
            jax.device_put(jnp.full(shape, 1 / k, jnp.float32), device)
            for shape in ((m, k), (k, k))
        )

        def chain(length: int, x: Any = x, w: Any = w) -> Callable[[], Any]:
            def step(x: Any, w: Any) -> Any:
                for _ in range(length):
                    x = x @ w
                return x

            run = jax.jit(step)
            return lambda: run(x, w)

        longer = best_of(chain(many), budget) - best_of(chain(few), budget)
        seconds = max(longer / (many - few), LEAST)
        rows.append(TimedProduct(1, m, k, k, 4 * (2 * m * k + k * k), seconds))
    found = fit_products(rows, bandwidth)
    return {name: max(found[name], LEAST) for name in ("start", "ramp")}
