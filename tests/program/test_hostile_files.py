"""Files that are malformed, or made to do harm: one clear error, soon, and the process lives on."""

import functools
import io
import json
import random
import time

import flatbuffers
import jax
import jax.export
import jax.numpy as jnp
import pytest

import partita as pt
from partita.cost import load
from partita.cost.devices import files as cost_files
from partita.saved import schema
from partita.stablehlo import inlining, reading
from partita.stablehlo.internals import export_schema, exported_nodes
from partita.stablehlo.limits import check_text
from partita.text import Text, console

F = "tensor<4xf32>"
SAME = f"(%x: {F}) -> {F}"


@pytest.fixture
def read(tmp_path):
    """Reads a module from the text of a file; it must not take ten seconds."""

    def run(data):
        file = tmp_path / "model.mlir"
        file.write_bytes(data.encode() if isinstance(data, str) else data)
        start = time.monotonic()
        try:
            return pt.read(file)
        finally:
            assert time.monotonic() - start < 10

    return run


def hlo(signature=SAME, body="return %x : tensor<4xf32>", rest="", attribute="unit"):
    return (
        f"module attributes {{x.y = {attribute}}} {{\n"
        f"func.func public @main{signature} {{\n{body}\n}}\n{rest}\n}}"
    )


def calls(name, *called):
    """A function that calls others, one after the other."""
    lines = [f"%v{n + 1} = call @{callee}(%v{n}) : ({F}) -> {F}" for n, callee in enumerate(called)]
    body = "\n".join([*lines, f"return %v{len(called)} : {F}"])
    return f"func.func private @{name}(%v0: {F}) -> {F} {{\n{body}\n}}"


def calling(name):
    return f"%0 = call @{name}(%x) : ({F}) -> {F}\nreturn %0 : {F}"


# ---------------------------------------------------------------------------- calls


@pytest.mark.parametrize(
    ("functions", "circle"),
    [
        ([calls("f", "f")], "'f' calls itself (f -> f)"),
        ([calls("f", "g"), calls("g", "h"), calls("h", "f")], "calls itself (f -> g -> h -> f)"),
        ([calls("f", "main")], "calls itself (main -> f -> main)"),
    ],
)
def test_recursion_is_found(read, functions, circle):
    with pytest.raises(pt.UnsupportedError, match="write it as a loop") as error:
        read(hlo(body=calling("f"), rest="\n".join(functions)))
    names = str(error.value).partition("(")[2].partition(")")[0].split(" -> ")
    assert names[0] == names[-1] and set(names) == set(circle.partition("(")[2][:-1].split(" -> "))


def doubled(times):
    last = calls(f"f{times}").replace("return", f"%s = stablehlo.sine %v0 : {F}\nreturn")
    return "\n".join([*(calls(f"f{n}", *[f"f{n + 1}"] * 2) for n in range(times)), last])


@pytest.mark.parametrize("times", [30, 3000])
def test_calls_that_are_doubled_again_and_again_are_too_many(read, times):
    with pytest.raises(pt.UnsupportedError, match=r"inlined .* more than 500,000 operations"):
        read(hlo(body=calling("f0"), rest=doubled(times)))


def test_a_program_of_jax_has_the_same_limit(monkeypatch):
    def twice(f):
        return jax.jit(lambda x: f(f(x)))

    monkeypatch.setattr(inlining, "OPERATIONS", 1000)
    f = functools.reduce(lambda f, _: twice(f), range(10), jnp.sin)
    with pytest.raises(pt.UnsupportedError, match=r"inlined .* more than 1,000 operations"):
        pt.plan(f, jnp.ones(4), mesh="x=2", hardware="cpu")


def test_a_few_calls_in_each_other_are_inlined(read):
    program = read(hlo(body=calling("f0"), rest=doubled(5)))
    assert len(program.program.operations) == 0  # nothing reads the sines


# -------------------------------------------------------------------------- nesting


