"""The time of one kernel of a compiled program, where its compiler estimates none.

A kernel that streams through memory takes as long as its bytes. A product or convolution takes as
long as its bytes or its FLOPs, whichever is longer. Each kernel adds its launch time. The bytes are
read from the program's text: for a sliced operand only the slice, for a value updated in place only
the update.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from partita.cost import Hardware
from partita.program.ir import TensorType
from partita.verify.hlo import Computation, HloInstruction, HloModule

NOTHING = frozenset(
    """parameter constant get-tuple-element tuple bitcast after-all partition-id replica-id
    opt-barrier add-dependency""".split()
)
"""Instructions that run no kernel."""
_CUTTING = ("dynamic-slice", "slice", "gather")
_RENAMING = ("bitcast", "reshape")
_PRODUCT = ("__cublas$gemm", "__cublas$lt$matmul", "__triton_gemm")
_WINDOW = re.compile(r"window=\{size=([\dx]+)")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_GROUPS = re.compile(r"feature_group_count=(\d+)")


class Kernels:
    """The kernels of a compiled program on one device type."""

    def __init__(self, module: HloModule, hardware: Hardware) -> None:
        self._module = module
        self._hardware = hardware
        self._bandwidth = hardware.memory_bandwidth.value * hardware.efficiency.memory.value

    def seconds(self, computation: Computation, kernel: HloInstruction) -> float:
        """Time of one instruction; nothing if it runs no kernel."""
        if kernel.opcode in NOTHING:
            return 0.0
        streaming = self.bytes(computation, kernel) / self._bandwidth
        multiplying = self._multiplying(computation, kernel)
        return self._start(kernel) + max(streaming, multiplying)

    def _start(self, kernel: HloInstruction) -> float:
        hardware = self._hardware
        if hardware.products is not None and kernel.target.startswith(_PRODUCT):
            return hardware.products.start.value
        return hardware.launch.value if hardware.launch is not None else 0.0

    def bytes(self, computation: Computation, kernel: HloInstruction) -> float:
        """Bytes that an instruction reads and writes."""
        inner = self._module.fused(kernel)
        if inner is None:
            if kernel.opcode in _CUTTING:
                return 2.0 * kernel.bytes
            if kernel.opcode == "dynamic-update-slice":
                return 2.0 * _size(computation, kernel.operands[1])
            operands = sum(_size(computation, name) for name in kernel.operands)
            return float(operands + _made(kernel))
        parameters = {i.text: i for i in inner if i.opcode == "parameter"}
        read = (
            min(_read(inner, parameters[str(n)].name), _size(computation, name))
            for n, name in enumerate(kernel.operands)
            if str(n) in parameters
        )
        return float(sum(read) + sum(_written(inner)))

    def _multiplying(self, computation: Computation, kernel: HloInstruction) -> float:
        """Seconds that an instruction takes on the matrix units."""
        target = kernel.target
        if target.startswith(_PRODUCT):
            return self._of_product(computation, kernel)
        if target.startswith("__cudnn$conv"):
            return self._of_convolution(computation, kernel, target)
        return 0.0

    def _of_product(self, computation: Computation, kernel: HloInstruction) -> float:
        left, right = (_array(computation, name) for name in kernel.operands[:2])
        dims = _backend_config(kernel)["gemm_backend_config"]["dot_dimension_numbers"]
        batch = math.prod(left.shape[int(d)] for d in dims["lhs_batch_dimensions"])
        k = math.prod(left.shape[int(d)] for d in dims["lhs_contracting_dimensions"])
        m, n = (side.elements // max(batch * k, 1) for side in (left, right))
        stated = self._hardware.products
        ramp = stated.ramp.value if stated is not None else 0.0
        return 2.0 * batch * m * n * (k + ramp) / self._hardware.reached(left.dtype)

    def _of_convolution(
        self, computation: Computation, kernel: HloInstruction, target: str
    ) -> float:
        window, labels = _WINDOW.search(kernel.attributes), _LABELS.search(kernel.attributes)
        if labels is None:
            return 0.0
        arrays = [_array(computation, name) for name in kernel.operands[:2]]
        made = kernel.arrays[0]
        if target.endswith("BackwardFilter"):
            weights, image = made, arrays[1]
        elif target.endswith("BackwardInput"):
            weights, image = arrays[1], arrays[0]
        else:
            weights, image = arrays[1], made
        taps = math.prod(map(int, window[1].split("x"))) if window else 1
        channels = weights.shape[labels[2].index("i")]
        flops = 2.0 * image.elements * taps * channels
        return flops / self._hardware.reached(arrays[0].dtype, convolution=True)


def _backend_config(kernel: HloInstruction) -> dict[str, Any]:
    start = kernel.attributes.index("backend_config=") + len("backend_config=")
    found, _ = json.JSONDecoder().raw_decode(kernel.attributes[start:])
    return dict(found)


def _array(computation: Computation, name: str) -> TensorType:
    return computation.instructions[name].arrays[0]


def _size(computation: Computation, name: str) -> int:
    found = computation.instructions.get(name)
    return found.bytes if found is not None else 0


def _made(kernel: HloInstruction) -> int:
    """Returns bytes that an instruction writes, without the workspace of a library call."""
    if kernel.opcode == "custom-call" and len(kernel.arrays) == 2:
        return kernel.arrays[0].bytes
    return kernel.bytes


def _read(inner: Computation, name: str) -> float:
    """Bytes that a fusion reads of one of its parameters."""
    total, names = 0.0, {name}
    for user in inner:  # what reads an instruction comes after it
        read = names.intersection(user.operands)
        if not read:
            continue
        if user.opcode in _CUTTING and user.operands[0] in read:
            total += user.bytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] in read:
            continue  # it is updated in place
        elif user.opcode in _RENAMING and not user.root:
            names.add(user.name)
        else:
            return math.inf
    return total


def _written(inner: Computation) -> Iterator[float]:
    """Bytes of everything that a fusion writes."""
    root = inner.root
    if root is None:
        return
    for name in root.operands if root.opcode == "tuple" else [root.name]:
        made = inner.instructions[name]
        while made.opcode in _RENAMING and made.operands[0] in inner.instructions:
            made = inner.instructions[made.operands[0]]
        if made.opcode == "dynamic-update-slice":
            yield _size(inner, made.operands[1])
        else:
            yield made.bytes
