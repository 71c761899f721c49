"""The schedules of the PartIR paper, and how many collectives each makes by arithmetic.

"PartIR: Composing SPMD Partitioning Strategies for Machine Learning" (ASPLOS 2025) counts the
collectives of a transformer's train step, of decoding with one, of a U-Net and of a graph network
under schedules of a few tactics. This is that table as data: models of the same structure with
tiny sizes, schedules, and for every kind of collective a formula in the numbers of layers,
parameter tensors and so on, with the reason. `tools.paper` sets what is predicted and what is
compiled beside it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from partita.models import Model, build, configuration
from partita.models.decoder import Decoder
from partita.models.gns import GNSConfig
from partita.models.inference import DecoderConfig
from partita.models.strategies import data_parallel
from partita.models.unet import UNetConfig
from partita.tactics import ManualPartition, Tactic
from partita.tactics.pinned import Pinned
from partita.tactics.placement import Dims

Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model with tiny sizes, and the letters that its formulas count in."""

    name: str
    what: str
    preset: str
    mesh: str
    """Of eight devices."""
    fields: Fields
    """Of the preset's configuration, replaced."""
    small: Fields
    """Fields that make it a model of the same kind that compiles in seconds."""
    letters: Mapping[str, str]
    """What each letter counts."""
    count: Callable[[Any], tuple[int, ...]]
    """The numbers for the letters, from a configuration."""

    def sized(self, small: bool) -> Fields:
        """The fields to replace, in full or small."""
        return {**self.fields, **(self.small if small else {}), "dtype": "float32"}

    def model(self, small: bool = False) -> Model:
        """The step to plan."""
        return build(self.preset, **self.sized(small))

    def numbers(self, small: bool = False) -> dict[str, int]:
        """What each letter stands for."""
        config = configuration(self.preset, **self.sized(small))
        return dict(zip(self.letters, self.count(config), strict=True))


@dataclasses.dataclass(frozen=True)
class Count:
    """How many collectives of one kind a schedule makes, and why."""

    kind: str
    formula: str
    """A sum of products of numbers and letters: `"P + 4 L + 1"`."""
    why: str
    executed: str = ""
    """How often they run in a step, where some are inside of loops."""

    def of(self, numbers: Mapping[str, int]) -> int:
        """The number of collectives in the program."""
        return evaluate(self.formula, numbers)

    def runs(self, numbers: Mapping[str, int]) -> int:
        """The number of them that run in a step."""
        return evaluate(self.executed or self.formula, numbers)


@dataclasses.dataclass(frozen=True)
class Row:
    """A schedule for a subject, with its collectives by arithmetic; other kinds have none."""

    subject: str
    schedule: str
    tactics: tuple[Tactic, ...]
    counts: tuple[Count, ...]
    memory: int | None = None
    """Bytes that the plan may use; as much as the device has if that is None."""


def evaluate(formula: str, numbers: Mapping[str, int]) -> int:
    """The value of a sum of products of numbers and letters.

    Example:
      >>> evaluate("2 L N + 1", {"L": 32, "N": 8})
      513
    """
    terms = (term.split() for term in formula.split(" + "))
    return sum(
        math.prod(int(part) if part.isdigit() else numbers[part] for part in term) for term in terms
    )


def _transformer(config: Decoder) -> tuple[int, ...]:
    """Nine tensors a layer: two norms, four matrices of attention, three of the feed-forward."""
    return config.layers, 9 * config.layers + 2


def _decoder(config: DecoderConfig) -> tuple[int, ...]:
    return config.layers, config.new


def _unet(config: UNetConfig) -> tuple[int, ...]:
    """Residual blocks of ten tensors (norm, convolution, time, norm, convolution), skips of two,
    attentions of seven, changes of resolution of two; the time and both ends have ten."""
    c, levels = config, len(config.multipliers)
    widths = [c.channels * multiplier for multiplier in c.multipliers]
    entering = [c.channels, *widths[:-1]]
    blocks = levels * (2 * c.blocks + 1) + 2
    # On the way up all are joined with what was skipped, and so wider than what they give.
    skips = levels * (c.blocks + 1) + sum(a != b for a, b in zip(entering, widths, strict=True))
    attended = sum(c.image >> level in c.attention for level in range(levels))
    attentions = attended * (2 * c.blocks + 1) + 1
    resamples = 2 * (levels - 1)
    parameters = 10 * blocks + 2 * skips + 7 * attentions + 2 * resamples + 10
    return parameters, parameters - 1, 2 * blocks + skips + resamples + 1


def _graph(config: GNSConfig) -> tuple[int, ...]:
    return config.steps, 2 * (config.hidden_layers + 1) + 2


