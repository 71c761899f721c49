"""Files of `torch.export.save` that are made to do harm: nothing in them runs."""

import contextlib
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Shard

import partita as pt
import partita.torch as ptt
from partita.torch import archive
from partita.torch.capture import PATH, read_exported

SPLIT = {
    "mesh": "data=2",
    "hardware": "h100",
    "tactics": [pt.ManualPartition({"up.weight": 0}, axis="data")],
}


class Scaled(torch.nn.Module):
    """Has a parameter, both kinds of buffers, a constant, and nested results."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 8)
        self.scale = torch.arange(8.0)
        self.register_buffer("shift", torch.ones(8))
        self.register_buffer("mask", torch.ones(8), persistent=False)

    def forward(self, x, factor=2.0):
        y = self.up(x) * self.scale + self.shift * self.mask
        return {"y": [y * factor], "sum": x.sum()}


class Payload:
    """What, unpickled, writes a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (exec, (code(self.file),))


def code(file):
    return f"open({str(file)!r}, 'w').close()"


def saved(module, path, *args):
    torch.export.save(torch.export.export(module, args), path)
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def written(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "scaled.pt2"
    return saved(Scaled(), path, torch.zeros(2, 4))


@pytest.fixture
def harm(tmp_path):
    """The file that payloads write."""
    return tmp_path / "harm"


def changed(members, change, file="scaled/models/model.json"):
    """The members of an archive, after a function has changed the JSON of one in place."""
    found = json.loads(members[file])
    change(found)
    return members | {file: json.dumps(found)}


def first_node(found):
    return found["graph_module"]["graph"]["nodes"][0]


def call(found):
    return found["graph_module"]["module_call_graph"][0]["signature"]


# ------------------------------------------------------------------- what is read as it was


def test_a_file_is_read_as_torch_reads_it(members, tmp_path, monkeypatch):
    path = written(tmp_path / "scaled.pt2", members)
    ours = read_exported(path)
    monkeypatch.setattr(archive, "load", torch.export.load)
    theirs = read_exported(path)
    assert [str(node) for node in ours.nodes] == [str(node) for node in theirs.nodes]
    assert [str(node.args) for node in ours.nodes] == [str(node.args) for node in theirs.nodes]
    for field in ("parameters", "buffers", "inputs", "paths", "tied"):
        assert getattr(ours, field) == getattr(theirs, field)
    assert list(ours.outputs) == list(theirs.outputs) == ["output['y'][0]", "output['sum']"]
    (own,), (other,) = ours.constants.values(), theirs.constants.values()
    np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("context", [torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_what_is_in_a_context_is_read(tmp_path, context):
    class Inside(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(4, 8)

        def forward(self, x):
            with context():
                return self.up(x)

    saved(Inside(), tmp_path / "a.pt2", torch.zeros(2, 4))
    plan = ptt.read(tmp_path / "a.pt2", **SPLIT)
    assert plan.placements["up.weight"] == (Shard(0),)


def test_a_member_of_a_batch_is_read(tmp_path):
    class Mapped(torch.nn.Module):
        def forward(self, x):
            return torch.vmap(torch.sin)(x)

    saved(Mapped(), tmp_path / "a.pt2", torch.zeros(2, 4))
    assert "sin" in str(read_exported(tmp_path / "a.pt2").nodes)


# -------------------------------------------------------------------- pickles and libraries


def pickled(file):
    """What `torch.save` writes, with a payload inside."""
    stream = io.BytesIO()
    torch.save((Payload(file),), stream)
    return stream.getvalue()


def all_pickled(members, file):
    """Pickles wherever torch reads any: samples, and weights by name."""

    def change(found):
        for each in found["config"].values():
            each["use_pickle"] = True

    config = "scaled/data/weights/model_weights_config.json"
    changes = {"scaled/data/sample_inputs/model.pt": pickled(file)}
    weights = {f"scaled/data/weights/weight_{n}": pickled(file) for n in range(3)}
    return changed(members, change, config) | changes | weights


def test_samples_and_weights_are_not_unpickled(members, tmp_path, harm):
    path = written(tmp_path / "evil.pt2", all_pickled(members, harm))
    plan = ptt.read(path, **SPLIT)
    assert plan.placements["up.weight"] == (Shard(0),)
    assert not harm.exists()
    with pytest.raises(Exception):  # noqa: B017 - whatever it says, it has run the payload
        torch.export.load(path)
    assert harm.exists()


def test_constants_that_are_pickled_are_refused(members, tmp_path, harm):
    def change(found):
        for each in found["config"].values():
            each["use_pickle"] = True

    config = "scaled/data/constants/model_constants_config.json"
    evil = changed(members, change, config) | {"scaled/data/constants/tensor_0": pickled(harm)}
    with pytest.raises(pt.FileError, match=r"constant 'scale' as a pickle, .* save the file again"):
        ptt.read(written(tmp_path / "evil.pt2", evil), **SPLIT)
    assert not harm.exists()


def test_shared_libraries_are_not_loaded(members, tmp_path):
    evil = members | {"scaled/data/aotinductor/model/a.so": b"\x7fELF", "scaled/extra/a": b"\xff"}
    assert ptt.read(written(tmp_path / "evil.pt2", evil), **SPLIT).placements


@pytest.mark.parametrize("what", [pickle.dumps(Payload("harm")), pickled("harm")])
def test_a_pickle_is_no_such_file(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.pt2"
    path.write_bytes(what)
    with pytest.raises(pt.FileError, match=r"no file that torch\.export\.save has written"):
        ptt.read(path, **SPLIT)
    assert not (tmp_path / "harm").exists()


# -------------------------------------------------------------------- code in the program


def size_is(expression):
    def change(found):
        values = found["graph_module"]["graph"]["tensor_values"]
        values["x"]["sizes"][0] = {"as_expr": {"expr_str": expression, "hint": {"as_int": 2}}}

    return change


def target_is(target, *args):
    def change(found):
        node = first_node(found)
        node["target"] = target
        if args:
            node["inputs"] = [{"name": "", "arg": {"as_string": arg}, "kind": 1} for arg in args]

    return change


def name_is(name):
    def change(found):
        text = json.dumps(found).replace('"x"', json.dumps(name))
        found.clear()
        found.update(json.loads(text))

    return change


def nested_in(tree):
    def change(found):
        call(found)["out_spec"] = json.dumps([1, tree])

    return change


def enum_of(module):
    context = json.dumps([{"__enum__": True, "fqn": f"{module}:A", "name": "a"}])
    return {"type": "builtins.dict", "context": context, "children_spec": []}


def default_of(module):
    context = {"default_factory_module": module, "default_factory_name": "a", "dict_context": []}
    return {"type": "collections.defaultdict", "context": context, "children_spec": []}


CODE = "__import__('os').system('touch harm')"
CHANGES = {
    "an expression as a size": (size_is(CODE), "not fixed; export it without dynamic_shapes="),
    "a function of Python": (target_is("torch.os.system", "touch harm"), "no operator of ATen"),
    "a function of torch": (target_is("torch.load", "a.pt"), "no operator of ATen"),
    "a method": (target_is("torch.ops.aten.__class__.mro", "a"), "no operator of ATen"),
    "an operator of others": (target_is("torch.ops.debugprims.load_tensor.default"), "no operator"),
    "one that reads files": (target_is("torch.ops.aten.from_file.default", "a"), "not compute"),
    "one that writes files": (target_is("torch.ops.aten.save.default", "a"), "no|not compute"),
    "one of strings": (target_is("torch.ops.aten.lower.default", "A"), "not compute tensors"),
    "another module": (target_is("os.system", "touch harm"), "matching regex"),
    "an extension": (target_is("#os:system", "touch harm"), "no operator of ATen"),
    "a default value": (name_is(f"x={CODE}"), "matching regex"),
    "a line": (name_is(f"x\n{CODE}"), "matching regex"),
    "a module in an enum": (nested_in(enum_of("harmful")), "nested cannot be read"),
    "a module of a default": (nested_in(default_of("harmful")), "nested"),
    "a type that nobody knows": (
        nested_in({"type": "os.Evil", "context": "null", "children_spec": []}),
        r"nests arguments or results in 'os\.Evil'",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_code_in_a_program_is_refused(members, tmp_path, monkeypatch, kind):
    change, message = CHANGES[kind]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "harmful.py").write_text(code(tmp_path / "harm"))
    path = written(tmp_path / "evil.pt2", changed(members, change))
    with pytest.raises((pt.FileError, pt.UnsupportedError), match=message):
        ptt.read(path, **SPLIT)
    assert not (tmp_path / "harm").exists()


def test_code_that_torch_would_run_is_left_out(members, tmp_path, monkeypatch):
    def change(found):
        found["guards_code"] = [CODE]
        found["range_constraints"] = {"s0": {"min_val": 0, "max_val": CODE}}
        found["graph_module"]["metadata"] = {"custom": "{"}
        first_node(found)["metadata"] |= {
            "stack_trace": f'File "model.py", line 3, in a\n{CODE}\nFile "b", line 10000000000',
            "source_fn_stack": f"a,torch.os.system({CODE})",
            "nn_module_stack": f"L__self__,up,{CODE};a,{CODE},b",
            "from_node": "[",
        }

    monkeypatch.chdir(tmp_path)
    captured = read_exported(written(tmp_path / "evil.pt2", changed(members, change)))
    assert captured.nodes[0].meta["stack_trace"] == 'File "model.py", line 3'
    assert captured.nodes[0].meta[PATH] == "up"
    assert not (tmp_path / "harm").exists()


# ------------------------------------------------------------------------- what is damaged


def deep(found):
    tree = {"type": None, "context": None, "children_spec": []}
    for _ in range(300):
        tree = {"type": "builtins.list", "context": "null", "children_spec": [tree]}
    nested_in(tree)(found)


def nothing_stored(found):
    found["config"]["scale"]["tensor_meta"]["sizes"] = [{"as_int": 2**40}]


def far_away(found):
    found["config"]["scale"]["tensor_meta"]["storage_offset"] = {"as_int": 100}


CONSTANTS = "scaled/data/constants/model_constants_config.json"
PROGRAM = "scaled/models/model.json"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda all: {}, "holds no exported program"),
        (lambda all: all | {PROGRAM: b"{"}, "JSON is malformed|truncated"),
        (lambda all: all | {PROGRAM: b"[" * 10**6}, "nested too deeply|got `array`"),
        (lambda all: all | {PROGRAM: b'{"a":' * 10**6}, "nested too deeply|truncated|malformed"),
        (lambda all: all | {PROGRAM: b"\xff"}, "Invalid UTF-8|malformed"),
        (lambda all: changed(all, lambda found: found.clear()), "missing required field"),
        (lambda all: changed(all, deep), "nested cannot be read"),
        (lambda all: changed(all, nothing_stored, CONSTANTS), "wrong type or shape"),
        (lambda all: changed(all, far_away, CONSTANTS), "out of bounds"),
        (lambda all: {k: v for k, v in all.items() if k != CONSTANTS}, "as a pickle"),
        (lambda all: all | {"scaled/data/constants/tensor_0": b""}, "has no numbers"),
        (lambda all: all | {"scaled/data/constants/tensor_0": b"abc"}, "buffer|multiple"),
    ],
)
def test_damaged_files(members, tmp_path, damage, message):
    path = written(tmp_path / "bad.pt2", damage(members))
    with pytest.raises(pt.FileError, match=message):
        ptt.read(path, **SPLIT)


def test_a_program_that_grows_when_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MOST_PROGRAM", 10**6)
    with zipfile.ZipFile(tmp_path / "bomb.pt2", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/models/model.json", b" " * 10**8)
    with pytest.raises(pt.FileError, match="more than 1,000,000 bytes"):
        ptt.read(tmp_path / "bomb.pt2", **SPLIT)


def test_what_is_no_regular_file(tmp_path):
    with pytest.raises(pt.FileError, match="it is a directory, not a regular file"):
        ptt.read(tmp_path, **SPLIT)
    with pytest.raises(pt.FileError, match="No such file"):
        ptt.read(tmp_path / "none.pt2", **SPLIT)


def test_bytes_that_are_changed_at_random(members, tmp_path):
    path, rng = tmp_path / "bad.pt2", np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(members[PROGRAM])
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.choice(list(b'{}[]",:-0123456789abcdefxyz.'))
        with contextlib.suppress(pt.PartitaError):
            read_exported(written(path, members | {PROGRAM: bytes(data)}))