def nested_branches(depth):
    opening = '%r = "stablehlo.case"(%c) ({ ' * depth
    closing = f" stablehlo.return %r : {F} }}) : (tensor<i32>) -> {F}" * depth
    return hlo(
        body=f"%c = stablehlo.constant dense<0> : tensor<i32>\n{opening}"
        f"%r = stablehlo.sine %x : {F}{closing}\nreturn %r : {F}"
    )


@pytest.mark.parametrize("depth", [150, 1000, 5000, 100_000])
def test_branches_are_nested_at_most_a_hundred_deep(read, depth):
    with pytest.raises(pt.UnsupportedError, match="nested too deeply; at most 100 loops"):
        read(nested_branches(depth))


def test_branches_that_are_nested_less_deep_are_planned(read):
    module = read(nested_branches(90))
    assert pt.plan(module, mesh="x=2", hardware="cpu", tactics=[]).collectives == ()


DEEP = {
    "arrays": lambda n: hlo(attribute="[" * n + "]" * n),
    "dictionaries": lambda n: hlo(attribute="{a = " * n + "unit" + "}" * n),
    "types": lambda n: hlo(attribute="tuple<" * n + "i32" + ">" * n),
    "expressions": lambda n: hlo(attribute=f"affine_map<(d) -> ({'(' * n}d{')' * n})>"),
    "signs": lambda n: hlo(attribute=f"affine_map<(d) -> ({'- ' * n}d)>"),
    "locations": lambda n: hlo() + f" loc({'fused[' * n}unknown{']' * n})",
    "modules": lambda n: "module {" * n + "}" * n,
    "only opening": lambda n: "module attributes {x.y = " + "[" * n,
    "behind a string": lambda n: hlo(attribute=("[" * n + '"]"' + "]" * n)),
    "behind an escape": lambda n: hlo(attribute=("[" * n + r'"\"' + "]" * n + '"' + "]" * n)),
    "behind a comment": lambda n: hlo(attribute=f"[// {']' * n}\n{'[' * n}{']' * n}]"),
    "behind a quote in a comment": lambda n: '// "\n' + hlo(attribute="[" * n + "]" * n),
    "by name": lambda n: (
        "#a0 = unit\n" + "".join(f"#a{i + 1} = [#a{i}]\n" for i in range(n)) + hlo(attribute="#a9")
    ),
    "locations by name": lambda n: (
        '#loc0 = loc("f")\n'
        + "".join(f'#loc{i + 1} = loc("f"(#loc{i}))\n' for i in range(n))
        + hlo()
    ),
}


@pytest.mark.parametrize("kind", DEEP)
def test_brackets_and_names_are_nested_at_most_400_deep(read, kind):
    with pytest.raises(pt.UnsupportedError, match=r"too deeply|400 deep|minus signs in a row"):
        read(DEEP[kind](50_000))


@pytest.mark.parametrize(
    "text",
    [
        hlo(attribute="[" * 90 + "]" * 90),
        hlo(attribute='"' + "[" * 5000 + '"'),
        hlo(attribute='["\\"[[[", "\\\\", "{{{"]'),
        hlo(attribute="unit") + "// " + "{" * 5000,
        hlo(attribute="[" + "[], " * 5000 + "[]]"),
        hlo(attribute="affine_map<(d) -> (" + "d + " * 300 + "d)>"),
    ],
)
def test_what_only_looks_nested_is_read(read, text):
    assert read(text).program.operations == ()


ALIASED = {
    "attributes": ("#a", "unit", "[{0}, {0}]"),
    "types": ("!a", "i32", "tuple<{0}, {0}>"),
    "locations": ("#a", 'loc("f")', "loc(fused[{0}, {0}])"),
    "over lines": ("#a", "unit", "[{0}, \n {0}]"),
}


@pytest.mark.parametrize("kind", ALIASED)
def test_names_that_stand_for_each_other_twice_are_too_long(read, kind):
    name, first, twice = ALIASED[kind]
    lines = [f"{name}{n + 1} = {twice.format(f'{name}{n}')}" for n in range(40)]
    for text in ("\n".join, " ".join):  # on lines of their own, or not
        with pytest.raises(pt.UnsupportedError, match="too long when they are written out"):
            read(text([f"{name}0 = {first}", *lines, hlo(attribute="unit")]))


