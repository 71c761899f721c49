"""The parts of a `torch.export.save` file that are read, as types: what is not in them is refused.

A `.pt2` file is a zip archive. Its program is JSON, in the schema of `torch._export.serde.schema`.
torch's reader evaluates some strings of it, imports modules that it names, and writes the names of
nodes into Python source. So only fields whose every value is harmless are in these types: sizes are
integers and never expressions, names are identifiers, operators are those of ATen.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

Identifier = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,500}\Z")]
"""A name that becomes one in Python source."""
Path = Annotated[str, Meta(pattern=r"\A[\w.:@\[\] -]{0,1000}\Z")]
"""The name of a parameter or a module; nothing that Python could run."""
Target = Annotated[str, Meta(pattern=r"\A(torch|_operator|math|#)[\w.:]{0,300}\Z")]
Device = Annotated[str, Meta(pattern=r"\A[a-z]{1,20}\Z")]
Record = Annotated[str, Meta(pattern=r"\A\w{1,200}\Z")]
"""The name of a part of the archive."""
Float = float | Annotated[str, Meta(pattern=r"\A(-?Infinity|NaN)\Z")]
Nothing = Annotated[dict[str, Any], Meta(max_length=0)]


class _Part(msgspec.Struct, frozen=True):
    """An object of which other fields are ignored: nothing hands them on."""


class _Union(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object with one field, which says what it is; others are an error."""


class Name(_Part, frozen=True):
    """A tensor, by the name of the node that makes it."""

    name: Identifier


class Integer(_Union, frozen=True):
    """A size; not a symbol, and not an expression."""

    as_int: int


class DeviceOf(_Part, frozen=True):
    """Device that a tensor is on."""

    type: Device
    index: int | None = None


class TensorMeta(_Part, frozen=True):
    """A tensor without its numbers."""

    dtype: int
    sizes: list[Integer]
    requires_grad: bool
    device: DeviceOf
    strides: list[Integer]
    storage_offset: Integer
    layout: int


class OptionalTensor(_Union, frozen=True):
    """A tensor, or none."""

    as_tensor: Name | UnsetType = UNSET
    as_none: bool | UnsetType = UNSET


class Complex(_Part, frozen=True):
    """A complex number."""

    real: Float
    imag: Float


class Argument(_Union, frozen=True):
    """Argument or result of an operation."""

    as_none: bool | UnsetType = UNSET
    as_tensor: Name | UnsetType = UNSET
    as_tensors: list[Name] | UnsetType = UNSET
    as_optional_tensor: OptionalTensor | UnsetType = UNSET
    as_optional_tensors: list[OptionalTensor] | UnsetType = UNSET
    as_int: int | UnsetType = UNSET
    as_ints: list[int] | UnsetType = UNSET
    as_sym_int: Integer | UnsetType = UNSET
    as_sym_ints: list[Integer] | UnsetType = UNSET
    as_float: Float | UnsetType = UNSET
    as_floats: list[Float] | UnsetType = UNSET
    as_complex: Complex | UnsetType = UNSET
    as_bool: bool | UnsetType = UNSET
    as_bools: list[bool] | UnsetType = UNSET
    as_string: str | UnsetType = UNSET
    as_strings: list[str] | UnsetType = UNSET
    as_scalar_type: int | UnsetType = UNSET
    as_memory_format: int | UnsetType = UNSET
    as_layout: int | UnsetType = UNSET
    as_device: DeviceOf | UnsetType = UNSET
    as_graph: GraphArgument | UnsetType = UNSET


class NamedArgument(_Part, frozen=True):
    """An argument by the name that the operator has for it."""

    name: Annotated[str, Meta(pattern=r"\A\w{0,200}\Z")]
    arg: Argument
    kind: int | None = None


class Metadata(_Part, frozen=True):
    """Source of an operation, as torch writes it."""

    stack_trace: str = ""
    nn_module_stack: str = ""


class Node(_Part, frozen=True):
    """An operation."""

    target: Target
    inputs: list[NamedArgument]
    outputs: list[Argument]
    metadata: Metadata
    is_hop_single_tensor_return: bool | None = None
    name: Identifier | None = None


