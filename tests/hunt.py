"""A long look for faults: random programs by number, one after the other, as long as it is let.

    python tests/hunt.py logs/ --start 1000 --seconds 3600 --workers 2

Every program has a number, and is always the same for it. The folder keeps the next numbers, the
counts, and every fault, made small; started again with the same folder, the hunt goes on there.
With `--run-every 4`, three of four programs are planned and proven, and not compiled.
Programs run in worker processes: one that hangs or dies is a fault, and the hunt goes on behind it.
`--only N` looks at program N alone, in this process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # no program comes twice
STUCK = 40  # seconds after which XLA ends a process whose devices wait for each other
HANGS = 240  # seconds that a program may take, on a machine that others use as well
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_collective_call_terminate_timeout_seconds={STUCK}"
)

import conftest  # noqa: E402, F401  (chooses the devices)
from fuzzing.checking import Checker, NotRunError  # noqa: E402
from fuzzing.programs import Program, Schedule, program, schedules  # noqa: E402
from fuzzing.shrinking import kind, shrink  # noqa: E402

MOST_SHRUNK = 2  # examples of one kind of fault that are made small


class Hunt:
    """The state of one worker, kept in a folder."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.most, self.core_every = options.schedules, options.core_every
        self.run_every = options.run_every
        self.step = options.workers
        folder.mkdir(parents=True, exist_ok=True)
        self.state = folder / f"state-{options.worker}.json"
        kept = json.loads(self.state.read_text()) if self.state.exists() else {}
        self.next = kept.get("next", options.start + options.worker)
        self.counts = Counter(kept.get("counts", {}))
        self.faults = Counter(kept.get("faults", {}))

    def run(self, number: int) -> None:
        """Checks one program under its schedules."""
        try:
            found = program(number)
            checker = Checker(found, self.core_every)
            checker.checked = number  # the loop nests of a part of all programs
            todo = schedules(found, min(checker.worth, self.most))
            runs = number // self.step % self.run_every == 0
            if runs:
                _ = checker.original
        except NotRunError:
            self.counts["not run by XLA"] += 1
            return
        except Exception as error:
            self.note(number, error, None, None)
            return
        self.counts["programs"] += 1
        self.counts["run"] += runs
        for schedule in todo:
            self.counts["examples"] += 1
            try:
                (checker.check if runs else checker.prove)(schedule)
            except Exception as error:
                self.note(number, error, found, schedule)
        self.counts["simplified by XLA"] += checker.simplified
        self.counts["moved by rounding"] += checker.loose
        self.counts["the same again"] += checker.skipped

    def note(
        self, number: int, error: Exception, found: Program | None, schedule: Schedule | None
    ) -> None:
        """Writes a fault down, small."""
        name = kind(error)
        self.faults[name] += 1
        print(f"program {number}: {name}", flush=True)
        where = "".join(traceback.format_exception(error)[-6:])
        text = f"program {number}: {name}\n{str(error)[:6000]}\n\n{where}\n"
        if found is not None and schedule is not None and self.faults[name] <= MOST_SHRUNK:
            text += f"{found}\n{schedule}\n\nsmaller:\n"
            found, schedule = shrink(found, schedule, seconds=HANGS / 3)
            text += f"{found}\n{schedule}\n"
            self.counts["shrunk"] += 1
        write(self.folder, text)

    def died(self, how: str) -> None:
        """Notes that the worker did not come back from its program, and goes on behind it."""
        number, name = self.next, f"the process {how}"
        self.faults[name] += 1
        print(f"program {number}: {name}", flush=True)
        made = program(number)
        found = "\n".join(map(str, [made, *schedules(made, self.most)]))
        write(self.folder, f"program {number}: {name}\n\n{found}\n")
        self.save(number + self.step)

    def save(self, number: int) -> None:
        self.next = number
        kept = {"next": number, "counts": self.counts, "faults": self.faults}
        fresh = self.state.with_suffix(".new")
        fresh.write_text(json.dumps(kept, indent=1))
        fresh.replace(self.state)  # others read it at any moment


def write(folder: Path, text: str) -> None:
    with (folder / "faults.txt").open("a") as file:
        file.write(f"{'=' * 100}\n{text}")


def work(options: argparse.Namespace) -> None:
    """Programs one after the other, until this process is ended."""
    gc.set_threshold(100_000, 20, 50)
    hunt = Hunt(options.folder, options)
    while True:
        hunt.run(hunt.next)
        hunt.save(hunt.next + hunt.step)


class Worker:
    """A process of the hunt, started again when it ends."""

    def __init__(self, number: int, options: argparse.Namespace) -> None:
        self.options = argparse.Namespace(**{**vars(options), "worker": number})
        self.start()

    def start(self) -> None:
        self.begun = time.time()
        command = [sys.executable, __file__, *sys.argv[1:], "--worker", self.options.worker]
        self.log = self.options.folder / f"log-{self.options.worker}.txt"
        with self.log.open("a") as log:
            self.process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log)

    def watch(self) -> None:
        """Starts the process again if it has died, or takes too long for a program."""
        code = self.process.poll()
        if code is None:
            state = self.options.folder / f"state-{self.options.worker}.json"
            since = max(self.begun, state.stat().st_mtime if state.exists() else 0)
            if time.time() - since < HANGS:
                return
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        Hunt(self.options.folder, self.options).died("hangs" if code is None else f"died, {code}")
        self.start()


def summed(options: argparse.Namespace, field: str) -> Counter[str]:
    """What the workers have counted together."""
    found: Counter[str] = Counter()
    for path in options.folder.glob("state-*.json"):
        found.update(json.loads(path.read_text())[field])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--start", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--schedules", type=int, default=2, help="the most of one program")
    parser.add_argument("--run-every", type=int, default=1, help="others are proven only")
    parser.add_argument("--core-every", type=int, default=8, help="loop nests of one in so many")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    if options.only is not None:
        options.worker, options.core_every, options.run_every = 0, 1, 1
        Hunt(options.folder, options).run(options.only)
        return
    if options.worker is not None:
        work(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    before, begun, said = summed(options, "counts"), time.monotonic(), 0.0
    workers = [Worker(number, options) for number in range(options.workers)]
    try:
        while (passed := time.monotonic() - begun) < options.seconds:
            time.sleep(1)
            for worker in workers:
                worker.watch()
            if passed - said > 60:
                said, counts = passed, summed(options, "counts")
                pace = (counts["programs"] - before["programs"]) / passed * 60
                print(f"{passed:.0f} s: {pace:.0f} programs/min; {dict(counts)}", flush=True)
    finally:
        for worker in workers:
            worker.process.kill()
    print(dict(summed(options, "counts")))
    print("\n".join(f"{count} x {name}" for name, count in summed(options, "faults").most_common()))


if __name__ == "__main__":
    main()
