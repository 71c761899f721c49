"""Compiled text, read as computations of instructions."""

from __future__ import annotations

from partita.verify.hlo import parse

TEXT = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%helper.1 (p.0: f32[8]) -> f32[8] {
  %p.0 = f32[8]{0:T(128)S(1)} parameter(0)
  ROOT %exp.2 = f32[8]{0:T(128)} exponential(%p.0), metadata={op_name="jit(f)/(exp)"}
}

ENTRY %main.7 (a: f32[8], /*index=1*/b: bf16[4,2]) -> (f32[8], s32[]) {
  %a = f32[8]{0} parameter(0)
  %b = bf16[4,2]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %two = s32[] constant(2)
  %f-1 = f32[8]{0:T(128)} fusion(%a, %b), kind=kLoop, calls=%helper.1
  ROOT %t = (f32[8]{0:T(128)}, /*index=1*/s32[]) tuple(%f-1, %two)
}
"""


def test_computations_and_instructions():
    module = parse(TEXT)
    assert list(module.computations) == ["helper.1", "main.7"]
    assert module.entry == "main.7"
    main = module.computations["main.7"]
    assert [(i.name, i.opcode) for i in main] == [
        ("a", "parameter"),
        ("b", "parameter"),
        ("two", "constant"),
        ("f-1", "fusion"),
        ("t", "tuple"),
    ]


def test_types_operands_and_attributes():
    main = parse(TEXT).computations["main.7"].instructions
    assert main["b"].type == "bf16[4,2]{1,0:T(8,128)(2,1)S(1)}"
    assert main["t"].type == "(f32[8]{0:T(128)}, /*index=1*/s32[])"
    assert main["two"].text == "2"
    assert main["f-1"].operands == ["a", "b"]
    assert main["f-1"].called == [("calls", "helper.1")]
    assert parse(TEXT).computations["main.7"].root == main["t"]
    helper = parse(TEXT).computations["helper.1"].root
    assert helper is not None and "op_name" in helper.attributes


def test_lines_outside_of_computations_belong_to_an_entry_without_a_name():
    module = parse("  %x = f32[2]{0} all-gather(%y), dimensions={0}")
    assert module.entry == ""
    assert list(module.computations[""].instructions) == ["x"]
