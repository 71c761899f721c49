"""A live progress bar for searches, shown on terminals only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from partita.decisions import Progress as Callback
from partita.escape import one_line


@contextmanager
def progress_bar(console: Console) -> Iterator[Callback]:
    """A callback for `plan(progress=...)` that draws a bar on `console`; silent off a terminal."""
    if not console.is_terminal:
        yield lambda done, total, text: None
        return
    columns = (
        TextColumn("search"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=one_line(text))

        yield update
