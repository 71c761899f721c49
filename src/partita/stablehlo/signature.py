"""Names of a function's arguments and results, and its donated arguments, read from the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partita.errors import UnsupportedError
from partita.program.ir import TensorType
from partita.stablehlo import mlir, offload

_DONATED = "tf.aliasing_output"


def argument_names(main: Any, arguments: Any) -> list[str]:
    """Returns names from locations or attributes; only the first of several equal ones keeps it."""
    infos = mlir.attributes_of(main, "arg_attrs", len(arguments))
    given = [
        getattr(argument.location, "name_str", "") or _text(info, "jax.arg_info")
        for argument, info in zip(arguments, infos, strict=True)
    ]
    names: dict[str, None] = {}
    taken = set(given)
    for i, name in enumerate(given):
        if not name or name in names:
            name = f"arg{i}"
            while name in taken or name in names:
                name += "_"
        names[name] = None
    return list(names)


def result_names(main: Any, count: int) -> list[str]:
    """Returns names from attributes; numbers where there are none."""
    infos = mlir.attributes_of(main, "res_attrs", count)
    names = [_text(info, "jax.result_info") for info in infos]
    return [name or (f"result[{i}]" if count > 1 else "result") for i, name in enumerate(names)]


def aliases(
    main: Any, arguments: Sequence[TensorType], results: Sequence[TensorType]
) -> dict[int, int]:
    """Returns the result that reuses the buffer of each donated argument, matched by type.

    Raises:
      UnsupportedError: an argument is donated to a result that cannot have its buffer.
    """
    infos = mlir.attributes_of(main, "arg_attrs", len(arguments))
    known: dict[int, int] = {}
    for i, info in enumerate(infos):
        if _DONATED in info:
            number: Any = getattr(info[_DONATED], "value", None)
            if wrong := _misfit(number, arguments[i], results, known):
                raise UnsupportedError(
                    f"argument {i} of the program is donated to result {info[_DONATED]} "
                    f"({_DONATED}), but {wrong}; take the attribute away, or correct it"
                )
            known[i] = number
    there = offload.hosted(main, "arg_attrs", len(arguments))
    made = offload.hosted(main, "res_attrs", len(results))
    return donate(
        [i for i, info in enumerate(infos) if "jax.buffer_donor" in info],
        [(type_, there.get(number)) for number, type_ in enumerate(arguments)],
        [(type_, made.get(number)) for number, type_ in enumerate(results)],
        known,
    )


def _misfit(
    number: Any, argument: TensorType, results: Sequence[TensorType], known: Mapping[int, int]
) -> str:
    """Why an argument cannot be donated to a result; empty if it can."""
    if type(number) is not int or not 0 <= number < len(results):
        return f"it has {len(results)} of them"
    if results[number].bytes != argument.bytes:
        return f"that is a {results[number]}, and the argument a {argument}"
    if number in known.values():
        return "another argument is donated to that, too"
    return ""


def donate(
    donors: Sequence[int],
    arguments: Sequence[tuple[TensorType, str | None]],
    results: Sequence[tuple[TensorType, str | None]],
    known: Mapping[int, int],
) -> dict[int, int]:
    """Returns the result that reuses the buffer of each donated argument.

    That is the first result of the same type and memory; memory is None for that of the device.
    """
    found = dict(known)
    waiting = [donor for donor in donors if donor not in found]
    for number, type_ in enumerate(results):
        donor = next((d for d in waiting if arguments[d] == type_), None)
        if donor is not None and number not in known.values():
            waiting.remove(donor)
            found[donor] = number
    return found


def _text(attributes: Any, key: str) -> str:
    return str(attributes[key].value) if key in attributes else ""