class Graph(_Part, frozen=True):
    """Operations in order."""

    inputs: list[Argument]
    outputs: list[Argument]
    nodes: list[Node]
    tensor_values: dict[Identifier, TensorMeta]
    sym_int_values: Nothing
    sym_bool_values: Nothing
    is_single_tensor_return: bool = False
    custom_obj_values: Nothing = {}
    sym_float_values: Nothing = {}


class GraphArgument(_Part, frozen=True):
    """A branch of the program, or what is in a context such as `torch.no_grad`."""

    name: Identifier
    graph: Graph


class Constant(_Union, frozen=True):
    """An argument that is no tensor."""

    as_none: bool | UnsetType = UNSET
    as_int: int | UnsetType = UNSET
    as_float: Float | UnsetType = UNSET
    as_string: str | UnsetType = UNSET
    as_bool: bool | UnsetType = UNSET


class UserInput(_Part, frozen=True):
    """An argument of the module, or what it returns."""

    arg: Argument


class ParameterInput(_Part, frozen=True):
    """A parameter, or a new value of one."""

    arg: Name
    parameter_name: Path


class BufferInput(_Part, frozen=True):
    """A buffer."""

    arg: Name
    buffer_name: Path
    persistent: bool


class BufferMutation(_Part, frozen=True):
    """A new value of a buffer."""

    arg: Name
    buffer_name: Path


class InputMutation(_Part, frozen=True):
    """A new value of an argument."""

    arg: Name
    user_input_name: Path


class TensorConstant(_Part, frozen=True):
    """A tensor that is part of the program."""

    arg: Name
    tensor_constant_name: Path


class ConstantInput(_Part, frozen=True):
    """An argument of the module that is no tensor."""

    name: Identifier
    value: Constant


class LossOutput(_Part, frozen=True):
    """The loss that the program returns."""

    arg: Name


class InputSpec(_Union, frozen=True):
    """Kind of an input of the graph, with its name."""

    user_input: UserInput | UnsetType = UNSET
    parameter: ParameterInput | UnsetType = UNSET
    buffer: BufferInput | UnsetType = UNSET
    tensor_constant: TensorConstant | UnsetType = UNSET
    constant_input: ConstantInput | UnsetType = UNSET


class OutputSpec(_Union, frozen=True):
    """Kind of an output of the graph, with its name."""

    user_output: UserInput | UnsetType = UNSET
    loss_output: LossOutput | UnsetType = UNSET
    buffer_mutation: BufferMutation | UnsetType = UNSET
    parameter_mutation: ParameterInput | UnsetType = UNSET
    user_input_mutation: InputMutation | UnsetType = UNSET


class Signature(_Part, frozen=True):
    """Kinds of the inputs and outputs of the graph."""

    input_specs: list[InputSpec]
    output_specs: list[OutputSpec]


class CallSignature(_Part, frozen=True):
    """Tree structures of arguments and results, each as JSON in a string."""

    in_spec: str
    out_spec: str
    forward_arg_names: list[Identifier] | None = None


class Call(_Part, frozen=True):
    """A module that is called; the first entry is the outermost."""

    fqn: str
    signature: CallSignature | None = None


class GraphModule(_Part, frozen=True):
    """The graph, and how it is called."""

    graph: Graph
    signature: Signature
    module_call_graph: Annotated[list[Call], Meta(min_length=1)]


class Version(_Part, frozen=True):
    """Version of the schema."""

    major: int
    minor: int


class Program(_Part, frozen=True):
    """The program of the file."""

    graph_module: GraphModule
    schema_version: Version
    verifiers: list[Annotated[str, Meta(pattern=r"\A[A-Z]{0,40}\Z")]] = []
    torch_version: str = ""


class Payload(_Part, frozen=True):
    """A tensor of the file, by where its bytes are."""

    path_name: Record
    use_pickle: bool
    tensor_meta: TensorMeta | None = None


class Payloads(_Part, frozen=True):
    """The constants of a program, by name."""

    config: dict[str, Payload]


class Tree(_Part, frozen=True):
    """Tree structure of values: the name of a type, its context, and its children."""

    type: str | None
    context: str | None
    children_spec: list[Tree]
