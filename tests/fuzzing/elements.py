"""Operations element by element: arithmetic, conversions, bits, random numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fuzzing.pool import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NUMBERS,
    PLAIN,
    REAL,
    SMALL,
    SMALL_FLOATS,
    SMALL_WHOLE,
    WHOLE,
    Pool,
    like,
    rank,
)

UNARY = {
    "tanh": jnp.tanh,
    "negate": lambda a: -a,
    "sine": jnp.sin,
    "scale": lambda a: 0.5 * a,
    "offset": lambda a: a + 0.25,
    "square": lambda a: jnp.tanh(a * a),
    "softmax": lambda a: jax.nn.softmax(a, axis=-1) if a.ndim else a,
    "log softmax": lambda a: 0.1 * jax.nn.log_softmax(a, axis=0) if a.ndim else a,
    "iota": lambda a: a + 0.1 * jnp.arange(a.shape[-1], dtype=a.dtype) if a.ndim else a,
    "mean of itself": lambda a: a - jnp.mean(a, axis=0) if a.ndim else a,
    "normalised": lambda a: (
        a / (1 + jnp.linalg.norm(a.astype(FLOAT), axis=-1, keepdims=True)) if a.ndim else a
    ),
    "barrier": jax.lax.optimization_barrier,
    "constant": lambda a: (
        a * (np.arange(a.size, dtype=np.float32).reshape(a.shape) / max(a.size, 1)).astype(a.dtype)
    ),
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "erf": lambda a: jax.lax.erf(a.astype(FLOAT)),
    "logarithm": lambda a: jnp.log1p(jnp.abs(a)),
    "root": lambda a: jnp.sqrt(jnp.abs(a) + 0.5),
    "inverse": lambda a: 1 / (1.5 + jnp.abs(a)),
    "power": lambda a: jnp.tanh(a) ** 3,
    "clamped": lambda a: jnp.clip(a, -1.0, 1.0),
    "stopped": lambda a: a + jax.lax.stop_gradient(jnp.tanh(a)),
    "special": lambda a: 0.1 * jax.lax.lgamma(jnp.abs(a.astype(FLOAT)) + 1),
    "inverse sine": lambda a: jnp.arctan(a) + jnp.arcsinh(a),
    "exponential": lambda a: jnp.exp(-jnp.abs(a)) + jnp.expm1(-jnp.abs(a)),
}

BINARY = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: jnp.tanh(a * b),
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "divide": lambda a, b: a / (1.5 + jnp.abs(b)),
    "angle": lambda a, b: jnp.arctan2(a, 1.5 + jnp.abs(b)),
    "logarithms": lambda a, b: 0.5 * jnp.logaddexp(a, b),
}

OF_WHOLE = {
    "doubled": lambda n: 2 * n,
    "remainder": lambda n: n % 7,
    "divided": lambda n: jax.lax.div(n, jnp.asarray(3, n.dtype)),
    "negative": lambda n: -n,
    "not": lambda n: ~n,
    "shifted": lambda n: (n << 2) ^ (n >> 1),
    "ones": jax.lax.population_count,
    "zeros in front": jax.lax.clz,
    "sign": jnp.sign,
    "positions": lambda n: n + jnp.arange(n.shape[-1], dtype=n.dtype) if n.ndim else n,
}

WHOLE_PAIRS = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "xor": lambda a, b: a ^ b,
    "least": jnp.minimum,
}

OF_COMPLEX = {
    "conjugate": jnp.conj,
    "turned": lambda z: z * jnp.complex64(0.6 + 0.8j),
    "real part": jnp.real,
    "imaginary part": jnp.imag,
    "size": lambda z: jnp.abs(z + 2),
    "exponential": lambda z: jnp.exp(1j * jnp.real(z)),
}


def unary(pool: Pool) -> None:
    name = pool.choice(UNARY)
    pool.add(name, UNARY[name], pool.value())


def binary(pool: Pool) -> None:
    a = pool.value()
    name = pool.choice(BINARY)
    pool.add(name, BINARY[name], a, pool.value(like(a)))


def whole(pool: Pool) -> None:
    a = pool.value(dtypes=WHOLE)
    if pool.chance(50):
        name = pool.choice(OF_WHOLE)
        pool.add(name, OF_WHOLE[name], a)
    else:
        name = pool.choice(WHOLE_PAIRS)
        pool.add(name, WHOLE_PAIRS[name], a, pool.value(like(a), WHOLE))


def complex_numbers(pool: Pool) -> None:
    z = pool.value(dtypes=[COMPLEX])
    if z is None or pool.chance(30):
        a = pool.value(dtypes=[FLOAT])
        pool.add("complex", jax.lax.complex, a, pool.value(like(a), [FLOAT]))
    elif pool.chance(40):
        product = pool.choice((jnp.add, jnp.subtract, lambda a, b: a * b / (1 + jnp.abs(b))))
        pool.add("complex pair", product, z, pool.value(like(z), [COMPLEX]))
    else:
        name = pool.choice(OF_COMPLEX)
        pool.add(f"complex {name}", OF_COMPLEX[name], z)


def choose(pool: Pool) -> None:
    """One of two values, by a condition that jumps only where nothing was rounded."""
    a = pool.value(dtypes=NUMBERS)
    b = pool.value(lambda v: a is not None and v.type == a.type, NUMBERS)
    name = pool.choice(("mask", "compared", "triangle", "positions"))
    if name == "mask":
        mask = pool.value(like(a), [BOOL])
        pool.add("select", lambda m, x, y: jnp.where(m, x, y), mask, a, b, moves=True)
    elif name == "compared":
        keys = pool.value(like(a), REAL | WHOLE, exact=True)
        pool.add("select by size", lambda k, x, y: jnp.where(k > 0, x, y), keys, a, b, moves=True)
    elif name == "triangle" and a is not None and a.ndim >= 2:
        k = pool.integer(-1, 1)
        fn = pool.choice((jnp.tril, jnp.triu))
        pool.add(f"triangle {k}", lambda x: fn(x, k), a, moves=True)
    elif name == "positions" and a is not None and a.ndim >= 1:
        pool.add(
            "select by position",
            lambda x, y: jnp.where(jnp.arange(x.shape[-1]) % 3 == 0, x, y),
            a,
            b,
            moves=True,
        )


def compare(pool: Pool) -> None:
    a = pool.value(dtypes=REAL | WHOLE, exact=True)
    fn = pool.choice((jnp.greater, jnp.less_equal, jnp.not_equal))
    b = pool.value(lambda v: a is not None and v.type == a.type, REAL | WHOLE, exact=True)
    pool.add("compare", fn, a, b, sharp=True)


def logic(pool: Pool) -> None:
    a = pool.value(dtypes=[BOOL])
    fn = pool.choice((jnp.logical_and, jnp.logical_or, jnp.logical_xor))
    pool.add("logic", lambda x, y: fn(~x, y), a, pool.value(like(a), [BOOL]))


def convert(pool: Pool) -> None:
    a = pool.value(dtypes=PLAIN)
    if a is None:
        return
    if a.dtype == COMPLEX:
        pool.add("real", jnp.real, a, moves=True)
    elif a.dtype in (*WHOLE, *SMALL_WHOLE, BOOL):
        to = pool.choice((FLOAT, FLOAT, *REAL, *WHOLE, *SMALL_WHOLE, BOOL))
        if to in REAL:
            scale = 1 if a.dtype == BOOL else 0.01
            pool.add(f"convert to {to}", lambda x: (x.astype(FLOAT) * scale).astype(to), a)
        else:
            pool.add(f"convert to {to}", lambda x: x.astype(to), a)
    elif a.error == 0 and pool.chance(30):
        to = pool.choice((INT, np.dtype(np.int8), BOOL))
        pool.add(f"truncate to {to}", lambda x: x.astype(to), a, sharp=True)
    else:
        to = pool.choice((*REAL, *SMALL_FLOATS, COMPLEX))
        pool.add(f"convert to {to}", lambda x: x.astype(to), a)


def small(pool: Pool) -> None:
    """Numbers of 4 and 8 bits, element by element."""
    a = pool.value(dtypes=SMALL)
    b = pool.value(lambda v: a is not None and v.type == a.type, SMALL)
    if a is None:
        return
    fns = {"larger": jnp.maximum, "smaller": jnp.minimum, "chosen": _by_size}
    if a.dtype in SMALL_WHOLE:
        fns |= {"add": jnp.add, "multiply": jnp.multiply, "negative": lambda x, y: y - x}
    name = pool.choice(fns)
    moves = name not in ("add", "multiply", "negative")
    pool.add(f"{name} of small numbers", fns[name], a, b, moves=moves)


def _by_size(x, y):
    return jnp.where(jnp.arange(x.size).reshape(x.shape) % 2 == 0, x, y)


def rounded(pool: Pool) -> None:
    name, fn = pool.choice(
        {
            "floor": jnp.floor,
            "round": jnp.round,
            "ceil": jnp.ceil,
            "sign": jnp.sign,
            "finite": jnp.isfinite,
        }.items()
    )
    pool.add(name, fn, pool.value(exact=True), sharp=True)


def bits(pool: Pool) -> None:
    name = pool.choice(("float", "wider", "narrower", "precision"))
    if name == "float":
        a = pool.value(dtypes=[FLOAT], exact=True)
        pool.add(
            "bits of floats",
            lambda x: jax.lax.bitcast_convert_type(x, jnp.int32) >> 8,
            a,
            sharp=True,
        )
    elif name == "wider":
        a = pool.value(lambda v: v.ndim >= 1 and v.shape[-1] == 2, [np.dtype(np.uint16)])
        pool.add("pairs of halves", lambda x: jax.lax.bitcast_convert_type(x, jnp.uint32), a)
    elif name == "narrower":
        a = pool.value(dtypes=[INT, np.dtype(np.uint32)])
        to = pool.choice((jnp.uint8, jnp.uint16))
        pool.add("pieces of words", lambda x: jax.lax.bitcast_convert_type(x, to), a)
    else:
        a = pool.value(dtypes=[FLOAT], exact=True)
        kept = pool.choice((10, 20))
        pool.add(f"reduce precision {kept}", lambda x: jax.lax.reduce_precision(x, 8, kept), a)


def random_numbers(pool: Pool) -> None:
    """Of a key that is an argument, is made inside of numbers, or is constant."""
    key = pool.value(dtypes=KEYS)
    number = pool.value(rank(0), WHOLE)
    shape = tuple(pool.choice((2, 4, 8)) for _ in range(pool.integer(1, 2)))
    name, draw = pool.choice(
        {
            "normal": lambda k: jax.random.normal(k, shape),
            "uniform": lambda k: jax.random.uniform(k, shape),
            "whole": lambda k: jax.random.randint(k, shape, -3, 9),
            "bits": lambda k: jax.random.bits(k, shape, jnp.uint8),
            "coins": lambda k: jax.random.bernoulli(k, 0.4, shape),
            "halves": lambda k: jax.random.normal(k, shape, jnp.bfloat16),
            "order": lambda k: jax.random.permutation(k, shape[0]),
            "split": lambda k: jax.random.split(k, shape[0]),
            "truncated": lambda k: jax.random.truncated_normal(k, -1.0, 1.0, shape),
        }.items()
    )
    kind = pool.choice(("constant", "made", "given", "given", "many"))
    if kind == "constant" and number is not None:
        pool.add(f"random {name}", lambda n: draw(jax.random.key(7)), number)
    elif kind == "made":
        pool.add(
            f"random {name}, of a seed",
            lambda n: draw(jax.random.key(jnp.sum(n).astype(jnp.uint32))),
            number,
        )
    elif kind == "given" and key is not None:
        if key.ndim == 0:
            pool.add(f"random {name}, of a key", draw, key)
        else:
            pool.add(f"random {name}, of the first key", lambda k: draw(k.reshape(-1)[0]), key)
    elif kind == "many" and key is not None:
        many = jax.vmap(draw) if key.ndim == 1 else lambda k: draw(jax.random.fold_in(k, 3))
        if key.ndim <= 1:
            pool.add(f"random {name}, of every key", many, key)


def _key_type() -> object:
    return jax.random.key(0).dtype


KEYS = (_key_type(),)

OPERATIONS = (
    *(unary, unary, unary, unary, binary, binary, binary, whole, complex_numbers, choose, choose),
    *(compare, logic, convert, convert, small, rounded, bits, random_numbers),
)