def test_a_name_that_is_used_often_counts_as_often(read):
    names = ["#a0 = unit"] + [f"#a{n + 1} = [#a{n}, #a{n}]" for n in range(15)]
    with pytest.raises(pt.UnsupportedError, match="too long when they are written out"):
        read("\n".join([*names, hlo(attribute=f"[{'#a15, ' * 1000}#a15]")]))


def test_the_check_takes_milliseconds():
    text = hlo(body=f"%0 = stablehlo.sine %x : {F} loc(#loc1)\n" * 20_000)
    start = time.monotonic()
    check_text('#loc1 = loc("f.py":1:1)\n' + text)
    assert time.monotonic() - start < 0.5  # some 20, but for what else the machine does


# ---------------------------------------------------------- what MLIR itself does not survive


def all_to_all(groups):
    return hlo(
        body=f"""%0 = "stablehlo.all_to_all"(%x) <{{concat_dimension = 0 : i64,
        split_count = 2 : i64, split_dimension = 0 : i64,
        replica_groups = {groups}}}> : ({F}) -> {F}
        return %0 : {F}"""
    )


DIVIDES_BY_ZERO = r"MLIR fails over it.*SIGFPE|group size of replica_groups must be 2"
"""Since JAX 0.12 MLIR survives it."""


@pytest.mark.parametrize(
    ("groups", "kind", "message"),
    [
        ("dense<> : tensor<0x2xi64>", pt.FileError, DIVIDES_BY_ZERO),
        ("dense<> : tensor<0x0xi64>", pt.FileError, DIVIDES_BY_ZERO),
        ("dense<0> : tensor<i64>", pt.FileError, "replica groups should be a rank 2 tensor"),
        ("[1]", pt.FileError, "replica_groups"),
        ("dense<[[0, 1]]> : tensor<1x2xi64>", pt.UnsupportedError, "contains a collective"),
    ],
)
def test_malformed_groups_of_devices_end_no_process(read, groups, kind, message):
    with pytest.raises(kind, match=message):
        read(all_to_all(groups))


def bytecode():
    exported = jax.export.export(jax.jit(lambda x, w: jnp.tanh(x @ w).sum()))
    return exported(jnp.ones((4, 4)), jnp.ones((4, 4))).mlir_module_serialized


