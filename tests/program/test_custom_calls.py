"""Custom calls: along what those of JAX and XLA can be sharded, and that they give the original's
numbers when they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax import lax

import partita as pt
from checks import numbers, planner, runs_as_the_original
from partita.stablehlo.importer import import_stablehlo
from partita.stablehlo.rules import registry

BATCH = jax.ShapeDtypeStruct((6, 4, 4), jnp.float32)
"""Square, so that sizes do not tell dimensions apart."""


def call(target, result="tensor<6x4x4xf32>", attributes=""):
    """A program of one call, and its operation."""
    text = (
        f"module {{ func.func @main(%x: tensor<6x4x4xf32>) -> {result} {{ "
        f"%0 = stablehlo.custom_call @{target}(%x) {{{attributes}}} : "
        f"(tensor<6x4x4xf32>) -> {result} return %0 : {result} }} }}"
    )
    (op,) = import_stablehlo(text).operations
    return op


def parallel(op):
    """The sizes of the factors along which a call can be sharded."""
    return [f.size for f in op.rule.factors if f.kind != "blocked"]


def lu(x):
    return lax.linalg.lu(x)


def tridiagonal(x):
    return lax.linalg.tridiagonal_solve(x[..., 0], x[..., 1], x[..., 2], x)


LOWERED = [
    # platform, function, rules by target
    ("cpu", lax.linalg.cholesky, {"lapack_spotrf_ffi": "[i j k] -> [i l m], [i]"}),
    ("cpu", lu, {"lapack_sgetrf_ffi": "[i j k] -> [i l m], [i n], [i]"}),
    (
        "cpu",
        tridiagonal,
        {"lapack_sgtsv_ffi": "[i j], [i k], [i l], [i m n] -> [i o], [i p], [i q], [i r s], [i]"},
    ),
    ("tpu", lax.linalg.eigh, {"Eigh": "[i j k] -> [i l m], [i n]"}),
    ("tpu", lu, {"LuDecomposition": "[i j k] -> [i l m], [i n], [i o]"}),
    (
        "tpu",
        lax.linalg.qr,
        {
            "Qr": "[i j k] -> [i l m], [i n]",
            "ProductOfElementaryHouseholderReflectors": "[i j k], [i l] -> [i m n]",
        },
    ),
    (
        "cuda",
        lu,
        {
            "cusolver_getrf_ffi": "[i j k] -> [i l m], [i n], [i]",
            "cu_lu_pivots_to_permutation": "[i j] -> [i k]",
        },
    ),
    ("cuda", lax.linalg.eigh, {"cusolver_syevd_ffi": "[i j k] -> [i l m], [i n], [i]"}),
    ("cuda", tridiagonal, {"cusparse_gtsv2_ffi": "[i j], [i k], [i l], [i m n] -> [i o p]"}),
    (
        "cuda",
        lambda x: lax.linalg.symmetric_product(x, x),
        {"cusolver_syrk_ffi": "[i j k], [i l m], [], [] -> [i n o]"},
    ),
    *(
        (
            platform,
            lambda x: lax.approx_max_k(x, 2, reduction_dimension=1),
            {"ApproxTopK": "[i j k], [i l k], [], [] -> [i m k], [i n k]"},
        )
        for platform in ("cpu", "tpu", "cuda")
    ),
]


@pytest.mark.parametrize(("platform", "fn", "rules"), LOWERED)
def test_what_jax_lowers_to_is_sharded_along_batch_dimensions(platform, fn, rules):
    lowered = jax.jit(fn).trace(BATCH).lower(lowering_platforms=(platform,))
    calls = [op for op in import_stablehlo(lowered.as_text()).operations if op.target]
    assert {op.target: str(op.rule) for op in calls} == rules
    for op in calls:
        batch = 1 + (op.target == "ApproxTopK")
        assert len(parallel(op)) == batch
        assert {f.reason for f in op.rule.factors if f.kind == "blocked"} == {
            f"{op.target} requires replication of this dimension"
        }


@pytest.mark.parametrize(
    "target",
    [
        *("Cholesky", "CompactWyHelper", "InvertDiagBlocksLowerTriangular"),
        "InvertDiagBlocksUpperTriangular",
    ],
)
def test_matrices_are_not_split(target):
    op = call(target)
    assert str(op.rule) == "[i j k] -> [i l m]"
    assert parallel(op) == [6]


@pytest.mark.parametrize("target", ["mhlo.topk", "TopK"])
def test_the_largest_of_all_are_not_split_either(target):
    op = call(target, attributes="mhlo.attributes = {k = 4 : i64, largest = true}")
    assert str(op.rule) == "[i j k] -> [i j l]"
    assert parallel(op) == [6, 4]


def test_where_elements_are_moved_or_marked_every_dimension_is_split():
    for target in ("annotate_device_placement", "MoveToHost", "LayoutConstraint", "mhlo.erf"):
        assert parallel(call(target)) == [6, 4, 4]


def test_a_search_that_does_not_say_where_is_replicated():
    assert not call("PartialReduce").rule.known
    op = call("PartialReduce", attributes='backend_config = "{\\"reduction_dim\\": 1}"')
    assert str(op.rule) == "[i j k] -> [i l k]"


def test_calls_that_are_not_known_are_replicated():
    """Whatever a rule for propagation says that stands on them."""
    said = (
        "sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, k])->([i, j, k]) {i=6,j=4,k=4}, custom>"
    )
    for attributes in ("", said):
        op = call("mine", attributes=attributes)
        assert not op.rule.known
        assert not op.rule.factors
    assert not call("Eigh", "tensor<3x4x4xf32>").rule.known  # not what its name says


def test_one_that_says_how_many_batch_dimensions_it_has_is_split_along_these():
    said = 'mhlo.frontend_attributes = {num_batch_dims = "2"}'
    assert str(call("mine", attributes=said).rule) == "[i j k] -> [i j l]"


def test_a_rule_of_the_users_comes_first(monkeypatch):
    monkeypatch.setitem(registry.RULES, "Cholesky", "b i j -> b i j")
    assert parallel(call("Cholesky")) == [6, 4, 4]


# ------------------------------------------------------------------------------------------- run

X = numbers(4, 8, 8)
SYMMETRIC = X + X.mT
POSITIVE = X @ X.mT + 8 * np.eye(8, dtype=np.float32)

RUN = {
    "cholesky": (jnp.linalg.cholesky, POSITIVE),
    "eigh": (lambda x: jnp.abs(jnp.linalg.eigh(x)[1]), SYMMETRIC),
    "eigvals": (lambda x: jnp.sort(jnp.abs(jnp.linalg.eigvals(x))), X),
    "svd": (lambda x: jnp.linalg.svd(x)[1], X),
    "qr": (lambda x: jnp.linalg.qr(x), X),
    "lu": (lambda x: jsp.linalg.lu_factor(x), POSITIVE),
    "solve": (lambda x: jnp.linalg.solve(x, x[..., :2] + 1), POSITIVE),
    "triangular solve": (lambda x: lax.linalg.triangular_solve(x, x + 1, lower=True), POSITIVE),
    "schur": (lambda x: jnp.abs(lax.linalg.schur(x)[0]), SYMMETRIC),
    "hessenberg": (lax.linalg.hessenberg, X),
    "tridiagonal": (lax.linalg.tridiagonal, SYMMETRIC),
    "tridiagonal solve": (tridiagonal, POSITIVE),
    "fft": (lambda x: jnp.fft.fft2(x), X),
    "top_k": (lambda x: lax.top_k(x, 8), X),
    "approximate top_k": (lambda x: lax.approx_max_k(x, 2), X),
    "random bits": (lambda x: x + jax.random.normal(jax.random.key(0, impl="rbg"), x.shape), X),
}


def test_all_of_them_run_sharded_along_any_dimension():
    """Along the batch dimension there is no collective; the others are gathered."""

    def fn(xs):
        return {name: RUN[name][0](x) for name, x in xs.items()}

    values = {name: value for name, (_, value) in RUN.items()}
    plan = planner(mesh="x=2,y=2", hardware="cpu")
    for dims in ((0, 1), (1, 2), (2, 0)):
        tactics = [
            pt.ManualPartition({"xs*": dim}, axis) for dim, axis in zip(dims, "xy", strict=True)
        ]
        runs_as_the_original(plan(fn, values, tactics=tactics), values, tolerance=1e-3)
    batched = plan(fn, values, tactics=[pt.ManualPartition({"xs*": 0}, "x")])
    assert not batched.collectives
