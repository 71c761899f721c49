"""XLA's TPU compiler (libtpu)."""

from __future__ import annotations

from partita.cost.compilers.base import NONE, Compiler, Rule, figure
from partita.program.collectives import COLLECTIVE_PERMUTE

_PROGRAMS = (
    "the programs that XLA's TPU compiler makes for v5e and v5p of the models of make accuracy "
    "(libtpu 0.0.52; assumption: the same on other TPUs)"
)
_LAYOUTS = "the layouts in programs that XLA's TPU compiler prints: T(8,128)"

COMPILER = Compiler(
    "xla_tpu",
    "XLA's TPU compiler",
    (
        Rule(
            "fused products",
            "computes elementwise operations in the kernels of products, before and after them",
            _PROGRAMS,
            "2026-11-28",
            sets={"kernels.fuse_products": True},
            off={"kernels.fuse_products": False},
        ),
        Rule(
            "rows in kernels",
            "goes on with a product whose rows it reduces, as in a softmax, in the same kernel",
            _PROGRAMS,
            "2026-11-28",
            sets={
                "kernels.longest_row": figure(
                    1536,
                    f"{_PROGRAMS}: kernels of products go on with rows of 196, 1024 and 1088 "
                    "elements in softmaxes, and not of 2048; the limit, somewhere between, is an "
                    "assumption",
                )
            },
            off={"kernels.longest_row": NONE},
        ),
        Rule(
            "stored quotients",
            "stores quotients of whole arrays before products read them, on v5p",
            _PROGRAMS,
            "2026-11-28",
            stated=("kernels.not_before_products",),
        ),
        Rule(
            "tiles of memory",
            "stores arrays in tiles, padded",
            _LAYOUTS,
            "2026-11-28",
            sets={
                "tile.rows": figure(8, f"{_LAYOUTS}, and fewer rows for small arrays"),
                "tile.columns": figure(128, _LAYOUTS),
            },
            off={
                "tile.rows": NONE,
                "tile.columns": NONE,
            },
        ),
        Rule(
            "copied layers",
            "copies layers that loops cut out of stacks and write back, tile by tile",
            "tests/verify/test_copies.py",
            "2026-11-29",
            stated=("vector_unit",),
            accuracy="decode on v6e: 312 ms for a plan whose caches lie in tiles that are a "
            "quarter full, 94 ms for others",
        ),
        Rule(
            "synchronous collectives",
            "waits for all kinds of collectives but these",
            _PROGRAMS,
            "2026-11-28",
            sets={"overlapped": [COLLECTIVE_PERMUTE.name]},
        ),
        Rule(
            "overlap window",
            "hides a collective only behind many operations",
            "assumption",
            "2026-11-28",
            sets={
                "overlap_window": figure(
                    48,
                    "assumption: as many operations take long enough to hide a collective; the "
                    "same number as regather_window",
                )
            },
            off={"overlap_window": NONE},
        ),
        Rule(
            "early gathers",
            "starts gathers two products before their first use, where gathers overlap",
            _PROGRAMS,
            "2026-11-28",
            sets={
                "prefetch": figure(
                    2,
                    "fitted to the programs of make accuracy (libtpu 0.0.52): with 1, small "
                    "products, those of decode, hide less than XLA's TPU compiler has them do; for "
                    "the larger ones of the other models, 1 or 2 makes no difference; "
                    "assumption: the same on other TPUs than v5e and v5p",
                )
            },
            off={"prefetch": NONE},
        ),
        Rule(
            "combined sums",
            "combines small sums that do not depend on each other",
            "tests/cost/test_combining.py",
            "2026-11-29",
            sets={
                "combine": figure(
                    31457287,
                    "assumption: that of XLA's GPU compiler; the TPU compiler's is not public",
                )
            },
            off={"combined": ()},
        ),
    ),
    {
        "source": "overlapped: as XLA's TPU compiler has it by default in the programs of make "
        "accuracy (libtpu 0.0.52)",
        "kernels.source": f"{_PROGRAMS}: fusions of products compute elementwise operations",
    },
)
