"""Files: only regular ones are read, up to a size, and they are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from partita.errors import FileError


def read(path: str | Path, most: int) -> bytes:
    """The contents of a file; of pipes and devices, which may never end, nothing is read.

    Args:
      path: of the file.
      most: bytes that it may have.

    Raises:
      OSError: it cannot be read, is no regular file, or is larger; `strerror` says which.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""
    if max(size, len(data)) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes, the most for it")
    return data


def opened(path: str | Path) -> BinaryIO:
    """A file to read parts of, which may be of any size.

    Raises:
      OSError: it cannot be read, or is no regular file; `strerror` says which.
    """
    path = _path(path)
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"it is {_kind(found.st_mode)}, not a regular file")
    return path.open("rb")


def write(path: str | Path, data: bytes) -> None:
    """Writes a file whole or not at all, whoever else writes it at the same time.

    The data go to a new file of a unique name in the same folder, which then takes the place of
    the old one, with that one's mode. Where the path is a link, what it points to is written.

    Raises:
      FileError: it cannot be written, or there is something else than a regular file.
    """
    try:
        _replace(Path(os.path.realpath(_path(path))), data)
    except OSError as error:
        raise FileError(f"cannot write {str(path)!r}: {error.strerror}") from None


def _replace(path: Path, data: bytes) -> None:
    mode = _mode_to_keep(path)
    part = path.with_name(f".partita-{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            if mode is not None:
                os.chmod(part, mode)
            file.write(data)
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _mode_to_keep(path: Path) -> int | None:
    """The mode of what is there already; None if there is nothing."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"there is {_kind(mode)}, not a regular file")
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return stat.S_IMODE(mode)


def _path(path: str | Path) -> Path:
    """The path of a file; raises OSError for one that cannot be any."""
    try:
        if b"\0" not in os.fsencode(path):
            return Path(path)
    except UnicodeEncodeError:
        pass
    except TypeError:
        raise OSError(errno.EINVAL, "a path is a string or a pathlib.Path") from None
    raise OSError(errno.EINVAL, "no file can have this name")


def _kind(mode: int) -> str:
    """Names the kind of file that has this mode, with its article."""
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something")
