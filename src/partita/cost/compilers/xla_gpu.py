"""XLA's GPU compiler, with the scheduler that it has by default since Hopper."""

from __future__ import annotations

from partita.cost.compilers.base import NONE, Compiler, Rule, figure
from partita.program.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER

_KERNELS = "tests/verify/test_gpu_kernels.py"
_LOOPS = "tests/verify/test_loop_schedules.py"

COMPILER = Compiler(
    "xla_gpu",
    "XLA's GPU compiler",
    (
        Rule(
            "library products",
            "calls a library for products, which reads operands from memory and adds one array",
            _KERNELS,
            "2026-11-29",
            sets={"kernels.library_products": True, "kernels.fuse_products": False},
            off={"kernels.fuse_products": False},
        ),
        Rule(
            "scatters apart",
            "runs every scatter as a kernel of its own, which changes its target in place",
            _KERNELS,
            "2026-11-29",
            sets={"kernels.scatters_apart": True},
        ),
        Rule(
            "costly operations once",
            "stores what takes long to compute, instead of computing it in every reader",
            _KERNELS,
            "2026-11-29",
            sets={
                "kernels.costly": [
                    *("tanh", "sine", "cosine", "tan", "power"),
                    *("log_plus_one", "exponential_minus_one", "cbrt"),
                ]
            },
            accuracy="llama under FSDP on 8 B200: peak 17 % too low without exponentials",
        ),
        Rule(
            "padded rows",
            "takes several kernels for a softmax of rows that are mostly padding, on Blackwell",
            _KERNELS,
            "2026-11-29",
            stated=("kernels.row_filled",),
            accuracy="decode on 8 B200: peak 25 % too low without",
        ),
        Rule(
            "zeros first",
            "writes what is made from nothing, and stored, first of all",
            _KERNELS,
            "2026-11-29",
            sets={"kernels.zeros_first": True},
        ),
        Rule(
            "layers converted apart",
            "converts layers that a loop reads in a narrower type one by one in the loop",
            _KERNELS,
            "2026-11-29",
            sets={"kernels.layers_apart": True},
        ),
        Rule(
            "stacks relaid out",
            "relays out stacks before loops that gather layers along an inner dimension",
            _KERNELS,
            "2026-11-29",
            sets={"kernels.gathers_outermost": True},
        ),
        Rule(
            "late sums in loops",
            "reduce-scatters the gradient of a layer in the next iteration",
            _KERNELS,
            "2026-11-29",
            sets={"kernels.late_in_loops": [REDUCE_SCATTER.name]},
        ),
        Rule(
            "bfloat16 widened",
            "computes in float32 where there is no bfloat16 arithmetic, and stores it so",
            _KERNELS,
            "2026-11-29",
            stated=("kernels.widens_bf16",),
        ),
        Rule(
            "buffers held longer",
            "keeps more alive since Hopper, to have more to overlap collectives with",
            "python -m tools.accuracy --topology h100:8, with and without "
            "xla_gpu_enable_analytical_sol_latency_estimator",
            "2026-11-29",
            stated=("kernels.held_longer",),
        ),
        Rule(
            "synchronous gathers",
            "waits for gathers before Hopper",
            f"the programs that XLA's GPU compiler makes for A100 (jax 0.10.2), {_LOOPS}",
            "2026-11-28",
            stated=("overlapped",),
        ),
        Rule(
            "part of a loop",
            "hides collectives of a loop behind a part of the work of an iteration",
            f"compiled schedules on H100 and A100 (jax 0.10.2), {_LOOPS}",
            "2026-11-29",
            stated=("loop_overlap",),
        ),
        Rule(
            "share hidden",
            "hides a part of the time of collectives that could be hidden; searches count it",
            "python -m tools.accuracy: compiled schedules, weighted by time",
            "2026-11-29",
            stated=("hidden_share",),
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
            "starts gathers two products before their first use",
            "assumption",
            "2026-11-28",
            sets={"prefetch": figure(2, "assumption: as on TPU v5e")},
            off={"prefetch": NONE},
        ),
        Rule(
            "combined collectives",
            "combines small collectives that do not depend on each other",
            "the programs that XLA's GPU compiler makes of the models of make accuracy",
            "2026-11-29",
            sets={
                "combined": [ALL_GATHER.name, ALL_REDUCE.name, REDUCE_SCATTER.name],
                "combine": figure(
                    31457287,
                    "XLA, xla/service/collective_utils.h: kDefaultAllReduceCombineThreshold, the "
                    "default of xla_gpu_all_reduce_combine_threshold_bytes",
                ),
            },
            off={"combined": ()},
        ),
    ),
    {
        "source": "combined: the programs that XLA's GPU compiler makes of the models of make "
        "accuracy (jax 0.10.2)",
        "kernels.source": "the programs that XLA's GPU compiler makes, each by an experiment in "
        "tests/verify/test_gpu_kernels.py (jax-cuda12-plugin 0.10.2)",
    },
)
