"""An extension of griffe for the documentation site: examples in docstrings are code, not prose.

Griffe knows a section `Examples:`, whose lines with `>>>` are code; the docstrings have `Example:`.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Calls every `Example:` a section of examples."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Renames the sections of an object that was just read."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.M)
