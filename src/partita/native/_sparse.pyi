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
