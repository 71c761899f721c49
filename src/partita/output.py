"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from partita.errors import FileError


def write(path: str | Path, data: bytes) -> None:
    """Writes a file whole or not at all.

    Raises:
      FileError: it cannot be written.
    """
    path = Path(path)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        raise FileError(f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