def test_damaged_bytecode_ends_no_process(read):
    """Of these, some would abort in MLIR's reader."""
    whole, reasons = bytecode(), set()
    for number in range(0, len(whole) - 20, len(whole) // 12):
        damaged = whole[: number + 10] + b"\xff\x00" + whole[number + 12 :]
        try:
            read(damaged)
        except pt.PartitaError as error:
            reasons.add(type(error))
    assert reasons <= {pt.FileError, pt.UnsupportedError} and pt.FileError in reasons


def test_reading_bytecode_has_a_limit_of_time(read, monkeypatch):
    class Busy(reading.subprocess.TimeoutExpired):
        pass

    def never_ends(*_, **__):
        raise Busy("decoder", 8)

    monkeypatch.setattr(reading.subprocess, "run", never_ends)
    with pytest.raises(pt.UnsupportedError, match="takes more than 8 s to read it, the most"):
        read(bytecode())


def tree_of_twice(depth):
    """A `jax.export` file whose arguments are a tuple of two that are one, and so on."""
    builder, schema = flatbuffers.Builder(), export_schema()
    node = None
    for _ in range(depth):
        children = [] if node is None else [node, node]
        schema.PyTreeDefStartChildrenVector(builder, len(children))
        for child in children:
            builder.PrependUOffsetTRelative(child)
        vector = builder.EndVector()
        schema.PyTreeDefStart(builder)
        schema.PyTreeDefAddKind(builder, schema.PyTreeDefKind.tuple)
        schema.PyTreeDefAddChildren(builder, vector)
        node = schema.PyTreeDefEnd(builder)
    name = builder.CreateString("f")
    schema.ExportedStart(builder)
    schema.ExportedAddSerializationVersion(builder, 2)
    schema.ExportedAddFunctionName(builder, name)
    schema.ExportedAddInTree(builder, node)
    builder.Finish(schema.ExportedEnd(builder))
    return bytes(builder.Output())


def test_trees_of_arguments_are_counted_as_they_will_be_made(read):
    assert exported_nodes(tree_of_twice(5)) == 2**5 - 1
    with pytest.raises(pt.FileError, match="nested in more than 1000000 nodes"):
        read(tree_of_twice(40))


# ------------------------------------------------------------------------- attributes


def donated(attribute, other="unit", result=F):
    """A function of two arguments; the first is donated as the attribute says."""
    second = "" if other == "unit" else f" {{tf.aliasing_output = {other}}}"
    return hlo(
        f"(%x: {F} {{tf.aliasing_output = {attribute}}}, %y: {F}{second}) -> ({result}, {F})",
        f"%0 = stablehlo.custom_call @a(%x) : ({F}) -> {result}\n"
        f"%1 = stablehlo.add %x, %y : {F}\nreturn %0, %1 : {result}, {F}",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (donated("9 : i32"), "argument 0 .* donated to result 9 .*, but it has 2 of them"),
        (donated("-1 : i32"), "donated to result -1 .*, but it has 2"),
        (donated("100000000000000000000 : i128"), "donated to result 1000.*, but it has 2"),
        (donated('"a"'), 'donated to result "a" .*, but it has 2'),
        (donated("1.0 : f32"), "donated to result 1.000.*, but it has 2"),
        (donated("true"), "donated to result true .*, but it has 2"),
        (donated("0 : i32", "0 : i32"), "argument 1 .* result 0 .*, but another argument is"),
        (donated("0 : i32", result="tensor<2xf32>"), r"that is a f32\[2\], and .* a f32\[4\]"),
    ],
)
def test_buffers_that_cannot_be_donated(read, text, message):
    with pytest.raises(pt.UnsupportedError, match=message):
        read(text)


def test_buffers_that_can_be_donated(read):
    assert read(donated("1 : i32", "0 : i32")).program.aliases == {0: 1, 1: 0}


@pytest.mark.parametrize(
    "rest", ["", '{-# dialect_resources: { builtin: { a: "0x04000000" } } #-}']
)
def test_a_constant_that_is_not_there(read, rest):
    body = f"%0 = stablehlo.constant dense_resource<weights> : {F}\nreturn %0 : {F}"
    with pytest.raises(pt.FileError, match=r"lacks the constant that it calls 'weights(_1)?'"):
        read(f"{hlo(body=body)}\n{rest}")


def test_names_of_arguments_differ(read):
    """Where one argument is called as another would be by its number."""
    signature = f'(%x: {F} loc("arg1"), %y: {F}, %z: {F} loc("arg1_"), %u: {F} loc("arg1")) -> {F}'
    names = read(hlo(signature)).program.argument_names
    assert names == ("arg1", "arg1__", "arg1_", "arg3")


def test_names_that_are_not_ascii(read):
    body = f'%0 = stablehlo.sine %x : {F} loc("/tmp/café.py":3:1)\nreturn %0 : {F}'
    program = read(hlo(f'(%x: {F} loc("größe")) -> {F}', body)).program
    assert program.argument_names == ("größe",)
    assert program.operations[0].source == "/tmp/café.py:3"


def test_a_file_whose_name_is_not_ascii(tmp_path):
    file = tmp_path / 'café "1".mlir'
    file.write_text(hlo(body=f"%0 = stablehlo.sine %x : {F}\nreturn %0 : {F}"))
    assert pt.read(file).program.operations[0].source == f"{file}:3"


@pytest.mark.parametrize(
    "text",
    [
        hlo(body=f'%0 = stablehlo.sine %x : {F} loc("caf\\FF.py":3:1)\nreturn %0 : {F}'),
        hlo(f'(%x: {F} loc("\\FF")) -> {F}'),
        hlo(f'(%x: {F} {{jax.arg_info = "\\FF"}}) -> {F}'),
        hlo(body=f'%0 = stablehlo.custom_call @"\\FF"(%x) : ({F}) -> {F}\nreturn %0 : {F}'),
    ],
)
def test_names_that_are_not_unicode(read, text):
    with pytest.raises(pt.UnsupportedError, match=r'a name in it is not UTF-8: ".*\\FF'):
        read(text)


