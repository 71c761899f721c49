"""`Megatron`: the widths inside the layers are sharded: heads, hidden units, vocabulary.

Only the matrices that make a width are named; the one that takes it up again, biases, gradients and
optimizer state follow, as the width is one color.

*Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism*,
arXiv 1909.08053.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from partita.decisions import Request, Stage
from partita.errors import TacticError
from partita.program.names import path, pattern
from partita.tactics.options import check
from partita.tactics.parts import Patterns, arguments, learned, matched
from partita.tactics.placement import place, place_named
from partita.tactics.products import DimPurpose, dims_for
from partita.tactics.protocol import Outcome
from partita.tiling.fused import holds_parts


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


QUERIES = _names("wq q query q_proj query_proj to_q")
KEYS = _names("wk k key k_proj key_proj to_k wv v value v_proj value_proj to_v")
FUSED = _names("c_attn qkv qkv_proj query_key_value wqkv Wqkv w_qkv to_qkv in_proj gate_up_proj")
HIDDEN = _names(
    """w_in w_up w_gate w1 w3 wi wi_0 wi_1 up gate up_proj gate_proj fc1 fc_in c_fc intermediate
    shared_up shared_gate"""
)
EMBEDDINGS = _names("embed embedding embeddings embed_tokens tok_embeddings wte token_embedder")
OUTPUTS = _names("output lm_head unembed unembedding logits_dense")

_INNER = _names("kernel w weight embedding")
"""Names that libraries give the array inside of a named layer."""


@dataclasses.dataclass(frozen=True)
class Megatron:
    """Shards heads, hidden units and the vocabulary along an axis.

    Args:
      axis: name of the mesh axis.
      patterns: the matrices that make a width (queries, keys, values, the first of a feed-forward),
        each sharded in the first dimension of its own, as the product that it goes into has it; or
        a dict with dimensions, as `ManualPartition` takes it. By default they are known by the
        names that libraries give them, see `QUERIES`, `KEYS`, `FUSED`, `HIDDEN`, `EMBEDDINGS` and
        `OUTPUTS`. Projections fused in one matrix count where its parts are equal.
      vocabulary: whether embeddings and output projections are known by their names, too.

    Example:
      >>> Megatron().name
      'Megatron(model)'
    """

    axis: str = "model"
    patterns: Patterns | None = None
    vocabulary: bool = True

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"Megatron({self.axis})"

    def apply(self, stage: Stage) -> Outcome:
        """Finds the widths, seeds them and propagates the axis from there."""
        axis = stage.context.mesh.axis(self.axis)
        if isinstance(self.patterns, Mapping):
            return place_named(stage, self.patterns, axis)
        found = list(widths(self, stage))
        if not found:
            raise TacticError(
                f"{self.name}: no matrix of {stage.context.analysis.program.name} that makes "
                "heads, hidden units or a vocabulary is called as usual (wq, q_proj, query, w_in, "
                "up_proj, fc1, embed, lm_head, ...); say which do, as in "
                """patterns=["*['w1']"], or with their dimensions, {"*['w1']": 1}. """
                f"{arguments(stage.context.analysis.program)}"
            )
        requests = [request for request, _ in found]
        return dataclasses.replace(place(stage, requests, axis), decisions=_decisions(found))


def widths(tactic: Megatron, stage: Stage) -> Iterator[tuple[Request, str]]:
    """The matrices with the dimension to shard, and what it is."""
    program = stage.context.analysis.program
    if tactic.patterns is not None:
        for name, value in matched(program, tactic.patterns):
            yield from _width(stage, name, value, "a width", "own")
        return
    named = [(name, value, _title(name)) for name, value in learned(program)]
    heads = set()
    for name, value, title in named:
        if title in QUERIES:
            for request, what in _width(stage, name, value, "heads", "own"):
                heads.add(_color(stage, request))
                yield request, what
    for name, value, title in named:
        if title in KEYS:  # those of multi-query attention have no heads
            found = _width(stage, name, value, "heads", "own")
            yield from (
                (request, what) for request, what in found if _color(stage, request) in heads
            )
        elif title in FUSED:
            found = _width(stage, name, value, "fused projections", "own")
            graph = stage.context.single.graph
            yield from (
                (request, what)
                for request, what in found
                if holds_parts(graph, value, request.dims[0])
            )
        elif title in HIDDEN:
            yield from _width(stage, name, value, "hidden units", "own")
        elif tactic.vocabulary and title in EMBEDDINGS:
            yield from _width(stage, name, value, "vocabulary", "looked up", "summed")
        elif tactic.vocabulary and title in OUTPUTS:
            yield from _width(stage, name, value, "vocabulary", "own")


def _title(name: str) -> str:
    """The part of a path that says what a parameter is; none of positions and attention outputs."""
    parts = path(name)
    title = parts[-2] if parts[-1] in _INNER and len(parts) > 1 else parts[-1]
    if parts[-1] == "embedding" and title not in EMBEDDINGS:
        title = parts[-1]
    positions = any("pos" in part or part == "wpe" for part in parts)
    attention = any("att" in part for part in parts)
    if (title in EMBEDDINGS and positions) or (title in OUTPUTS and attention):
        return ""
    return title


def _width(
    stage: Stage, name: str, value: int, what: str, *wanted: DimPurpose
) -> list[tuple[Request, str]]:
    """A request for the first dimension that is for some purpose, if there is one."""
    dims = list(dims_for(stage.context.analysis, value, *wanted))
    return [(Request(name, value, (dims[0],), unless_used=True), what)] if dims else []


def _color(stage: Stage, request: Request) -> int:
    """The color group of the dimension requested."""
    return stage.context.analysis.value_colors(request.value)[request.dims[0]]


def _decisions(widths: Sequence[tuple[Request, str]]) -> tuple[str, ...]:
    """Describes which argument was taken for which part, repeated structure once."""
    said = (f"{pattern(request.name)} dim {request.dims[0]} as {what}" for request, what in widths)
    return tuple(dict.fromkeys(said))
