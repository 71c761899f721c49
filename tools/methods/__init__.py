"""Methods of search, compared on the same cost model at equal budgets: those that plans can name,
and further ones that they have to beat."""

from partita.search import ALGORITHMS, SearchAlgorithm
from tools.methods import annealing, automap, relaxed, sampling

METHODS: dict[str, SearchAlgorithm] = {
    **ALGORITHMS,
    "annealing": annealing.search,
    "automap": automap.search,
    "random": sampling.search,
    "relaxed": relaxed.search,
}