def test_what_configures_a_custom_call_may_be_anything(read):
    call = f'stablehlo.custom_call @a(%x) {{backend_config = "\\FF"}} : ({F}) -> {F}'
    assert read(hlo(body=f"%0 = {call}\nreturn %0 : {F}")).program.operations[0].target == "a"


# --------------------------------------------------------------- what is StableHLO, and is not

Q = "tensor<4x!quant.uniform<i8:f32, 1.0>>"
D = "tensor<?xf32>"
BOUNDED = "tensor<?xf32, #stablehlo.bounds<4>>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (hlo(f"(%x: {Q}) -> {Q}", f"return %x : {Q}"), "a quantized type .*write the scaling out"),
        (
            hlo(body=f"%0 = stablehlo.uniform_quantize %x : ({F}) -> {Q}\nreturn %x : {F}"),
            r"a quantized type \(line 3\); write the scaling out",
        ),
        (
            hlo(f"(%x: {D}) -> {D}", f"%0 = stablehlo.sine %x : {D}\nreturn %0 : {D}"),
            "has a dynamic shape; export the program with fixed shapes",
        ),
        (
            hlo(f"(%x: {BOUNDED}) -> {BOUNDED}", f"return %x : {BOUNDED}"),
            "has a dynamic shape; export the program with fixed shapes",
        ),
        (
            hlo(
                f"(%x: {F}, %s: tensor<1xi32>) -> {D}",
                f"%0 = stablehlo.dynamic_reshape %x, %s : ({F}, tensor<1xi32>) -> {D}\n"
                f"return %0 : {D}",
            ),
            "dynamic_reshape .* with a shape that is not constant",
        ),
        (
            hlo(body=f"%0 = tf.Sin %x : {F}\nreturn %0 : {F}"),
            r"of the dialect 'tf' \(line 3\); expected StableHLO",
        ),
        (
            hlo(body=f'%0 = "tf.Sin"(%x) : ({F}) -> {F}\nreturn %0 : {F}'),
            r"of another dialect \(line 3\); expected StableHLO",
        ),
        (hlo("(%x: !foo.bar) -> !foo.bar", "return %x : !foo.bar"), "another dialect"),
        (hlo(body=f"%0 = mhlo.sine %x : {F}\nreturn %0 : {F}"), "of the dialect 'mhlo'"),
        (hlo(body=f"%0 = tensor.empty() : {F}\nreturn %0 : {F}"), "of the dialect 'tensor'"),
        (hlo(body=f"cf.br ^a\n^a: return %x : {F}"), "of the dialect 'cf'"),
        (hlo("(%x: i32) -> i32", "return %x : i32"), "a value of type i32; expected tensors"),
        (
            hlo(body=f"%0 = arith.constant 1 : index\nreturn %x : {F}"),
            "a value of type index; expected tensors",
        ),
        (hlo("(%x: vector<4xf32>) -> vector<4xf32>", "return %x : vector<4xf32>"), "vector<4xf32>"),
        (hlo("(%x: tensor<4xi7>) -> tensor<4xi7>", "return %x : tensor<4xi7>"), "of type i7"),
    ],
)
def test_what_is_not_stablehlo_of_fixed_shapes_is_refused_in_a_line(read, text, message):
    with pytest.raises(pt.UnsupportedError, match=message) as error:
        read(text)
    assert "\n" not in str(error.value) and "sdy" not in str(error.value)


def test_constants_of_another_dialect_are_read(read):
    module = read(
        hlo(
            body=f"%0 = arith.constant dense<2.0> : {F}\n"
            f"%1 = stablehlo.multiply %x, %0 : {F}\nreturn %1 : {F}"
        )
    )
    assert [op.kind for op in module.program.operations] == [
        "stablehlo.constant",
        "stablehlo.multiply",
    ]
    assert module(jnp.ones(4)).tolist() == [2.0] * 4


