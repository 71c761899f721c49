"""`make pictures`: the pictures of the concepts, drawn from plans, into `docs/pictures/`.

The function and the plans are those of `docs/concepts.md`. Needs matplotlib, the extra `plots`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox

import partita as pt
from partita import models

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Told apart by colour-blind eyes, too, on white and on black."""
INK, SHARD, REST = "#808080", "#0072b2", "#80808030"

MESH = "data=4,model=2"
STRATEGIES: dict[str, tuple[pt.Tactic, ...]] = {
    "data parallel": (pt.ManualPartition({"x": 0}, "data"),),
    "and Megatron": (
        pt.ManualPartition({"x": 0}, "data"),
        pt.ManualPartition({"params['w1']": 1}, "model"),
    ),
    "and FSDP": (
        pt.ManualPartition({"x": 0}, "data"),
        pt.ManualPartition({"params['w1']": 1}, "model"),
        pt.ManualPartition({"params['w1']": 0, "params['w2']": 1}, "data"),
    ),
}


def predict(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The function of the concepts."""
    hidden = jax.nn.relu(x @ params["w1"])
    return hidden @ params["w2"]


def array(*shape: int) -> Any:
    """A shape, in float32."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def planned(tactics: Sequence[pt.Tactic]) -> pt.Plan:
    """A plan of the function."""
    params = {"w1": array(16, 32), "w2": array(32, 8)}
    return pt.plan(
        predict, params, array(64, 16), mesh=MESH, hardware="tpu_v5e", tactics=list(tactics)
    )


def arrays(plan: pt.Plan) -> list[tuple[str, int]]:
    """The arrays in the order in which they are drawn: their names, and which values they are."""
    program = plan.program
    named = dict(zip(program.argument_names, program.arguments, strict=True))
    first = next(op for op in program.operations if op.short == "dot_general")
    return [
        ("x", named["x"]),
        ("w1", named["params['w1']"]),
        ("hidden", first.results[0]),
        ("w2", named["params['w2']"]),
        ("result", program.results[0]),
    ]


def place(axes: Axes, shapes: Sequence[tuple[int, ...]], gap: float = 1.3) -> list[Bbox]:
    """Where rectangles for arrays lie, side by side, on axes that have room for them."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    boxes, left = [], 0.0
    for rows, columns in shapes:
        height, width = 0.5 * math.log2(rows), 0.5 * math.log2(columns)
        boxes.append(Bbox.from_bounds(left, -height / 2, width, height))
        left += width + gap
    axes.set_xlim(-0.7, left - gap + 0.7)
    axes.set_ylim(-2.5, 2.2)
    return boxes


def draw_colors(plan: pt.Plan) -> None:
    """Every dimension of every array, in the color that it has."""
    analysis = plan.done.stage.context.analysis
    shown = arrays(plan)
    _, axes = plt.subplots(figsize=(7.2, 2.4))
    shapes = [plan.program.values[value].type.shape for _, value in shown]
    for (name, value), box in zip(shown, place(axes, shapes), strict=True):
        axes.add_patch(Rectangle(box.p0, box.width, box.height, facecolor=REST))
        down, right = analysis.names.dim_colors(value)
        corners = ((box.x0, box.y0), (box.x0, box.y1), (box.x1, box.y1))
        for color, start, end in ((down, *corners[:2]), (right, *corners[1:])):
            xs, ys = zip(start, end, strict=True)
            group = analysis.groups.color_group[color]
            axes.plot(xs, ys, color=COLORS[group], linewidth=4, solid_capstyle="butt")
        rows, columns = plan.program.values[value].type.shape
        axes.text(box.x0 + box.width / 2, box.y1 + 0.12, str(columns), ha="center", color=INK)
        axes.text(box.x0 - 0.12, 0, str(rows), ha="right", va="center", color=INK)
        axes.text(box.x0 + box.width / 2, -2.3, name, ha="center", color=INK)
    save("colors")


def draw_shards() -> None:
    """Of every array the shard that one device has, under one strategy after the other."""
    _, rows = plt.subplots(len(STRATEGIES), figsize=(7.2, 2.2 * len(STRATEGIES)))
    for axes, (title, tactics) in zip(rows, STRATEGIES.items(), strict=True):
        plan = planned(tactics)
        specs = {
            "x": plan.in_shardings[1],
            "w1": plan.in_shardings[0]["w1"],
            "w2": plan.in_shardings[0]["w2"],
            "result": plan.out_shardings,
        }
        shapes = {name: plan.program.values[value].type.shape for name, value in arrays(plan)}
        boxes = place(axes, [shapes[name] for name in specs], gap=2.6)
        for (name, spec), box in zip(specs.items(), boxes, strict=True):
            draw_shard(axes, box, parts(plan, spec))
            axes.text(box.x0 + box.width / 2, -2.3, f"{name} {shown(spec)}", ha="center", color=INK)
        axes.set_title(title, color=INK, loc="left")
    save("shards")


def shown(spec: Any) -> str:
    """A spec as reports have it."""
    return f"({', '.join(str(entry or '-') for entry in (*spec, None, None)[:2])})"


def parts(plan: pt.Plan, spec: Any) -> tuple[int, int]:
    """Into how many parts a matrix is split, down and across."""
    sizes = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    down, across = (sizes.get(entry, 1) for entry in (*spec, None, None)[:2])
    return down, across


def draw_shard(axes: Axes, box: Bbox, split: tuple[int, int]) -> None:
    """An array in its parts, the first of them filled: that of the first device."""
    height, width = box.height / split[0], box.width / split[1]
    for row in range(split[0]):
        for column in range(split[1]):
            corner = (box.x0 + column * width, box.y1 - (row + 1) * height)
            mine = row == column == 0
            axes.add_patch(
                Rectangle(corner, width, height, facecolor=SHARD if mine else REST, edgecolor=INK)
            )


def draw_memory() -> None:
    """What lies in memory over a step of a small model under FSDP."""
    model = models.build("mlp")
    plan = pt.plan(
        model.fn,
        *model.args,
        mesh="data=8",
        hardware="tpu_v5e",
        tactics=[pt.FullyShardedDataParallel("data")],
        donate_argnums=model.donate_argnums,
    )
    plan.memory().picture(FOLDER / "memory.svg")


def save(name: str) -> None:
    """Writes the picture, the same bytes each time."""
    plt.savefig(
        FOLDER / f"{name}.svg", transparent=True, bbox_inches="tight", metadata={"Date": None}
    )
    plt.close()


def main() -> None:
    """Draws all of them."""
    FOLDER.mkdir(exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = "partita"
    draw_colors(planned(()))
    draw_shards()
    draw_memory()


if __name__ == "__main__":
    main()
