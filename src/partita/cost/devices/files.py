"""Hardware files: the known device types, and reading and writing of their files.

The device types that partita knows are in the folder `device_types`, one TOML file each; users
write their own in the same form. What a file does not state is as its compiler has it.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from partita import files
from partita.cost.compilers import compiler
from partita.cost.devices.hardware import PLAIN, Hardware
from partita.cost.devices.schema import Figure
from partita.errors import HardwareError, closest
from partita.options import wrong

FOLDER = Path(__file__).parent / "device_types"
"""Folder with the files of `device_types()`."""

MOST = 2**14
"""Bytes that a hardware file may have."""


def device_types() -> tuple[str, ...]:
    """Returns the device types that partita knows, sorted by name.

    Example:
        >>> "tpu_v5e" in device_types()
        True
    """
    return tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))


def device_type_of(device_kind: str) -> str | None:
    """Returns the device type that JAX calls `device_kind`; None if no file says so.

    Example:
        >>> device_type_of("TPU v5 lite")
        'tpu_v5e'
    """
    for name in device_types():
        pattern = load(name).device_kind
        if pattern and re.search(pattern, device_kind, re.IGNORECASE):
            return name
    return None


def load(name_or_path: str | os.PathLike[str] | Hardware) -> Hardware:
    """Loads the hardware of a known device type, or of a TOML file that the user wrote.

    Args:
        name_or_path: one of `device_types()`; a path that ends in `.toml`; or a `Hardware`, which
            is returned as it is.

    Raises:
        HardwareError: an unknown device type, or a file that is missing, not TOML, or not of the
            form that `Hardware` declares.

    Example:
        >>> load("tpu_v5e").memory.value  # bytes
        16911433728.0
    """
    if isinstance(name_or_path, Hardware):
        return name_or_path
    if not isinstance(name_or_path, str | os.PathLike):
        raise wrong(
            "hardware",
            name_or_path,
            "a device type, a path ending in .toml, or Hardware",
            HardwareError,
        )
    name = os.fspath(name_or_path)
    if name.endswith(".toml"):
        return _load_file(Path(name))
    known = device_types()
    if name not in known:
        raise HardwareError(
            f"unknown device type {name!r}{closest(name, known)}\n"
            f"known device types: {', '.join(known)}\n"
            "a path ending in .toml, to a file of your own, also works"
        )
    return _known(FOLDER / f"{name}.toml")


@functools.cache
def _known(file: Path) -> Hardware:
    return _load_file(file)


def _load_file(path: Path) -> Hardware:
    try:
        text = files.read(path, MOST).decode()
    except OSError as error:
        reason = error.strerror or str(error)
        raise HardwareError(f"cannot read the hardware file {str(path)!r}: {reason}") from error
    except UnicodeDecodeError as error:
        raise HardwareError(
            f"the hardware file {str(path)!r} is not UTF-8 text: {error}"
        ) from error
    return decode(text, path.stem, where=str(path))


def decode(text: str, name: str, where: str) -> Hardware:
    """Parses the text of a hardware file.

    Args:
        text: TOML.
        name: what to call it.
        where: the file is, for messages.

    Raises:
        HardwareError: it is not TOML, or not of the form that `Hardware` declares.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HardwareError(f"the hardware file {where!r} is not valid TOML: {error}") from error
    except RecursionError:
        raise HardwareError(f"the hardware file {where!r} is nested too deeply") from None
    if "name" in table:
        raise HardwareError(
            f"the hardware file {where!r} has a field `name`; remove it, the file name is the name"
        )
    try:
        rules = compiler(str(table.get("compiler", PLAIN))).table()
    except HardwareError as error:
        raise HardwareError(f"the hardware file {where!r} is not valid: {error}") from error
    try:
        return msgspec.convert({"name": name, **_merged(rules, table)}, Hardware)
    except msgspec.ValidationError as error:
        problem = _with_dtype(str(error), table).replace("`$.", "`")
        raise HardwareError(f"the hardware file {where!r} is not valid: {problem}") from error


def _merged(defaults: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a table with defaults for what it does not state; a figure is stated as a whole."""
    found = {**defaults, **table}
    for key, value in defaults.items():
        stated = table.get(key)
        if isinstance(value, dict) and isinstance(stated, dict) and "value" not in value:
            found[key] = _merged(value, stated)
    return found


def _with_dtype(problem: str, table: dict[str, Any]) -> str:
    """Returns `problem` with the element type it is about, which msgspec writes as `[...]`."""
    if "$.peak_flops[...]" not in problem:
        return problem
    for dtype, figure in table["peak_flops"].items():
        try:
            msgspec.convert(figure, Figure)
        except msgspec.ValidationError:
            return problem.replace("[...]", f".{dtype}")
    return problem


def encode(hardware: Hardware) -> str:
    """Returns the text of a hardware file, without default values and those of its compiler."""
    stated = _deviating(hardware, compiler(hardware.compiler).table())
    del stated["name"]  # the file's
    return "\n".join(_lines(stated, "")) + "\n"


def _stated(value: Any) -> Any:
    """Returns a table as plain data, without default values."""
    if isinstance(value, msgspec.Struct):
        fields = [(f, getattr(value, f.name)) for f in msgspec.structs.fields(value)]
        return {f.name: _stated(each) for f, each in fields if each not in (f.default, _made(f))}
    if isinstance(value, dict):
        return {key: _stated(each) for key, each in value.items()}
    return [_stated(each) for each in value] if isinstance(value, tuple) else value


def _deviating(table: msgspec.Struct, rules: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a table as plain data, without what a compiler's rules say."""
    found = _stated(table)
    for name, rule in rules.items():
        value = getattr(table, name)
        if isinstance(rule, dict) and "value" not in rule:
            found[name] = _deviating(value, rule)
        elif name != "compiler":
            found[name] = msgspec.json.decode(msgspec.json.encode(value))
    same = {name for name, value in found.items() if value == {} or value == rules.get(name)}
    return {name: value for name, value in found.items() if name not in same - {"compiler"}}


def _made(field: msgspec.structs.FieldInfo) -> Any:
    """Returns the default that is created for each table, if the field has one."""
    made = field.default_factory
    return made() if callable(made) else msgspec.NODEFAULT


def _lines(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yields the lines of a table: first its own values, then the tables in it."""
    inner = {key: tables for key, value in table.items() if (tables := _tables(value))}
    yield from (f"{key} = {_scalar(table[key])}" for key in table if key not in inner)
    for key, tables in inner.items():
        several = isinstance(table[key], list)
        for each in tables:
            yield from ("", f"[[{path}{key}]]" if several else f"[{path}{key}]")
            yield from _lines(each, f"{path}{key}.")


def _tables(value: Any) -> list[dict[str, Any]]:
    """Returns the tables that a value holds; empty for a plain value."""
    found = value if isinstance(value, list) else [value]
    return [each for each in found if isinstance(each, dict)]


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and value < 2**53 else repr(value)
    return json.dumps(value, ensure_ascii=False)