_DECODER: Fields = {
    "layers": 32,
    "batch": 16,
    "prompt": 8,
    "new": 8,
    "embed": 16,
    "heads": 2,
    "head_dim": 8,
    "ffn": 32,
    "vocabulary": 64,
}
_DECODER_LETTERS = {"L": "layers", "N": "tokens generated"}

SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(
            "T32",
            "train step of a 32-layer transformer, unrolled",
            "gemma-tiny",
            "data=4,model=2",
            {
                "layers": 32,
                "scan": False,
                "kv_heads": 2,
                "group": None,
                "batch": 8,
                "sequence": 8,
                "embed": 16,
                "head_dim": 8,
                "ffn": 32,
                "vocabulary": 64,
            },
            {"layers": 2},
            {
                "L": "layers",
                "P": "parameter tensors: 9 of each layer, the tied embedding, the last norm",
            },
            _transformer,
        ),
        Subject(
            "IT32",
            "decoding with a 32-layer transformer, layers and tokens in loops",
            "decode-tiny",
            "data=4,model=2",
            _DECODER,
            {"layers": 2},
            _DECODER_LETTERS,
            _decoder,
        ),
        Subject(
            "IT32, multi-query",
            "the same with one key/value head",
            "decode-mq-tiny",
            "data=4,model=2",
            _DECODER,
            {"layers": 2},
            _DECODER_LETTERS,
            _decoder,
        ),
        Subject(
            "UNet",
            "train step of a U-Net",
            "unet-tiny",
            "data=8",
            {"image": 8, "channels": 8, "groups": 4, "heads": 2, "attention": (4,)},
            {"multipliers": (1,), "attention": ()},
            {
                "P": "parameter tensors",
                "D": "those with a dimension that 8 divides: all but the bias of the 3 channels "
                "of an image",
                "C": "convolutions with a way back: all but the first",
            },
            _unet,
        ),
        Subject(
            "GNS",
            "train step of a graph network",
            "gns-tiny",
            "data=8",
            {"steps": 24},
            {"steps": 2},
            {
                "S": "message passing steps",
                "T": "parameter tensors of a perceptron and the norm behind it",
            },
            _graph,
        ),
    )
}
"""Models by the names of their rows."""

BP = data_parallel()
"""The batch along `data`."""

CACHED_BP = ManualPartition({"batch*": 0, "*['cache']*": 1}, axis="data")
"""The batch along `data`, that of the key/value cache as well."""

MP = ManualPartition(
    {"*['params']*['wq']": -2, "*['params']*['wo']": -3, "*['params']*['w_gate']": -1},
    axis="model",
)
"""Heads and the hidden layer along `model`, as in Megatron."""

_FREE: Dims = (1, 2, 3, 0)

Z2 = ManualPartition({"*['params']*": "replicate", "*.mu*": _FREE, "*.nu*": _FREE}, axis="data")
"""Both moments of Adam along `data`, parameters replicated."""

Z3 = ManualPartition({"*['params']*": _FREE}, axis="data")
"""Parameters along `data`, and the moments with them."""

EMB = ManualPartition({"*['params']['embed']": 1}, axis="model")
"""The embedding along `model` in the model dimension, and the activations with it."""

MQ = Pinned(
    ManualPartition({"*['cache']*": 1}, axis="model"), at=("queries", "keys", "values", "mixed")
)
"""The batch of the key/value cache, and of attention, along `model`."""

ES = ManualPartition({"batch['edges']": 0, "batch['senders']": 0, "batch['receivers']": 0}, "data")
"""The edges of the graph along `data`."""

LITTLE = 1000
"""Bytes of memory that are never enough: what can be gathered again is."""

_GRADIENTS = "the gradient of every parameter is a sum over the batch"
_SCATTERED = "the gradient of every parameter: a sum over the batch, of which a shard is needed"
_MEGATRON = "a sum behind attention and behind the feed-forward, on the way forward and back"
_EMB_SUMS = (
    "the norms (two of each layer and the last) forward and back, and the logits, sum over what is "
    "split"
)
_GATHERED = "every parameter, before its first use; the copy is kept for the way back"
_DECODED = (
    "a sum behind attention and behind the feed-forward, in the loops over the layers of the "
    "prompt and of a token"
)

