"""SPMD programs in print."""

from __future__ import annotations

import re
import time

import jax
import jax.numpy as jnp
import pytest

import partita as pt
from checks import array
from partita import models
from partita.models.strategies import data_parallel, fsdp, tensor_parallel

LAYERS = 6


def stack(layers, x):
    for layer in layers:
        x = jnp.tanh(x @ layer["w"]) @ layer["v"]
    return x


ROWS = {"layers[*]['w']": 1}


def planned(layers=LAYERS):
    return pt.plan(
        stack,
        [{"v": array(8, 8), "w": array(8, 8)} for _ in range(layers)],
        array(16, 8),
        mesh="model=2",
        hardware="tpu_v5e",
        tactics=[pt.ManualPartition(ROWS, axis="model")],
    )


def without_sources(spmd):
    return re.sub(r"  \S+\.py:\d+", "", str(spmd))


def test_layers_are_written_once():
    assert (
        without_sources(planned().spmd)
        == """\
spmd program stack on model=2 (2 devices)
  repeat 6 times (b+2)
    b0 = layers[*]['v'] : f32[4,8] (model, -)
    b1 = layers[*]['w'] : f32[8,4] (-, model)
  b12 = x : f32[16,8]
  repeat 6 times (b+4, #+1)
    b13 = dot_general(b12[+4], b1[+2]) : f32[16,4]
    b14 = tanh(b13) : f32[16,4]
    b15 = dot_general(b14, b0[+2]) : f32[16,8]
    b16 = all_reduce(b15, model) : f32[16,8]  #0[+1]: 512 B, 2.01 us
  result = b36"""
    )


def test_a_collective_shows_its_number_and_where_the_value_is_made():
    plan = planned(1)
    (line,) = [text for text in str(plan.spmd).splitlines() if "#" in text]
    (collective,) = plan.collectives
    assert line.endswith(collective.source) and collective.source
    assert f"#0: {collective.bytes} B, " in line


def numbers(lines):
    """The numbers of collectives that a text stands for, repeats written out."""
    found, at = [], 0
    while at < len(lines):
        title = re.match(r"( *)repeat (\d+) times", lines[at])
        if title:
            inside = at + 1
            while inside < len(lines) and lines[inside].startswith(title[1] + "  "):
                inside += 1
            block = numbers(lines[at + 1 : inside])
            found += [n + k * len(block) for k in range(int(title[2])) for n in block]
            at = inside
        else:
            found += [int(n) for n in re.findall(r"#(\d+)", lines[at])]
            at += 1
    return found


@pytest.mark.parametrize("name", ["gpt-tiny", "moe-tiny", "ssm-tiny", "t5-tiny"])
def test_collectives_are_numbered_as_in_the_plan(name):
    model = models.build(name)
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh="data=2,model=4",
        hardware="tpu_v5e",
        tactics=[data_parallel(), *tensor_parallel(name), fsdp()],
        donate_argnums=model.donate_argnums,
    )
    lines = str(plan.spmd).splitlines()
    assert numbers(lines) == list(range(len(plan.collectives)))


def test_layers_in_a_loop_are_written_in_its_body():
    def scanned(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w) @ w.T, None), x, ws)[0]

    plan = pt.plan(
        scanned,
        array(4, 8, 8),
        array(16, 8),
        mesh="model=2",
        hardware="tpu_v5e",
        tactics=[pt.ManualPartition({"ws": 2}, axis="model")],
    )
    text = str(plan.spmd)
    assert "(4 times) : i32[], f32[16,8]" in text
    assert re.search(r"\n      b\d+ = all_reduce\(b\d+, model\) : f32\[16,8\]  #0: 512 B", text)
    assert "\n      return b" in text


def test_a_step_of_24_layers_is_written_in_some_hundred_lines_and_quickly(gpt_bench):
    b = gpt_bench(24, "data=4,model=2")
    spmd = b.spmd(
        ("batch['tokens']", 0, "data"),
        ("state['params']['ln_f']", 0, "data"),
        ("state['params']['layers'][0]['wq']", 1, "model"),
    )
    assert len(spmd.instructions) > 10_000
    start = time.process_time()
    lines = str(spmd).splitlines()
    assert time.process_time() - start < 2
    assert len(lines) < 1000
    assert sum("repeat 24 times" in line for line in lines) >= 5
    assert numbers(lines) == list(range(len(spmd.collectives)))
