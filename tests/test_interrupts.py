"""Ctrl-C wherever it strikes a command: no traceback, and the exit code that shells know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import partita
from partita import startup

SLOW = "import sys, time; print('ready', flush=True); time.sleep(60)\n"
"""What is struck: it says so, and waits for it."""


def interrupted(*command, **options):
    """Exit code and standard error of a process that gets Ctrl-C when it says `ready`.

    What a shell starts in the background ignores Ctrl-C, and so does all that it starts: the
    process is started as from the foreground.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stdout.readline() == "ready\n", process.communicate()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, err


@pytest.fixture
def environment(tmp_path):
    """Where importing JAX takes for ever."""
    (tmp_path / "jax.py").write_text(SLOW)
    return {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(partita.__file__).parents[1]}",
    }


@pytest.mark.parametrize("module", startup.NAMES)
def test_while_the_command_is_imported(environment, module):
    found = interrupted("-m", module, "plan", env=environment)
    assert found == (-signal.SIGINT, "")


def test_the_script_while_it_is_imported(environment, tmp_path):
    script = tmp_path / "partita"
    script.write_text("from partita.cli import main\nmain()\n")
    assert interrupted(script, "plan", env=environment) == (-signal.SIGINT, "")


def test_a_program_of_the_users_gets_its_own_exception(environment, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "try:\n    import partita\nexcept KeyboardInterrupt:\n    raise SystemExit(5)\n"
    )
    assert interrupted(script, "-m", "partita", env=environment) == (5, "")


BEGUN = f"""
import gc, importlib.util, signal, sys, time
spec = importlib.util.spec_from_file_location("startup", {startup.__file__!r})
startup = importlib.util.module_from_spec(spec)
spec.loader.exec_module(startup)
startup.leave_to_python()
"""


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (f"try:\n    {SLOW}except KeyboardInterrupt:\n    sys.exit(130)\n", 130),
        # As JAX's callback, from which no exception gets out.
        (f"def callback(*args):\n    {SLOW}gc.callbacks.append(callback)\ngc.collect()\n", 130),
        (f"startup.leave_to_system()\n{SLOW}", -signal.SIGINT),
    ],
    ids=["before a search", "in the garbage collector", "when all is printed"],
)
def test_while_the_command_runs(tmp_path, program, code):
    script = tmp_path / "partita"
    script.write_text(BEGUN + program)
    assert interrupted(script) == (code, "")


def test_whoever_ignores_it_goes_on_doing_so(tmp_path):
    script = tmp_path / "partita"
    script.write_text(f"{BEGUN}print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)")
    ignoring = f"import os, signal; signal.signal(2, signal.SIG_IGN); os.execv({sys.executable!r}, "
    command = [sys.executable, "-c", f"{ignoring}['python', {str(script)!r}])"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True\n"


@pytest.mark.parametrize(
    ("program", "words", "command"),
    [
        ("/usr/bin/partita", ["python", "/usr/bin/partita", "plan"], True),
        ("partita.exe", ["partita.exe"], True),
        ("-m", ["python", "-X", "dev", "-m", "partita", "plan"], True),
        ("-m", ["python", "-m", "partita.cli"], True),
        ("-m", ["python", "-m", "pytest"], False),
        ("-m", ["python", "-mpartita"], True),
        ("train.py", ["python", "train.py", "-m", "partita"], False),
        ("partita.py", ["python", "partita.py"], False),
        ("", ["python"], False),
    ],
)
def test_which_process_is_the_command(program, words, command):
    assert startup.runs_command(program, words) is command
    assert not startup.IS_COMMAND


def test_python_m_partita_is_the_command():
    found = subprocess.run(
        [sys.executable, "-m", "partita", "--version"], capture_output=True, text=True, check=True
    )
    assert found.stdout == f"partita {partita.__version__}\n"