# ----------------------------------------------------------------------- what names can do


HOSTILE_NAME = "</script><script>alert(1)</script>[bold red]:apple:\x1b]0;owned\x07[/x]"


@pytest.fixture
def named(read):
    """A plan of a program all of whose names are hostile."""
    name = HOSTILE_NAME.replace("\x1b", "\\1B").replace("\x07", "\\07")
    body = f'%0 = stablehlo.sine %x : {F} loc("{name}"("/{name}.py":3:1))\nreturn %0 : {F}'
    module = read(hlo(f'(%x: {F} loc("{name}")) -> ({F} {{jax.result_info = "{name}"}})', body))
    return pt.plan(module, mesh="x=2", hardware="cpu", tactics=[])


def test_names_are_printed_as_they_are_but_for_control_characters(named):
    text = str(named)
    assert "\x1b" not in text and "\x07" not in text
    assert "[bold red]:apple:\\x1b]0;owned" in text


def test_names_are_escaped_on_the_report_page(named, tmp_path):
    named.report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text("utf-8")
    assert "owned" in page and "<script>alert" not in page


def test_a_terminal_gets_no_control_characters_of_names(named):
    out = io.StringIO()
    terminal = console(file=out, force_terminal=True, color_system=None, width=200)
    terminal.print(Text(HOSTILE_NAME))
    assert "\x1b]0" not in out.getvalue() and "\\x1b]0;owned" in out.getvalue()


# ------------------------------------------------------------- files that are written here


STEP_ARGS = (
    jax.ShapeDtypeStruct((16, 16), jnp.float32),
    jax.ShapeDtypeStruct((8, 16), jnp.float32),
)
ODD = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    10**40,
    1.5,
    1e308,
    "",
    "data",
    "\x00",
    [],
    {},
    [[]],
    [None] * 3,
)


def in_it(found, path=()):
    """The places of a JSON document."""
    items = found.items() if isinstance(found, dict) else enumerate(found)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from in_it(value, (*path, key))


def test_plan_files_with_other_contents(tmp_path, monkeypatch):
    """Their checksum guards against damage only, so here it says nothing."""

    def step(w, x):
        return jnp.tanh(x @ w).sum()

    tactics = [pt.ManualPartition({"x": 0}, "data"), pt.AutomaticPartition(["model"], budget=20)]
    pt.plan(step, *STEP_ARGS, mesh="data=2,model=2", hardware="cpu", tactics=tactics).save(
        file := tmp_path / "plan.json"
    )
    monkeypatch.setattr(schema, "_checksum", lambda table: table.checksum)
    monkeypatch.setattr(schema, "_checksum_of_earlier", lambda raw: raw.get("checksum"))
    saved, rng = json.loads(file.read_bytes()), random.Random(0)
    places, kinds = list(in_it(saved)), set()
    for _ in range(150):
        changed = json.loads(json.dumps(saved))
        *path, last = rng.choice(places)
        functools.reduce(lambda found, key: found[key], path, changed)[last] = rng.choice(ODD)
        file.write_text(json.dumps(changed))
        try:
            pt.load(file, step, *STEP_ARGS)
        except pt.PartitaError as error:
            kinds.add(type(error))
    assert pt.FileError in kinds


def test_hardware_files_with_other_contents(tmp_path):
    rng, refused = random.Random(0), 0
    lines = (cost_files.FOLDER / "tpu_v5e.toml").read_text().splitlines()
    odd = ["-1", "0", "nan", "inf", "1e400", "'x'", "[]", "{}", "true", "9" * 30, "1979-05-27"]
    file = tmp_path / "mine.toml"
    for _ in range(150):
        changed, place = list(lines), rng.randrange(len(lines))
        changed[place] = f"{changed[place].partition('=')[0]}= {rng.choice(odd)}"
        file.write_text("\n".join(changed))
        try:
            load(str(file))
        except pt.HardwareError:
            refused += 1
    assert refused > 100
