"""Built-in models, sized by presets; and models from a user's files.

A family is one file with `PRESETS`, which are configurations, and a `MODEL` that takes these, a
`training.Definition`. All decoders are one model, `decoder.py`, and their files have presets only.
Adding a family is adding its file to `FAMILIES`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from partita.errors import ModelError, closest
from partita.frontend.files import SUFFIXES, read
from partita.models import sizes as sizes

FAMILIES = (
    "gpt",
    "mlp",
    "llama",
    "gemma",
    "moe",
    "vit",
    "unet",
    "gns",
    "inference",
    "resnet",
    "ssm",
    "t5",
    "gemma2",
    "qwen3",
    "gpt_oss",
    "deepseek",
    "whisper",
    "vit22b",
    "dit",
    "sdxl",
)
"""Modules of this package that hold models."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A function to plan, with abstract arguments."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    example: Callable[[int], tuple[Any, ...]] | None = None
    """Makes concrete arguments from a seed, where the model knows how."""
    example_batch: Callable[[int], Any] | None = None
    """The last of them alone."""


def names() -> tuple[str, ...]:
    """The presets of all built-in models."""
    return tuple(name for found in FAMILIES for name in presets(found))


def presets(family: str) -> tuple[str, ...]:
    """The presets of one family."""
    return tuple(_module(family).PRESETS)


def description(family: str) -> str:
    """What a family is, in a line."""
    text = inspect.getdoc(_module(family)) or ""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".")


def build(name: str, **changes: Any) -> Model:
    """The train step of a built-in model.

    Args:
      name: a preset, one of `names()`.
      **changes: fields of the preset's configuration, or of its parts, to replace (`layers=4`,
        `dtype="float32"`).

    Raises:
      ModelError: no such preset, or no such field.
    """
    model = _module(family(name)).MODEL
    return _build(model, name, configuration(name, **changes))


def configuration(name: str, **changes: Any) -> Any:
    """The configuration that `build` makes a model of."""
    preset = _module(family(name)).PRESETS[name]
    fields = set(_fields(preset))
    for field in changes:
        if field not in fields:
            raise ModelError(
                f"{name} has no field {field!r}{closest(field, fields)}; it has "
                f"{', '.join(sorted(fields))}"
            )
    return _replaced(preset, changes)


def family(name: str) -> str:
    """The family that a preset belongs to, one of `FAMILIES`, or a `ModelError`."""
    for found in FAMILIES:
        if name in _module(found).PRESETS:
            return found
    raise ModelError(f"no built-in model {name!r}{closest(name, names())}; {_expected()}")


def load(name: str) -> Model:
    """A model: built in, from a function of the user, or a StableHLO file.

    Args:
      name: a preset, one of `names()`; `path/to/file.py:function`, a function that returns
        `(fn, args)`; or the path of a file that `partita.read` reads.

    Raises:
      ModelError: there is no such model, file or function, or it returns something else.
      FileError: the file holds no program that can be read.
    """
    if Path(name).suffix in SUFFIXES or (".py" not in name and Path(name).exists()):
        return Model(name, read(name), ())
    if ".py:" not in name and not name.endswith(".py"):
        return build(name)
    return _from_user(name, maker(name))


def maker(name: str) -> Callable[[], Any]:
    """The function that `path/to/file.py:function` names, or a `ModelError`."""
    path, _, function = name.rpartition(":") if ".py:" in name else (name, "", "")
    if not function:
        raise ModelError(f"{name!r} names no function; expected path/to/file.py:function")
    if not Path(path).is_file():
        raise ModelError(f"there is no file {path!r}; expected path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where data classes look for the module they are in
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ModelError(f"{path} fails: {type(error).__name__}: {error}") from error
    make = getattr(module, function, None)
    if not callable(make):
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ModelError(f"{path} has no function {function!r}{closest(function, known)}")
    found: Callable[[], Any] = make
    return found


def _from_user(name: str, make: Callable[[], Any]) -> Model:
    try:
        made = make()
    except Exception as error:
        raise ModelError(f"{name} fails: {type(error).__name__}: {error}") from error
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise ModelError(
            f"{name} returned {type(made).__name__}; expected (fn, args): the function to plan and "
            "a tuple of its arguments, arrays or jax.ShapeDtypeStruct"
        )
    fn, args = made
    return Model(name, fn, tuple(args) if isinstance(args, tuple | list) else (args,))


def _expected() -> str:
    return f"expected {', '.join(names())}, path/to/file.py:function, or a StableHLO file"


def _module(family: str) -> Any:
    try:
        return importlib.import_module(f"partita.models.{family}")
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("partita"):
            raise
        raise ModelError(
            f"the built-in models need {error.name}; install it with: pip install 'partita[models]'"
        ) from error


def _fields(config: Any) -> Iterator[str]:
    """The fields of a configuration and of its parts."""
    if dataclasses.is_dataclass(config):
        for field in dataclasses.fields(config):
            yield field.name
            yield from _fields(getattr(config, field.name))
    elif isinstance(config, tuple):
        for part in config:
            yield from _fields(part)


def _replaced(config: Any, changes: dict[str, Any]) -> Any:
    """A configuration with fields replaced, its own and those of its parts."""
    if isinstance(config, tuple):
        return tuple(_replaced(part, changes) for part in config)
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    parts = {name: _replaced(part, changes) for name, part in values.items()}
    return dataclasses.replace(
        config, **parts | {name: new for name, new in changes.items() if name in values}
    )


def _build(model: Any, name: str, config: Any) -> Model:
    init = functools.partial(model.init, config)
    state = jax.eval_shape(init, jax.random.key(0))

    def example_batch(seed: int) -> Any:
        return model.example_batch(config, jax.random.key(seed + 1))

    def example(seed: int) -> tuple[Any, ...]:
        return jax.jit(init)(jax.random.key(seed)), example_batch(seed)

    return Model(
        name,
        functools.partial(model.step, config),
        (state, model.abstract_batch(config)),
        donate_argnums=(0,),
        example=example,
        example_batch=example_batch,
    )
