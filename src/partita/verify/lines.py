"""The user's lines that the instructions of a compiled program come from."""

from __future__ import annotations

import re

from partita.text import relative
from partita.verify.hlo import HloInstruction

Key = tuple[str, str]
"""An operation as reports name it, and the user's line."""

_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)", re.M)
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", re.M)
_FILE = re.compile(r'^(\d+) "(.*)"$', re.M)


class Lines:
    """The lines of the user's that instructions come from, from the tables of a module."""

    def __init__(self, program: str) -> None:
        head = program.split("\n\n%", 1)[0]
        names = head.split("FileNames", 1)[-1].split("FunctionNames", 1)[0]
        self._files = dict(_FILE.findall(names))
        self._locations = {at: (file, line) for at, file, line in _LOCATION.findall(head)}
        self._frames = dict(_FRAME.findall(head))

    def of(self, instruction: HloInstruction) -> Key | None:
        """The operation and the line of one."""
        name = re.search(r'op_name="([^"]*)"', instruction.attributes)
        if name is None:
            return None
        primitive = re.sub(r"^reduce_\w+$", "reduce", name[1].rsplit("/", 1)[-1])
        return primitive, self.line(instruction.attributes)

    def line(self, attributes: str) -> str:
        """The user's line that the attributes of an instruction name; empty if none."""
        frame = re.search(r"stack_frame_id=(\d+)", attributes)
        if frame is not None:
            file, line = self._locations.get(self._frames.get(frame[1], ""), ("", ""))
            return f"{relative(self._files.get(file, ''))}:{line}" if line else ""
        told = re.search(r'source_file="([^"]*)" source_line=(\d+)', attributes)
        return f"{relative(told[1])}:{told[2]}" if told else ""
