"""Hardware files: those that ship with partita, and those that users write."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from partita.cost.compilers import compiler, compilers
from partita.cost.devices.files import FOLDER, decode, device_type_of, device_types, encode, load
from partita.cost.devices.hardware import (
    ALONE,
    ROW,
    UNPADDED,
    Efficiency,
    Hardware,
    Network,
)
from partita.cost.devices.schema import Figure, entries
from partita.errors import HardwareError
from partita.spmd import COLLECTIVES

USER_FILE = """
description = "A made-up chip"
memory = { value = 16_000_000_000, source = "datasheet" }
memory_bandwidth = { value = 1e12, source = "datasheet" }
peak_flops.bf16 = { value = 1e14, source = "datasheet" }
peak_flops.f32 = { value = 4e13, source = "datasheet" }
efficiency.matmul = { value = 0.8, source = "measured" }
efficiency.memory = { value = 0.9, source = "measured" }

[[networks]]
name = "link"
topology = "torus"
size = 64
bandwidth = { value = 1e11, source = "datasheet" }
latency = { value = 1e-6, source = "assumption: a hop" }

[[networks]]
name = "ethernet"
topology = "switch"
size = 1024
bandwidth = { value = 1e10, source = "datasheet" }
latency = { value = 1e-5, source = "assumption: a message" }
"""

NETWORKS = USER_FILE[USER_FILE.index("[[networks]]") :]


@pytest.fixture
def write(tmp_path):
    """Writes a hardware file and returns its path."""

    def write(text, name="my_chip.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def figures(table, where=""):
    """Every figure of a hardware, with its path."""
    if isinstance(table, Figure):
        yield where, table
    elif isinstance(table, msgspec.Struct):
        for field in table.__struct_fields__:
            yield from figures(getattr(table, field), f"{where}.{field}")
    elif isinstance(table, dict):
        for key, value in table.items():
            yield from figures(value, f"{where}.{key}")
    elif isinstance(table, tuple):
        for i, value in enumerate(table):
            yield from figures(value, f"{where}[{i}]")


# ------------------------------------------------------------------------- the device types we ship


def test_device_types():
    assert set(device_types()) == {
        *("tpu_v3", "tpu_v4", "tpu_v5e", "tpu_v5p", "tpu_v6e"),
        *("p100", "v100", "a100_40gb", "a100_80gb", "h100", "h200", "b200", "gb200"),
        "cpu",
    }
    assert list(device_types()) == sorted(device_types())


@pytest.mark.parametrize("kind", device_types())
def test_every_figure_has_a_source(kind):
    hardware = load(kind)
    assert hardware.name == kind and hardware.description
    found = list(figures(hardware))
    assert len(found) >= 8
    for where, figure in found:
        assert figure.value > 0, where
        assert len(figure.source) > 5, where


@pytest.mark.parametrize("kind", device_types())
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64", "f8E4M3FN", "i8", "i1", "ui32"])
def test_every_device_type_prices_every_dtype(kind, dtype):
    assert load(kind).flops(dtype) > 0


def test_cpu_is_all_assumptions_but_what_was_measured():
    assert all(f.source.startswith(("assumption: ", "measured ")) for _, f in figures(load("cpu")))


@pytest.mark.parametrize(
    ("more", "less", "of"),
    [
        ("tpu_v5p", "tpu_v5e", lambda h: h.flops("bf16")),
        ("tpu_v6e", "tpu_v5p", lambda h: h.flops("bf16")),
        ("h100", "a100_80gb", lambda h: h.flops("bf16")),
        ("b200", "h200", lambda h: h.flops("bf16")),
        ("v100", "p100", lambda h: h.flops("f16")),
        ("tpu_v5p", "tpu_v5e", lambda h: h.memory.value),
        ("a100_80gb", "a100_40gb", lambda h: h.memory.value),
        ("h200", "h100", lambda h: h.memory.value),
        ("h200", "h100", lambda h: h.memory_bandwidth.value),
        ("tpu_v4", "tpu_v3", lambda h: h.memory_bandwidth.value),
        ("tpu_v5p", "tpu_v4", lambda h: h.networks[0].bandwidth.value),
        ("b200", "h100", lambda h: h.networks[0].bandwidth.value),
        ("gb200", "b200", lambda h: h.networks[0].size),
    ],
)
def test_newer_and_larger_device_types_have_more(more, less, of):
    assert of(load(more)) > of(load(less))


@pytest.mark.parametrize("kind", device_types())
def test_every_device_type_states_what_each_class_of_operations_reaches(kind):
    hardware = load(kind)
    reached = {name: f.value for name, f in hardware.efficiency.stated().items()}
    assert set(reached) - {"matmul_f32"} == {"matmul", "memory", "gather", "convolution"}
    assert reached["gather"] < reached["memory"] and reached["convolution"] <= reached["matmul"]
    assert hardware.matrix_unit != UNPADDED
    if kind.startswith("tpu"):
        assert hardware.matrix_unit.rows.value in (128, 256)


@pytest.mark.parametrize("kind", device_types())
def test_of_a_gpu_programs_are_given_what_jax_preallocates(kind):
    hardware = load(kind)
    share = 0.75 if hardware.platform == "cuda" else 1
    assert hardware.usable_memory == int(share * hardware.memory.value)


def test_narrow_types_are_faster():
    h100 = load("h100")
    peaks = [h100.flops(dtype) for dtype in ("f64", "f32", "bf16", "f8")]
    assert peaks == sorted(set(peaks))


@pytest.mark.parametrize(
    ("kind", "bytes_", "bf16"),
    [
        ("tpu_v5e", 15.75 * 2**30, 197e12),
        ("tpu_v4", 30.75 * 2**30, 275e12),
        ("h100", 79.1 * 2**30, 989e12),
    ],
)
def test_known_figures(kind, bytes_, bf16):
    hardware = load(kind)
    assert hardware.memory.value == pytest.approx(bytes_)
    assert hardware.flops("bf16") == bf16


@pytest.mark.parametrize("kind", device_types())
def test_networks(kind):
    fastest = load(kind).networks[0]
    expected = "torus" if kind.startswith("tpu") else "switch"
    assert fastest.topology == expected
    assert fastest.latency.value <= load(kind).networks[-1].latency.value


def test_str():
    assert str(load("tpu_v5e")) == (
        "tpu_v5e: Google TPU v5e, one chip\n"
        "  memory  15.75 GiB, 819 GB/s (81% reached)\n"
        "  peak    bf16 197, f32 197, s8 393 TFLOP/s (97% reached by large matmuls)\n"
        "  ici     torus of up to 256, 90 GB/s, 1 us a step\n"
        "  dcn     switch of up to 65536, 3.125 GB/s, 20 us a step"
    )


# -------------------------------------------------------------------------- element types


def chip(**peaks):
    one = Figure(1.0, "test")
    return Hardware(
        name="chip",
        description="",
        memory=one,
        memory_bandwidth=one,
        peak_flops={dtype: Figure(value, "test") for dtype, value in peaks.items()},
        efficiency=Efficiency(one, one),
        networks=(Network("link", "switch", 2, one, one),),
    )


@pytest.mark.parametrize(
    ("peaks", "dtype", "expected"),
    [
        ({"bf16": 8.0, "f16": 6.0}, "f16", 6.0),
        ({"bf16": 8.0}, "f16", 8.0),
        ({"f16": 8.0}, "bf16", 8.0),
        ({"f32": 2.0}, "bf16", 2.0),
        ({"bf16": 8.0}, "f32", 4.0),
        ({"bf16": 8.0, "f32": 2.0}, "f64", 1.0),
        ({"bf16": 8.0}, "f64", 2.0),
        ({"bf16": 8.0, "f8": 16.0}, "f8E5M2", 16.0),
        ({"bf16": 8.0}, "f8E4M3FN", 8.0),
        ({"bf16": 8.0, "s8": 16.0}, "i8", 16.0),
        ({"bf16": 8.0, "s8": 16.0}, "ui4", 16.0),
        ({"bf16": 8.0}, "i1", 8.0),
        ({"bf16": 8.0, "s8": 16.0, "f32": 2.0}, "i32", 2.0),
        ({"f32": 2.0}, "complex<f32>", 2.0),
        ({"f32": 2.0}, "complex<f64>", 1.0),
    ],
)
def test_flops_falls_back(peaks, dtype, expected):
    assert chip(**peaks).flops(dtype) == expected


@pytest.mark.parametrize("dtype", ["token", "float32", "i7", ""])
def test_flops_of_no_dtype(dtype):
    with pytest.raises(HardwareError, match=f"unknown element type '{dtype}'; expected .*bf16"):
        chip(f32=1.0).flops(dtype)


# ------------------------------------------------------------------------------ user files


@pytest.mark.parametrize("form", [str, lambda path: path])
def test_user_file(write, form):
    hardware = load(form(write(USER_FILE)))
    assert hardware.name == "my_chip"
    assert hardware.memory == Figure(16e9, "datasheet")
    assert hardware.flops("bf16") == 1e14
    assert [(n.name, n.topology, n.size) for n in hardware.networks] == [
        ("link", "torus", 64),
        ("ethernet", "switch", 1024),
    ]


def test_what_a_file_leaves_out(write):
    hardware = load(write(USER_FILE))
    assert set(hardware.efficiency.stated()) == {"matmul", "memory"}
    assert hardware.matrix_unit == hardware.tile == UNPADDED
    assert hardware.kernels == ALONE and hardware.overlapped == tuple(COLLECTIVES)
    assert (UNPADDED.rows.value, UNPADDED.columns.value) == (1, 1)


KERNELS = """
[kernels]
fuse_products = true
not_before_products = ["divide"]
source = "seen"
"""

FURTHER = """
efficiency.gather = { value = 0.3, source = "measured" }
efficiency.convolution = { value = 0.6, source = "measured" }
matrix_unit.rows = { value = 128, source = "datasheet" }
matrix_unit.columns = { value = 64, source = "datasheet" }
"""


def test_a_file_states_what_small_and_other_operations_reach(write):
    hardware = load(write(USER_FILE.replace(NETWORKS, FURTHER + NETWORKS)))
    assert hardware.efficiency.stated()["gather"].value == 0.3
    assert hardware.efficiency.stated()["convolution"].value == 0.6
    assert (hardware.matrix_unit.rows.value, hardware.matrix_unit.columns.value) == (128, 64)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.3", "3.0", "gather is a fraction of the peak, at most 1, got 3"),
        ("128", "12.8", "rows of a tile must be a whole number, got 12.8.*`matrix_unit`"),
        ("128", "1e20", r"rows of a tile must be at most 2147483648, got 1e\+20.*`matrix_unit`"),
        ("matrix_unit.columns", "matrix_unit.depth", "unknown field `depth` - at `matrix_unit`"),
    ],
)
def test_invalid_further_figures(write, old, new, message):
    text = USER_FILE.replace(NETWORKS, FURTHER.replace(old, new, 1) + NETWORKS)
    with pytest.raises(HardwareError, match=rf"my_chip\.toml.*{message}"):
        load(write(text))


def test_a_file_says_what_the_compiler_does(write):
    told = 'overlapped = ["all_gather"]\n' + USER_FILE + KERNELS
    hardware = load(write(told))
    assert hardware.overlapped == ("all_gather",)
    assert hardware.kernels.fuse_products and hardware.kernels.not_before_products == ("divide",)
    with pytest.raises(HardwareError, match="unknown collective 'all_gathers'; did you mean"):
        load(write(told.replace("all_gather", "all_gathers")))


def test_a_file_has_the_rules_of_the_compiler_that_it_names(write):
    named = 'compiler = "xla_gpu"\n' + USER_FILE
    hardware, h100 = load(write(named)), load("h100")
    assert hardware.kernels.costly == h100.kernels.costly
    assert hardware.combined == h100.combined and hardware.combine == h100.combine
    assert hardware.kernels.held_longer is None  # stated by the files of some devices
    told = load(write('overlapped = ["all_gather"]\n' + named + KERNELS))
    assert told.overlapped == ("all_gather",) and told.kernels.fuse_products
    assert told.kernels.source == "seen" and told.kernels.library_products
    with pytest.raises(HardwareError, match="unknown compiler 'xla_gpus'; did you mean 'xla_gpu'"):
        load(write(named.replace("xla_gpu", "xla_gpus")))


def test_a_figure_replaces_that_of_the_compiler_as_a_whole(write):
    named = 'compiler = "xla_tpu"\nprefetch = { value = 3, source = "seen" }\n' + USER_FILE
    assert load(write(named)).prefetch == Figure(3, "seen")
    with pytest.raises(HardwareError, match="missing required field `source`"):
        load(write(named.replace(', source = "seen" }', " }", 1)))


def test_what_differs_from_the_compiler_is_written(write):
    told = 'compiler = "xla_gpu"\n' + USER_FILE + "\n[kernels]\nzeros_first = false\n"
    text = encode(load(write(told)))
    assert "zeros_first = false" in text and "scatters_apart" not in text
    assert "overlap_window" not in text and 'compiler = "xla_gpu"' in text
    assert decode(text, "my_chip", "the text") == load(write(told))


RULES = [(each.name, rule) for each in compilers() for rule in each.rules]


@pytest.mark.parametrize(("name", "rule"), RULES, ids=lambda each: getattr(each, "name", each))
def test_a_rule_can_be_switched_off(name, rule):
    """On some device type it changes something, and another time off nothing more."""
    known = [load(each) for each in device_types() if load(each).compiler == name]
    changed = [each for each in known if rule.without(each) != each]
    assert changed and rule.does and rule.shown_by and re.fullmatch(r"20\d\d-\d\d-\d\d", rule.since)
    for each in changed:
        assert rule.without(rule.without(each)) == rule.without(each)


def test_experiments_are_there():
    """Tests that rules name exist."""
    named = {path for _, rule in RULES for path in re.findall(r"tests/[\w/]+\.py", rule.shown_by)}
    assert named and all((Path(__file__).parents[2] / path).exists() for path in named)


def test_loaded_hardware_is_returned(write):
    hardware = load(write(USER_FILE))
    assert load(hardware) is hardware


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("memory = { value = 16", "memory = { value = -16", "above 0, got -16.*`memory`"),
        ("1e-5", "0", r"above 0, got 0.0.*`networks\[1\].latency`"),
        ("1e14", "1e308", r"must be from 1e-18 to 1e\+24, got 1e\+308.*`peak_flops.bf16`"),
        ("1e-5", "1e-300", r"must be from 1e-18 to 1e\+24, got 1e-300.*`networks"),
        (
            "memory = { value = 16",
            "memory = { value = 16_000_000",
            "at most 9007199254740992 bytes",
        ),
        ("size = 64", f"size = {10**400}", "network 'link' must join at most 2147483648 devices"),
        ("1e14", "inf", "finite and above 0, got inf.*`peak_flops.bf16`"),
        ("4e13", '"fast"', "Expected `float`, got `str`.*`peak_flops.f32.value`"),
        ("value = 0.8", "value = 1.8", "matmul is a fraction of the peak, at most 1, got 1.8"),
        ('"measured"', '" "', "figure 0.8 has an empty source"),
        ('value = 0.9, source = "measured"', "value = 0.9", "missing required field `source`"),
        ("memory_bandwidth", "memory_bandwith", "`memory_bandwi"),
        ("size = 64", "size = 64\nports = 4", r"unknown field `ports` - at `networks\[0\]`"),
        ("size = 64", "size = 1", "network 'link' must join at least 2 devices, got 1"),
        ('"torus"', '"ring"', r"Invalid enum value 'ring' - at `networks\[0\].topology`"),
        ('name = "ethernet"', 'name = "link"', "two of the same name: link, link"),
        ("1e11", "1e9", "fastest first, but 'ethernet' is faster than 'link'"),
        (NETWORKS, "networks = []", "at least one network"),
        (NETWORKS, "", "missing required field `networks`"),
        ("peak_flops.f32", "peak_flops.float32", "unknown element type 'float32'"),
        ('description = "A', 'name = "chip"\ndescription = "A', "has a field `name`; remove it"),
        ("description", "a = " + "[" * 5000 + "\ndescription", "nested too deeply"),
        ("description", ".".join(["a"] * 7000) + " = 1\ndescription", "unknown field `a`"),
        ("description", "#" * 20_000 + "\ndescription", "more than 16,384 bytes, the most"),
        ("size = 64", "size 64", "not valid TOML: .*line 13"),
    ],
)
def test_invalid_user_file(write, old, new, message):
    assert old in USER_FILE
    text = USER_FILE.replace(old, new, 1)
    with pytest.raises(HardwareError, match=rf"my_chip\.toml.*{message}"):
        load(write(text))


def test_peaks_need_a_base(write):
    text = USER_FILE.replace("peak_flops.bf16", "peak_flops.s8").replace(".f32", ".f64")
    with pytest.raises(HardwareError, match="peak_flops must state one of bf16, f16, f32"):
        load(write(text))


def test_missing_file(tmp_path):
    with pytest.raises(HardwareError, match=r"cannot read .*absent\.toml'?: No such file"):
        load(tmp_path / "absent.toml")


def test_file_that_is_not_text(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(HardwareError, match=r"binary\.toml' is not UTF-8"):
        load(path)


def test_unknown_device_type():
    with pytest.raises(HardwareError) as error:
        load("tpu_v5")
    message = str(error.value)
    assert message.startswith("unknown device type 'tpu_v5'; did you mean 'tpu_v5")
    assert all(kind in message for kind in device_types())
    assert ".toml" in message


@pytest.mark.parametrize("name", ["", "../device_types/cpu", "toaster"])
def test_no_device_type_of_that_name(name):
    with pytest.raises(HardwareError, match="unknown device type"):
        load(name)


# --------------------------------------------------------------------------- by the schema


@pytest.mark.parametrize("name", device_types())
def test_what_is_written_is_read_again(name):
    hardware = load(name)
    assert decode(encode(hardware), name, "the text") == hardware


def test_every_figure_has_a_unit_and_is_an_entry():
    hardware = load("tpu_v5e")
    told = {".".join(("", *entry.path)): entry for entry in entries(hardware) if entry.is_figure}
    named = {f"networks[{i}]": f"networks.{n.name}" for i, n in enumerate(hardware.networks)}
    found = dict(figures(hardware))
    for short, long in named.items():
        found = {where.replace(short, long): figure for where, figure in found.items()}
    assert {where: entry.value for where, entry in told.items()} == {
        where: figure.value for where, figure in found.items()
    }
    units = {entry.unit for entry in told.values()}
    assert units == {
        *("bytes", "bytes/s", "FLOP/s", "s", "cycles/s", "fraction"),
        *("elements", "elements/s", "operations", "products", "rows", ""),
    }


@pytest.mark.parametrize("name", device_types())
def test_what_depends_on_the_compiler_is_stated(name):
    """No device type that we ship relies on the defaults for the files of users."""
    hardware, text = load(name), (FOLDER / f"{name}.toml").read_text()
    for field in ("overlap_window", "prefetch", "regather_window", "combine", "latency_bytes"):
        ruled = field in compiler(hardware.compiler).table()
        assert ruled != (f"\n[{field}]\n" in text)
    assert (hardware.kernels.longest_row != ROW) == hardware.kernels.fuse_products


@pytest.mark.parametrize(
    ("device_kind", "name"),
    [
        ("TPU v3", "tpu_v3"),
        ("TPU v4", "tpu_v4"),
        ("TPU v5", "tpu_v5p"),
        ("TPU v5p", "tpu_v5p"),
        ("TPU v5 lite", "tpu_v5e"),
        ("TPU v5e", "tpu_v5e"),
        ("TPU v6 lite", "tpu_v6e"),
        ("TPU v6e", "tpu_v6e"),
        ("Tesla P100-SXM2-16GB", "p100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100_80gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("cpu", "cpu"),
        ("NVIDIA GeForce RTX 3090", None),
        ("TPU v2", None),
    ],
)
def test_what_jax_calls_a_device_is_one_device_type(device_kind, name):
    found = [n for n in device_types() if re.search(load(n).device_kind, device_kind, re.I)]
    assert found == [name] * (name is not None)
    assert device_type_of(device_kind) == name


def test_a_device_kind_is_a_regular_expression(write):
    with pytest.raises(HardwareError, match="device_kind is not a regular expression"):
        load(write('device_kind = "v5("\n' + USER_FILE))


@pytest.mark.parametrize("field", ["overlap_window", "prefetch", "regather_window"])
def test_windows_are_whole_numbers(write, field):
    text = f'{field} = {{ value = 1.5, source = "made up" }}\n{USER_FILE}'
    with pytest.raises(HardwareError, match=f"{field} must be a whole number, got 1.5"):
        load(write(text))
