"""A long look for faults: random programs by number, one after the other, as long as it is let.

    python tests/hunt.py logs/ --start 1000 --seconds 3600

Every program has a number, and is always the same for it. The folder keeps the next number, the
counts, and every fault, made small; started again with the same folder, the hunt goes on there.
`--only N` looks at program N alone.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections import Counter
from pathlib import Path

import conftest  # noqa: F401  (chooses the devices)
from fuzzing.checking import Checker, NotRunError
from fuzzing.programs import Program, Schedule, program, schedules
from fuzzing.shrinking import kind, shrink

MOST_SHRUNK = 2  # examples of one kind of fault that are made small


class Hunt:
    """The state of a hunt, kept in a folder."""

    def __init__(self, folder: Path, start: int, most: int) -> None:
        self.folder = folder
        self.most = most
        """Schedules of one program."""
        folder.mkdir(parents=True, exist_ok=True)
        self.state = folder / "state.json"
        kept = json.loads(self.state.read_text()) if self.state.exists() else {}
        self.next = kept.get("next", start)
        self.counts = Counter(kept.get("counts", {}))
        self.faults = Counter(kept.get("faults", {}))

    def run(self, number: int) -> None:
        """Checks one program under its schedules."""
        try:
            found = program(number)
            checker = Checker(found)
            todo = schedules(found, min(checker.worth, self.most))
            _ = checker.original
        except NotRunError:
            self.counts["not run by XLA"] += 1
            return
        except Exception as error:
            self.note(number, error, None, None)
            return
        self.counts["programs"] += 1
        for schedule in todo:
            self.counts["examples"] += 1
            self.counts["streak"] += 1
            try:
                checker.check(schedule)
            except Exception as error:
                self.note(number, error, found, schedule)
        self.counts["simplified by XLA"] += checker.simplified
        self.counts["moved by rounding"] += checker.loose

    def note(
        self, number: int, error: Exception, found: Program | None, schedule: Schedule | None
    ) -> None:
        """Writes a fault down, small."""
        name = kind(error)
        self.counts["streak"] = 0
        self.faults[name] += 1
        print(f"program {number}: {name}", flush=True)
        where = "".join(traceback.format_exception(error)[-6:])
        text = f"program {number}: {name}\n{str(error)[:6000]}\n\n{where}\n"
        if found is not None and schedule is not None and self.faults[name] <= MOST_SHRUNK:
            text += f"{found}\n{schedule}\n\nsmaller:\n"
            found, schedule = shrink(found, schedule)
            text += f"{found}\n{schedule}\n"
            self.counts["shrunk"] += 1
        with (self.folder / "faults.txt").open("a") as file:
            file.write(f"{'=' * 100}\n{text}")

    def save(self, number: int) -> None:
        self.next = number
        kept = {"next": number, "counts": self.counts, "faults": self.faults}
        self.state.write_text(json.dumps(kept, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--start", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--schedules", type=int, default=6, help="the most of one program")
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    hunt = Hunt(options.folder, options.start, options.schedules)
    if options.only is not None:
        hunt.run(options.only)
        return
    begun, said = time.monotonic(), 0.0
    while (passed := time.monotonic() - begun) < options.seconds:
        hunt.run(hunt.next)
        hunt.save(hunt.next + 1)
        if passed - said > 60:
            said = passed
            print(f"{passed:.0f} s: {dict(hunt.counts)}", flush=True)
    print(f"{hunt.counts['examples']} examples; {dict(hunt.counts)}")
    print("\n".join(f"{count} x {name}" for name, count in hunt.faults.most_common()))


if __name__ == "__main__":
    main()