ROWS = (
    Row("T32", "BP", (BP,), (Count("all_reduce", "P + 1", f"{_GRADIENTS}; and the loss"),)),
    Row("T32", "MP", (MP,), (Count("all_reduce", "4 L", _MEGATRON),)),
    Row(
        "T32",
        "BP+MP",
        (BP, MP),
        (Count("all_reduce", "P + 1 + 4 L", "what BP and MP make, each along its axis"),),
    ),
    Row(
        "T32",
        "BP+MP+Z2",
        (BP, MP, Z2),
        (
            Count("all_gather", "P", "every updated parameter: the update runs on shards"),
            Count("all_reduce", "1 + 4 L", "the loss; and those of MP"),
            Count("reduce_scatter", "P", _SCATTERED),
        ),
    ),
    Row(
        "T32",
        "BP+MP+Z3",
        (BP, MP, Z3),
        (
            Count("all_gather", "P", _GATHERED),
            Count("all_reduce", "1 + 4 L", "the loss; and those of MP"),
            Count("reduce_scatter", "P", _SCATTERED),
        ),
    ),
    Row(
        "T32",
        "BP+MP+Z3, little memory",
        (BP, MP, Z3),
        (
            Count(
                "all_gather",
                "2 P + 1",
                "every parameter on the way forward and on the way back; the tied embedding also "
                "for the logits",
            ),
            Count("all_reduce", "1 + 4 L", "the loss; and those of MP"),
            Count("reduce_scatter", "P", _SCATTERED),
        ),
        memory=LITTLE,
    ),
    Row(
        "T32",
        "BP+MP+EMB+Z3",
        (BP, MP, EMB, Z3),
        (
            Count(
                "all_gather",
                "P + 4 L",
                "every parameter; and activations before attention and feed-forward, on the way "
                "back their gradients",
            ),
            Count("all_reduce", "1 + 4 L + 3", f"the loss; and {_EMB_SUMS}"),
            Count(
                "reduce_scatter",
                "P + 4 L",
                "the gradient of every parameter; and the sums of MP, of which a shard is needed",
            ),
        ),
    ),
    Row(
        "T32",
        "BP+MP+Z3+EMB",
        (BP, MP, Z3, EMB),
        (
            Count("all_gather", "P + 4 L", "as in the row before"),
            Count("all_reduce", "1 + 4 L + 3", "as in the row before"),
            Count("reduce_scatter", "P + 4 L", "as in the row before"),
            Count(
                "collective_permute",
                "2 L + 2",
                "the gradients of the norms and of the embedding, whose one dimension is cut along "
                "model first, and along data first where they are needed",
            ),
        ),
    ),
    Row(
        "T32",
        "EMB",
        (EMB,),
        (
            Count(
                "all_reduce",
                "11 L + 3",
                "all products that sum over the model dimension: queries, keys, values, gate and "
                "up forward, those before the output projections back, two norms forward and back; "
                "the last norm twice, and the logits",
            ),
        ),
    ),
    Row("IT32", "BP", (CACHED_BP,), ()),
    Row("IT32", "MP", (MP,), (Count("all_reduce", "4", _DECODED, executed="2 L N"),)),
    Row(
        "IT32",
        "BP+MP",
        (CACHED_BP, MP),
        (Count("all_reduce", "4", _DECODED, executed="2 L N"),),
    ),
    Row(
        "IT32, multi-query",
        "MQ",
        (MQ,),
        (
            Count(
                "all_gather",
                "2",
                "what comes out of attention; what goes in is replicated, and cut",
                executed="L N",
            ),
        ),
    ),
    Row(
        "IT32, multi-query",
        "MQ+MP",
        (MQ, MP),
        (
            Count("all_reduce", "4", _DECODED, executed="2 L N"),
            Count(
                "all_to_all",
                "4",
                "queries from heads to batch before attention, what comes out back to heads",
                executed="2 L N",
            ),
        ),
    ),
    Row(
        "IT32, multi-query",
        "BP+MQ+MP",
        (CACHED_BP, MQ, MP),
        (
            Count("all_reduce", "4", _DECODED, executed="2 L N"),
            Count(
                "all_to_all",
                "4",
                "queries from heads to batch before attention, what comes out back to heads",
                executed="2 L N",
            ),
        ),
    ),
    Row("UNet", "BP", (BP,), (Count("all_reduce", "P + 1", f"{_GRADIENTS}; and the loss"),)),
    Row(
        "UNet",
        "BP+Z2",
        (BP, Z2),
        (
            Count("all_gather", "D", "every updated parameter"),
            Count("all_reduce", "2", "the loss; and the gradient of the bias that is not split"),
            Count("reduce_scatter", "D", _SCATTERED),
        ),
    ),
    Row(
        "UNet",
        "BP+Z3",
        (BP, Z3),
        (
            Count(
                "all_gather",
                "D + C",
                "every parameter; and the kernels of convolutions once more for the way back, "
                "where they are turned around",
            ),
            Count("all_reduce", "2", "the loss; and the gradient of the bias that is not split"),
            Count("reduce_scatter", "D", _SCATTERED),
        ),
    ),
    Row(
        "GNS",
        "ES",
        (ES,),
        (
            Count(
                "all_reduce",
                "3 S + S T + T",
                "in each step edges are summed up at their receivers, and on the way back at both "
                "ends; and the gradients of perceptrons over edges, one in each step and the "
                "encoder's, are sums over edges",
            ),
        ),
    ),
)
"""The table: subjects and schedules, in the order in which they are shown."""
