"""Lower bounds: what no plan of a problem takes less than."""

from partita.search.bounds.bound import Bound, lower_bound

__all__ = ["Bound", "lower_bound"]
