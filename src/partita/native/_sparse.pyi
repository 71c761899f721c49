from typing import Any

import numpy as np
from numpy.typing import NDArray

_Integers = NDArray[np.int64]

def add_rows(
    out: NDArray[Any],
    starts: _Integers,
    columns: _Integers,
    values: NDArray[Any],
    rows: _Integers,
    factors: NDArray[Any],
    /,
) -> None: ...
def add_differences(
    out: NDArray[np.uint64],
    starts: _Integers,
    columns: _Integers,
    figures: NDArray[np.uint64],
    old: NDArray[np.int32],
    new: NDArray[np.int32],
    /,
) -> None: ...
def reach(
    found: NDArray[np.bool_],
    starts: _Integers,
    columns: _Integers,
    can: NDArray[np.bool_],
    seeds: _Integers,
    /,
) -> None: ...
