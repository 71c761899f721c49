import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]

def pass_messages(
    upward: bool,
    first: _Integers,
    nodes: _Floats,
    ends: _Integers,
    start: _Integers,
    costs: _Floats,
    after_start: _Integers,
    after: _Integers,
    before_start: _Integers,
    before: _Integers,
    forward_start: _Integers,
    forward: _Floats,
    backward_start: _Integers,
    backward: _Floats,
    choices: _Integers,
    /,
) -> float: ...
