"""Operations of ATen: what the table computes is what torch computes.

Those that are not in the table torch takes apart when a module is captured: `TAKEN_APART`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from partita.torch.capture import capture
from partita.torch.operations import OPERATIONS
from partita.torch.step import forward

A = torch.ops.aten


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def places(most, *shape):
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(2))


X, Y, POSITIVE = numbers(4, 6), numbers(4, 6, seed=1), numbers(4, 6).abs() + 0.5
CUBE, IMAGES = numbers(2, 4, 6), numbers(2, 4, 8, 8)
MASK, INTEGERS = X > 0, places(9, 4, 6)

CASES = [
    *((getattr(A, name).default, (X,)) for name in (
        "abs ceil cos cosh erf exp expm1 floor neg relu sigmoid sign silu sin sinh square tan tanh "
        "trunc isnan isinf gelu elu leaky_relu softplus hardsigmoid hardswish mish atan asinh"
    ).split()),
    *((getattr(A, name).default, (POSITIVE,)) for name in (
        "log log1p log2 log10 sqrt rsqrt reciprocal"
    ).split()),
    *((getattr(A, name).Tensor, (X, Y)) for name in (
        "add sub mul div eq ne lt le gt ge fmod remainder"
    ).split()),
    (A.add.Tensor, (X, Y), {"alpha": 3}),
    (A.rsub.Scalar, (X, 2)),
    (A.div.Tensor_mode, (X, Y), {"rounding_mode": "floor"}),
    (A.div.Tensor_mode, (INTEGERS, 4), {"rounding_mode": "trunc"}),
    (A.pow.Tensor_Scalar, (X, 3)),
    (A.pow.Tensor_Tensor, (POSITIVE, Y)),
    (A.pow.Scalar, (2.0, X)),
    (A.maximum.default, (X, Y)),
    (A.atan2.default, (X, Y)),
    (A.where.self, (MASK, X, Y)),
    (A.masked_fill.Scalar, (X, MASK, -1.5)),
    (A.clamp.default, (X, -0.5, 0.5)),
    (A.lerp.Scalar, (X, Y, 0.3)),
    (A.addcmul.default, (X, X, Y), {"value": 2}),
    (A.bitwise_and.Tensor, (INTEGERS, places(7, 4, 6))),
    (A.logical_xor.default, (MASK, Y > 0)),
    (A.view.default, (CUBE, [8, 6])),
    (A.permute.default, (CUBE, [2, 0, 1])),
    (A.expand.default, (numbers(1, 6), [4, -1])),
    (A.slice.Tensor, (X, 1, 1, 2**63 - 1, 2)),
    (A.slice.Tensor, (X, 0, -2)),
    (A.select.int, (X, 1, -1)),
    (A.cat.default, ([X, Y], 1)),
    (A.stack.default, ([X, Y], -1)),
    (A.split.Tensor, (X, 4, 1)),
    (A.split_with_sizes.default, (X, [1, 5], 1)),
    (A.unbind.int, (X, 0)),
    (A.flip.default, (X, [0, 1])),
    (A.roll.default, (X, [1, 2], [0, 1])),
    (A.repeat.default, (X, [2, 1, 3])),
    (A.constant_pad_nd.default, (X, [1, 2, 0, -1], 7.0)),
    (A.tril.default, (X, 1)),
    (A.squeeze.dims, (numbers(1, 4, 1), [0, 1])),
    (A.diagonal.default, (X, 1)),
    (A.pixel_shuffle.default, (IMAGES, 2)),
    (A.select_scatter.default, (X, numbers(4), 1, 2)),
    (A.slice_scatter.default, (X, numbers(2, 6), 0, 1, 3)),
    (A.sum.default, (X,)),
    (A.sum.dim_IntList, (CUBE, [0, -1], True)),
    (A.mean.dim, (CUBE, [1])),
    (A.amax.default, (X, [1])),
    (A.max.dim, (X, 1)),
    (A.min.default, (X,)),
    (A.any.dim, (MASK, 1)),
    (A.prod.dim_int, (X, 1)),
    (A.var.correction, (X, [1]), {"correction": 1}),
    (A.var_mean.correction, (X, [0]), {"correction": 0}),
    (A.argmax.default, (X, 1)),
    (A.cumsum.default, (X, 1)),
    (A.logsumexp.default, (X, [1])),
    (A.linalg_vector_norm.default, (X, 2, [1])),
    (A._softmax.default, (X, 1, False)),
    (A.log_softmax.int, (X, -1)),
    (A.topk.default, (X, 3)),
    (A.topk.default, (X, 2, 0, False)),
    (A.sort.default, (X, 1, True)),
    (A.mm.default, (X, numbers(6, 3))),
    (A.bmm.default, (CUBE, numbers(2, 6, 3))),
    (A.linear.default, (CUBE, numbers(3, 6), numbers(3))),
    (A.addmm.default, (numbers(3), X, numbers(6, 3)), {"beta": 0.5, "alpha": 2}),
    (A.einsum.default, ("bij,bkj->bik", [CUBE, CUBE])),
    (A.embedding.default, (X, places(4, 2, 3))),
    (A.index.Tensor, (X, [None, places(6, 5)])),
    (A.index_select.default, (X, 1, places(6, 3))),
    (A.gather.default, (X, 1, places(6, 4, 2))),
    (A.scatter.src, (X, 1, torch.arange(6).expand(4, 6).flip(1), Y)),
    (A.scatter.value, (X, 1, places(6, 4, 1), 5.0)),
    (A.scatter_add.default, (X, 0, places(4, 3, 6), Y)),
    (A.index_put.default, (X, [places(4, 3)], numbers(3, 6), True)),
    (A.index_add.default, (X, 0, places(4, 3), numbers(3, 6))),
    (A.one_hot.default, (places(5, 4), 5)),
    (A.layer_norm.default, (CUBE, [6], numbers(6), numbers(6))),
    (A.rms_norm.default, (CUBE, [6], numbers(6), 1e-6)),
    (A.group_norm.default, (IMAGES, 2, numbers(4), numbers(4))),
    (A._native_batch_norm_legit_no_training.default,
     (IMAGES, numbers(4), numbers(4), numbers(4), POSITIVE[0, :4], 0.1, 1e-5)),
    (A.scaled_dot_product_attention.default, (IMAGES, IMAGES, IMAGES, None, 0.0, True)),
    (A.scaled_dot_product_attention.default,
     (IMAGES, IMAGES[:, :2], IMAGES[:, :2]), {"enable_gqa": True, "scale": 0.1}),
    (A.convolution.default,
     (IMAGES, numbers(6, 2, 3, 3), numbers(6), [2, 2], [1, 1], [1, 1], False, [0, 0], 2)),
    (A.convolution.default,
     (IMAGES, numbers(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 2)),
    (A.max_pool2d_with_indices.default, (IMAGES, [2, 2], [2, 2])),
    (A.avg_pool2d.default, (IMAGES, [2, 2], [2, 2], [1, 1], False, False)),
    (A._adaptive_avg_pool2d.default, (IMAGES, [2, 4])),
    (A.upsample_nearest2d.default, (IMAGES, [16, 16])),
    (A.cross_entropy_loss.default, (X, torch.tensor([1, -100, 3, 5]))),
    (A.cross_entropy_loss.default, (CUBE, places(4, 2, 6))),
    (A.mse_loss.default, (X, Y)),
    (A.view_as_complex.default, (numbers(4, 2),)),
    (A.arange.start_step, (1, 9, 2)),
    (A.full.default, ([2, 3], 1.5)),
]  # fmt: skip

TAKEN_APART = [
    *((getattr(A, name).default, (X,)) for name in (
        "square sgn isfinite all zeros_like ones_like alias_copy conj_physical contiguous positive "
        "real"
    ).split()),
    (A.imag.default, (torch.complex(X, Y),)),
    (A.to.dtype, (X, torch.int32)),
    (A.to.device, (X, torch.device("cpu"), torch.float32)),
    (A.to.dtype_layout, (X,), {"dtype": torch.float32}),
    (A.clamp_max.default, (X, 0.1)),
    (A.clamp_min.Tensor, (X, Y)),
    (A.where.ScalarSelf, (MASK, 1.0, X)),
    (A.where.Scalar, (MASK, 1.0, 2.0)),
    (A.floor_divide.Scalar, (INTEGERS, 4)),
    (A._unsafe_view.default, (CUBE, [8, 6])),
    (A._reshape_alias.default, (CUBE, [8, 6], [6, 1])),
    (A.unsqueeze_copy.default, (X, 1)),
    (A.squeeze_copy.dims, (numbers(1, 4, 1), [0, 2])),
    (A.expand_copy.default, (numbers(1, 6), [4, -1])),
    (A.diagonal_copy.default, (X, 1)),
    (A.split_with_sizes_copy.default, (X, [1, 5], 1)),
    (A.all.dims, (MASK, [0, 1])),
    (A.norm.Scalar, (X, 3)),
    (A._unsafe_index_put.default, (X, [places(4, 3)], numbers(3, 6), True)),
    (A.nll_loss2d_forward.default,
     (IMAGES, places(4, 2, 8, 8), None, 1, -100)),
    (A.upsample_nearest2d.vec, (IMAGES, [16, 16], None)),
    (A.eye.default, (3,)),
    (A.zeros.default, ([2, 3],)),
    (A.new_zeros.default, (X, [2, 3])),
    (A.new_ones.default, (X, [2, 3])),
    (A.fill.Tensor, (X, torch.tensor(2.5))),
    (A.rsub.Tensor, (X, Y), {"alpha": 2}),
    (A.floor_divide.default, (INTEGERS, 4)),
    (A.true_divide.Tensor, (X, Y)),
    (A.clamp_min.default, (X, 0.1)),
    (A.clamp_max.Tensor, (X, Y)),
    (A.where.ScalarOther, (MASK, X, 2.0)),
    (A.masked_fill.Tensor, (X, MASK, torch.tensor(2.0))),
    (A.lerp.Tensor, (X, Y, POSITIVE)),
    (A.addcdiv.default, (X, X, POSITIVE), {"value": 2}),
    (A.log_sigmoid_forward.default, (X,)),
    (A.transpose.int, (CUBE, 0, -1)),
    (A.t.default, (X,)),
    (A.reshape.default, (CUBE, [8, 6])),
    (A.squeeze.default, (numbers(1, 4, 1),)),
    (A.squeeze.dim, (numbers(1, 4, 1), -1)),
    (A.concat.default, ([X, Y], 1)),
    (A.chunk.default, (X, 4, 1)),
    (A.split.sizes, (X, [2, 4], 1)),
    (A.flatten.using_ints, (CUBE, 1)),
    (A.repeat_interleave.self_int, (X, 2, 1)),
    (A.triu.default, (X, -1)),
    (A.all.dim, (MASK, 1)),
    (A.std.correction, (X, [1]), {"correction": 1}),
    (A.norm.ScalarOpt_dim, (X, 2, [1])),
    (A._safe_softmax.default, (X, 1)),
    (A.mv.default, (X, numbers(6))),
    (A.dot.default, (X[0], Y[0])),
    (A.inner.default, (X, Y)),
    (A.outer.default, (X[0], Y[1])),
    (A.baddbmm.default, (numbers(2, 4, 3), CUBE, numbers(2, 6, 3)), {"beta": 0.5, "alpha": 2}),
    (A.index_copy.default, (X, 1, torch.tensor([4, 0]), numbers(4, 2))),
    (A._unsafe_index.Tensor, (X, [None, places(6, 5)])),
    (A.nll_loss_forward.default, (X, torch.tensor([1, -100, 3, 5]), None, 1, -100)),
    (A._fused_rms_norm.default, (CUBE, [6], numbers(6), 1e-6)),
    (A.upsample_nearest1d.default, (CUBE, [12])),
    (A.upsample_nearest3d.default, (numbers(1, 2, 2, 2, 2), [4, 4, 4])),
    (A.avg_pool1d.default, (CUBE, [2])),
    (A.adaptive_avg_pool1d.default, (CUBE, [3])),
    (A.max_pool2d.default, (IMAGES, [2, 2])),
    (A.arange.start, (1, 9)),
    (A.arange.default, (9,)),
    (A.linspace.default, (0.0, 1.0, 5)),
    (A.eye.m, (3, 4)),
    (A.ones.default, ([2, 3],)),
    (A.fill.Scalar, (X, 2.5)),
    (A.new_full.default, (X, [2, 3], 2.5)),
]  # fmt: skip
FIRST_ONLY = {
    "log_sigmoid_forward",
    "max_pool2d_with_indices",
    "_native_batch_norm_legit_no_training",
    "_fused_rms_norm",
}
"""Nobody but a backward of torch reads the others."""


def as_array(argument):
    if isinstance(argument, torch.Tensor):
        return jnp.asarray(argument.numpy())
    if isinstance(argument, list):
        return [as_array(each) for each in argument]
    return argument


def label(case):
    return str(case[0]).removeprefix("aten.")


class Called(torch.nn.Module):
    """A module that calls one operation; its inputs are the tensors among the arguments."""

    def __init__(self, overload, args, kwargs):
        super().__init__()
        self.overload, self.kwargs = overload, kwargs
        self.leaves, self.structure = pytree.tree_flatten(args)

    def tensors(self):
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors):
        left = iter(tensors)
        leaves = [next(left) if isinstance(e, torch.Tensor) else e for e in self.leaves]
        return self.overload(*pytree.tree_unflatten(leaves, self.structure), **self.kwargs)


def captured(overload, args, kwargs):
    module = Called(overload, args, kwargs)
    tensors = module.tensors() or [torch.zeros(1)]
    step = forward(capture(module, tensors, {}))
    given = [jnp.asarray(t.numpy()).astype(s.dtype) for t, s in zip(tensors, step.args[4])]  # noqa: B905
    made, _ = step.fn((), (), (), (), tuple(given))
    return made if len(made) > 1 else made[0]


@pytest.mark.parametrize("case", [*CASES, *TAKEN_APART], ids=label)
def test_an_operation_is_that_of_torch(case):
    overload, args, kwargs = (*case, {})[:3]
    theirs = overload(*args, **kwargs)
    with jax.default_matmul_precision("highest"):
        if (function := OPERATIONS.get(str(overload))) is not None:
            ours = function(*map(as_array, args), **kwargs)
        else:
            ours = captured(overload, args, kwargs)
    if isinstance(theirs, torch.Tensor):
        theirs, ours = [theirs], [ours[0] if isinstance(ours, tuple) else ours]
    if overload.overloadpacket.__name__ in FIRST_ONLY:
        theirs, ours = theirs[:1], ours[:1]
    for a, b in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(np.asarray(b), a.numpy(), rtol=2e-5, atol=2e-5)


TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.uint8, torch.bool]
PAIRS = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "gt": torch.gt,
    "maximum": torch.maximum,
    "pow": lambda a, b: torch.pow(a.abs() + 1 if a.is_floating_point() else a, 2),
}


class Pair(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, a, b):
        return self.function(a, b)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.sampled_from(TYPES), st.sampled_from(TYPES), st.sampled_from(sorted(PAIRS)), st.booleans()
)
def test_types_are_promoted_as_torch_does(first, second, name, scalar):
    a = (numbers(3, 4) * 3).abs().to(first)
    b = (numbers(*(() if scalar else (3, 4)), seed=1) * 3).abs().add(1).to(second)
    theirs = PAIRS[name](a, b)
    step = forward(capture(Pair(PAIRS[name]), (a, b), {}))
    given = [jnp.asarray(t.float().numpy()).astype(s.dtype) for t, s in zip((a, b), step.args[4])]  # noqa: B905
    (ours,), _ = step.fn((), (), (), (), tuple(given))
    said = str(theirs.dtype).removeprefix("torch.").replace("int64", "int32")  # planned so
    assert str(ours.dtype).removesuffix("_") == said
    scale = 2e-2 if theirs.dtype in (torch.bfloat16, torch.float16) else 1e-5
    np.testing.assert_allclose(np.asarray(ours, np.float32), theirs.float().numpy(), rtol=scale)
