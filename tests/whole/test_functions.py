"""What users of JAX call: the functions of its libraries, partitioned, give the same numbers.

Functions are run in groups, since compiling takes most of the time. Each function of a group gets
its own scaled copy of the arguments: what is equal in two of them a compiler would do once. The
arguments are sharded on their first dimension along one axis and on their last along another, so
that what a function does along either is reached.

Tolerance: everything is float32 and of order one, but sums are taken in another order; the inverse
of a matrix and what else loses digits is well conditioned here. A wrong collective loses or repeats
a whole piece, which is far more than 2e-4 of the largest element.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax import lax, nn
from jax.scipy.stats import beta, gamma, norm, t

import partita as pt
from partita.verify import compare

TOLERANCE = 2e-4


def on(fn, *names, **keywords):
    """A function of the arguments with these names, each times a scale where it is a float."""

    def call(arguments, scale):
        picked = [arguments[name] for name in names]
        return fn(*(a * scale if a.dtype == jnp.float32 else a for a in picked), **keywords)

    return call


def x(fn, **keywords):
    return on(fn, "x", **keywords)


def both(fn, **keywords):
    return on(fn, "x", "y", **keywords)


def matrix(fn, **keywords):
    return on(fn, "matrix", **keywords)


def vector(fn, **keywords):
    return on(fn, "vector", **keywords)


def whole_numbers(fn, **keywords):
    return on(fn, "numbers", **keywords)


def image(fn):
    """A function of images [batch, height, width, channels]."""
    return on(fn, "images")


GROUPS = {
    "elementwise": {
        **{
            f.__name__: x(f)
            for f in (
                *(jnp.exp2, jnp.log1p, jnp.cbrt, jnp.sinc, jnp.arccos, jnp.arctanh, jnp.rint),
                *(jnp.nan_to_num, jnp.frexp, jnp.modf, jnp.signbit, jnp.angle, jnp.unwrap),
            )
        },
        **{
            f.__name__: both(f)
            for f in (
                *(jnp.arctan2, jnp.hypot, jnp.logaddexp, jnp.fmod, jnp.floor_divide, jnp.nextafter),
                *(jnp.heaviside, jnp.copysign, jnp.float_power, jnp.isclose, jnp.remainder),
            )
        },
        "where": both(lambda a, b: jnp.where(a > b, a, b)),
        "select": both(lambda a, b: jnp.select([a > b, a > 0.5], [a, b], 3.0)),
        "piecewise": x(lambda a: jnp.piecewise(a, [a < 0.3, a > 0.6], [jnp.sin, jnp.cos, 0.5])),
        "bits": whole_numbers(lambda a: (a ^ 5, ~a, a << 2, lax.population_count(a), lax.clz(a))),
        "divmod": whole_numbers(lambda a: jnp.divmod(a, 3)),
        "gcd": whole_numbers(lambda a: jnp.gcd(a, a + 4)),
        "complex": both(lambda a, b: abs(jnp.exp(lax.complex(a, b)).conj())),
    },
    "reductions": {
        **{
            f"{f.__name__} {axis}": x(f, axis=axis)
            for f in (jnp.prod, jnp.ptp, jnp.var, jnp.std, jnp.argmin, jnp.nanmean, jnp.nansum)
            for axis in (0, 1)
        },
        "all": x(lambda a: jnp.all(a > 0)),
        "any": x(lambda a: jnp.any(a > 0.99, 0)),
        "average": both(lambda a, b: jnp.average(a, weights=b, axis=0)),
        "logsumexp": x(nn.logsumexp),
        "median": x(jnp.median, axis=0),
        "quantile": x(lambda a: jnp.quantile(a, jnp.array([0.1, 0.7]), axis=1)),
        "nanpercentile": x(lambda a: jnp.nanpercentile(a, 30, axis=0)),
        "cov": x(jnp.cov),
        "corrcoef": x(jnp.corrcoef, rowvar=False),
        "count_nonzero": whole_numbers(jnp.count_nonzero, axis=0),
        "bincount": whole_numbers(lambda a: jnp.bincount(a.ravel(), length=9)),
        "histogram": x(lambda a: jnp.histogram(a, bins=5, range=(0, 2))),
    },
    "running": {
        **{
            f"{f.__name__} {axis}": x(f, axis=axis)
            for f in (jnp.cumsum, jnp.cumprod, jnp.diff)
            for axis in (0, 1)
        },
        "cummax": x(lax.cummax, axis=0),
        "cumlogsumexp": x(lax.cumlogsumexp, axis=1),
        "associative_scan": x(lambda a: lax.associative_scan(jnp.add, a)),
        "trapezoid": x(jnp.trapezoid, axis=0),
        "gradient": x(jnp.gradient),
        "interp": both(lambda a, b: jnp.interp(a[0], jnp.arange(8.0), b[1])),
        "ediff1d": x(jnp.ediff1d),
    },
    "order": {
        "sort 0": x(jnp.sort, axis=0),
        "sort 1": x(jnp.sort, axis=1),
        "argsort": x(jnp.argsort, axis=0),
        "lexsort": whole_numbers(lambda a: jnp.lexsort((a[0], a[1]))),
        "top_k": x(lambda a: lax.top_k(a, 3)),
        "approx_max_k": x(lambda a: lax.approx_max_k(a, 2)),
        "partition": x(jnp.partition, kth=3),
        "argpartition": x(lambda a: jnp.argpartition(a, 3)[:, :1]),
        "searchsorted": on(lambda a, b: jnp.searchsorted(jnp.sort(a), b), "vector", "x"),
        "digitize": x(lambda a: jnp.digitize(a, jnp.array([0.2, 0.5, 0.7]))),
        "unique": whole_numbers(lambda a: jnp.unique(a, size=6, fill_value=-1)),
        "nonzero": whole_numbers(lambda a: jnp.nonzero(a > 3, size=10, fill_value=0)),
        "isin": whole_numbers(lambda a: jnp.isin(a, jnp.array([2, 5]))),
    },
    "pieces": {
        "take": on(lambda a, n: jnp.take(a, n[:, 0], axis=1), "x", "numbers"),
        "take_along_axis": on(lambda a, n: jnp.take_along_axis(a, n, 1), "x", "numbers"),
        "at set": on(lambda a, n: a.at[n[0]].set(2.0), "x", "numbers"),
        "at add": on(lambda a, n: a.at[:, n[0]].add(a), "x", "numbers"),
        "at max": on(lambda a, n: a.at[n[:, 1]].max(2 * a), "x", "numbers"),
        "mask": x(lambda a: a[1:-1:2, ::-1]),
        "roll": x(lambda a: jnp.roll(a, (3, 1), (0, 1))),
        "split": x(lambda a: jnp.split(a, 2, axis=1)),
        "concatenate": both(lambda a, b: jnp.concatenate([a, b], axis=1)),
        "stack": both(lambda a, b: jnp.stack([a, b], axis=-1)),
        "tile": x(jnp.tile, reps=(2, 3)),
        "repeat": x(jnp.repeat, repeats=2, axis=0),
        "pad": x(lambda a: jnp.pad(a, ((1, 2), (3, 0)), mode="reflect")),
        "pad inside": x(lambda a: lax.pad(a, 0.0, ((1, 0, 2), (0, 1, 1)))),
        "tril": x(jnp.tril),
        "diag": matrix(jnp.diag),
        "trace": x(jnp.trace),
        "rot90": x(jnp.rot90),
        "swapaxes": x(lambda a: jnp.swapaxes(a.reshape(4, 4, 8), 0, 2)),
        "dynamic_slice": on(lambda a, n: lax.dynamic_slice(a, n[0, :2], (4, 3)), "x", "numbers"),
        "dynamic_update": both(lambda a, b: lax.dynamic_update_slice(a, b[:3, :2], (2, 5))),
        "one_hot": whole_numbers(lambda a: nn.one_hot(a, 8)),
        "choose": on(lambda a, n: jnp.choose(n, [a, -a], mode="wrap"), "x", "numbers"),
        "compress": x(lambda a: jnp.compress(np.arange(8) % 3 == 0, a, axis=1, size=3)),
        "meshgrid": x(lambda a: jnp.meshgrid(a[0], a[:, 0])),
        "broadcast_to": vector(lambda a: jnp.broadcast_to(a, (3, 16))),
        "block": both(lambda a, b: jnp.block([[a, b], [b, a]])),
        "vander": vector(lambda a: jnp.vander(a, 3)),
        "apply_along_axis": x(lambda a: jnp.apply_along_axis(lambda r: r / r.sum(), 0, a)),
        "segment_sum": on(
            lambda a, n: jax.ops.segment_sum(a, n[:, 0], num_segments=8), "x", "numbers"
        ),
    },
    "products": {
        "tensordot": both(lambda a, b: jnp.tensordot(a, b, 2)),
        "einsum": both(lambda a, b: jnp.einsum("ij,kj->ik", a, b)),
        "einsum batch": both(lambda a, b: jnp.einsum("ij,ij->i", a, b)),
        "outer": vector(lambda a: jnp.outer(a, a)),
        "kron": both(lambda a, b: jnp.kron(a[:4], b[:2])),
        "cross": both(lambda a, b: jnp.cross(a[:, :3], b[:, :3])),
        "vdot": both(jnp.vdot),
        "matrix_power": matrix(lambda a: jnp.linalg.matrix_power(a / 20, 3)),
        "multi_dot": both(lambda a, b: jnp.linalg.multi_dot([a, b.T, a])),
        "convolve": vector(lambda a: jnp.convolve(a, jnp.array([1.0, 2.0, 1.0]), "same")),
        "polyval": vector(lambda a: jnp.polyval(jnp.array([1.0, 2.0, 3.0]), a)),
        "scaled_matmul": both(lambda a, b: lax.dot(a, b.T, precision="highest")),
        "ragged_dot": both(
            lambda a, b: lax.ragged_dot(
                a, b.reshape(2, 8, 8), group_sizes=jnp.array([10, 6], jnp.int32)
            )
        ),
    },
    "linear algebra": {
        **{
            f.__name__: matrix(f)
            for f in (jnp.linalg.inv, jnp.linalg.det, jnp.linalg.cholesky, jnp.linalg.eigvalsh)
        },
        "qr": x(lambda a: abs(jnp.linalg.qr(a)[1])),
        "svd": x(lambda a: jnp.linalg.svd(a, compute_uv=False)),
        "pinv": x(jnp.linalg.pinv),
        "norm": x(jnp.linalg.norm),
        "matrix_rank": x(jnp.linalg.matrix_rank),
        "lstsq": both(lambda a, b: jnp.linalg.lstsq(a, b)[0]),
        "solve": on(lambda m, a: jnp.linalg.solve(m, a.T), "matrix", "x"),
        "solve_triangular": on(
            lambda m, a: jsp.linalg.solve_triangular(jnp.tril(m), a.T, lower=True), "matrix", "x"
        ),
        "cho_solve": on(
            lambda m, a: jsp.linalg.cho_solve(jsp.linalg.cho_factor(m), a.T), "matrix", "x"
        ),
        "lu": matrix(lambda a: jsp.linalg.lu(a)[2]),
        "toeplitz": vector(lambda a: jsp.linalg.toeplitz(a)),
        "cg": on(lambda m, a: jsp.sparse.linalg.cg(m, a[0], maxiter=3)[0], "matrix", "x"),
    },
    "transforms": {
        "fft 0": x(lambda a: jnp.fft.fft(a, axis=0).real),
        "fft 1": x(lambda a: jnp.fft.fft(a, axis=1).imag),
        "rfft2": x(lambda a: abs(jnp.fft.rfft2(a))),
        "irfft": x(jnp.fft.irfft),
        "fftshift": x(jnp.fft.fftshift),
        "dct": x(lambda a: jsp.fft.dct(a)),
        "stft": vector(lambda a: abs(jsp.signal.stft(a, nperseg=8)[2])),
        "welch": vector(lambda a: jsp.signal.welch(a, nperseg=8)[1]),
        "fftconvolve": both(lambda a, b: jsp.signal.fftconvolve(a, b[:3, :3], "same")),
        "convolve2d": both(lambda a, b: jsp.signal.convolve2d(a, b[:3, :3], "same")),
        "detrend": x(jsp.signal.detrend, type="constant"),
    },
    "special": {
        **{
            f.__name__: x(f)
            for f in (
                *(jsp.special.gammaln, jsp.special.digamma, jsp.special.erfinv, jsp.special.i1e),
                *(jsp.special.expit, jsp.special.logit, jsp.special.entr, jsp.special.ndtri),
                *(jsp.special.i0e, jsp.special.log_ndtr),
            )
        },
        **{
            f.__name__: both(f)
            for f in (
                *(jsp.special.betaln, jsp.special.xlogy),
                *(jsp.special.kl_div, jsp.special.rel_entr),
            )
        },
        "zeta": x(lambda a: jsp.special.zeta(a + 2, 1.5)),
        "polygamma": x(lambda a: jsp.special.polygamma(1, a)),
        "sph": x(lambda a: jsp.special.bernoulli(6) * a[0, 0]),
        "norm": x(lambda a: norm.logcdf(a)),
        "gamma": x(lambda a: gamma.logpdf(a, 2.0)),
        "beta": x(lambda a: beta.pdf(a / 3, 2.0, 3.0)),
        "t": x(lambda a: t.logpdf(a, 3.0)),
        "multivariate_normal": on(
            lambda a, m: jsp.stats.multivariate_normal.logpdf(a, jnp.zeros(8), m), "x", "matrix"
        ),
    },
    "networks": {
        **{
            f.__name__: x(f)
            for f in (
                *(nn.gelu, nn.silu, nn.elu, nn.selu, nn.celu, nn.mish, nn.softplus, nn.glu),
                *(nn.hard_tanh, nn.leaky_relu, nn.log_sigmoid, nn.relu6, nn.squareplus),
            )
        },
        "softmax 0": x(nn.softmax, axis=0),
        "softmax 1": x(nn.softmax, axis=1),
        "log_softmax": x(nn.log_softmax, axis=0),
        "standardize": x(nn.standardize),
        "attention": image(lambda a: nn.dot_product_attention(a, a, a, is_causal=True)),
        "max pool": image(
            lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        ),
        "average pool": image(
            lambda a: lax.reduce_window(a, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
        ),
        "convolution": image(
            lambda a: lax.conv_general_dilated(
                a, 0.1 * jnp.ones((3, 3, 4, 8)), (1, 1), "SAME", dimension_numbers=_NHWC
            )
        ),
        "depthwise": image(
            lambda a: lax.conv_general_dilated(
                *(a, 0.1 * jnp.ones((3, 3, 1, 4)), (2, 2), "SAME"),
                dimension_numbers=_NHWC,
                feature_group_count=4,
            )
        ),
        "transposed": image(
            lambda a: lax.conv_transpose(
                a, 0.1 * jnp.ones((3, 3, 4, 4)), (2, 2), "SAME", dimension_numbers=_NHWC
            )
        ),
        "gradient of max pool": image(
            jax.grad(
                lambda a: jnp.sum(
                    lax.reduce_window(a, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
                    ** 2
                )
            )
        ),
    },
    "images": {
        **{
            method: image(lambda a, method=method: jax.image.resize(a, (8, 16, 4, 4), method))
            for method in ("nearest", "linear", "cubic")
        },
        "scale_and_translate": image(
            lambda a: jax.image.scale_and_translate(
                a, a.shape, (1, 2), jnp.array([1.5, 0.7]), jnp.array([0.5, 1.0]), "linear"
            )
        ),
        "map_coordinates": both(
            lambda a, b: jsp.ndimage.map_coordinates(a, [7 * b, 4 * b], order=1, mode="nearest")
        ),
    },
    "control": {
        "scan": x(lambda a: lax.scan(lambda c, r: (c * 0.5 + r, c.sum()), a[0], a)),
        "fori_loop": x(lambda a: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + a, a)),
        "while_loop": x(
            lambda a: lax.while_loop(lambda c: c[1] < 4, lambda c: (c[0] * 1.1, c[1] + 1), (a, 0))
        ),
        "cond": x(lambda a: lax.cond(a[0, 0] > 0.5, jnp.sin, jnp.cos, a)),
        "switch": whole_numbers(
            lambda a: lax.switch(a[0, 0] % 3, [lambda b: b, lambda b: -b, lambda b: b * b], a)
        ),
        "map": x(lambda a: lax.map(lambda r: jnp.sort(r), a)),
        "vmap": both(jax.vmap(lambda a, b: jnp.outer(a, b).sum(0))),
        "jacobian": vector(jax.jacfwd(lambda a: jnp.sin(a) * a.sum())),
        "hessian": vector(lambda a: jax.hessian(lambda b: jnp.sum(b**3))(a)),
        "checkpoint": x(jax.grad(lambda a: jnp.sum(jax.checkpoint(jnp.sin)(jnp.cos(a))))),
        "custom_jvp": x(jax.grad(lambda a: jnp.sum(nn.relu(a - 0.5)))),
        "reduce_precision": x(lambda a: lax.reduce_precision(a, 5, 10)),
        "bitcast": x(lambda a: lax.bitcast_convert_type(a, jnp.uint8)),
    },
}

_NHWC = ("NHWC", "HWIO", "NHWC")


def example_arguments():
    rng = np.random.default_rng(0)

    def uniform(*shape):
        return rng.uniform(0.1, 0.9, shape).astype(np.float32)

    square = uniform(8, 8)
    return {
        "x": uniform(16, 8),
        "y": uniform(16, 8),
        "matrix": square @ square.T + 8 * np.eye(8, dtype=np.float32),
        "vector": uniform(16),
        "numbers": rng.integers(0, 8, (16, 8)).astype(np.int32),
        "images": uniform(8, 8, 8, 4),
    }


def run_group(functions):
    arguments = example_arguments()

    def group(arguments):
        return {name: fn(arguments, 1 + number / 64) for number, (name, fn) in enumerate(functions)}

    tactics = [pt.ManualPartition({"arguments*": dim}, axis) for dim, axis in ((0, "x"), (-1, "y"))]
    plan = pt.plan(group, arguments, mesh="x=2,y=4", hardware="cpu", tactics=tactics)
    (placed,) = plan.shard(arguments)
    compiled = plan.jit().lower(placed).compile()
    comparison = compare(plan.collectives, plan.mesh, compiled.as_text())
    return compiled(placed), jax.jit(group)(arguments), comparison


def assert_close(mine, theirs, name):
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, name
        if jnp.issubdtype(b.dtype, jnp.inexact):
            scale = max(1.0, float(np.abs(b).max(initial=0, where=np.isfinite(b))))
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(a, b, name)


@pytest.mark.parametrize("group", GROUPS)
def test_functions_give_the_same_numbers_and_the_collectives_predicted(group):
    ours, theirs, comparison = run_group(GROUPS[group].items())
    for name in theirs:
        assert_close(ours[name], theirs[name], name)
    assert comparison.equal, f"\n{comparison}"
