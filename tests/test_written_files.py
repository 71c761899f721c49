"""Files are written whole or not at all, and what is there keeps what it is; pipes are not read."""

import os
import stat
import subprocess
import sys

import jax.numpy as jnp
import pytest

import partita as pt
from checks import array, planner
from partita.files import read, write

plan = planner(mesh="data=2")

WRITES = """
import sys
from partita.files import write
path, letter = sys.argv[1:]
for _ in range(200):
    write(path, letter.encode() * 100_000)
"""


def everything(folder):
    return sorted(each.name for each in folder.iterdir())


def test_processes_that_write_one_file_leave_it_whole_at_any_moment(tmp_path):
    file = tmp_path / "plan.json"
    write(file, b"a" * 100_000)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITES, str(file), letter]) for letter in "bc"
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        data = file.read_bytes()
        assert len(data) == 100_000 and data == data[:1] * 100_000
        seen.add(data[:1])
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(seen) > 1
    assert everything(tmp_path) == ["plan.json"]


def test_only_the_file_itself_is_written(tmp_path):
    """Earlier versions took over the name with `.part`, where a file of the user may lie."""
    for name in ("x.json.part", "x.json.tmp", "x.json~"):
        (tmp_path / name).write_text("mine")
    plan(jnp.sin, array(8)).save(tmp_path / "x.json")
    assert everything(tmp_path) == ["x.json", "x.json.part", "x.json.tmp", "x.json~"]
    assert (tmp_path / "x.json.part").read_text() == "mine"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode(tmp_path, mode):
    file = tmp_path / "x"
    file.write_text("old")
    file.chmod(mode)
    write(file, b"new")
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_new_file_has_the_mode_of_all_new_files(tmp_path):
    (tmp_path / "theirs").write_text("")
    write(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_points_to_is_written(tmp_path, there):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "real.json", tmp_path / "link.json"
    if there:
        target.write_text("old")
    link.symlink_to(target)
    write(link, b"new")
    assert link.is_symlink() and target.read_text() == "new"


def _folder(path):
    path.mkdir()


def _circle(path):
    path.symlink_to(path)


def _forbidden(path):
    path.parent.mkdir(exist_ok=True)
    path.write_text("old")
    path.chmod(0o444)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_folder, "there is a directory, not a regular file"),
        (os.mkfifo, "there is a pipe, not a regular file"),
        (lambda path: path.symlink_to("/dev/null"), "there is a device, not a regular file"),
        (_circle, "Too many levels of symbolic links"),
        pytest.param(
            _forbidden,
            "Permission denied",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything"),
        ),
    ],
)
def test_what_is_no_regular_file_is_not_replaced(tmp_path, make, message):
    path = tmp_path / "x"
    make(path)
    before = os.lstat(path)
    with pytest.raises(pt.FileError, match=f"cannot write '.*/x': {message}"):
        write(path, b"new")
    assert os.lstat(path).st_ino == before.st_ino
    assert everything(tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (".", "cannot write '.': there is a directory, not a regular file"),
        ("", "cannot write '.*': there is a directory, not a regular file"),
        ("/", "cannot write '/': there is a directory, not a regular file"),
        ("nowhere/x.json", "cannot write 'nowhere/x.json': No such file or directory"),
        ("a\0b", "cannot write .*: no file can have this name"),
        ("a\ud800b", "cannot write .*: no file can have this name"),
        ("a" * 300, "cannot write .*: File name too long"),
    ],
)
def test_paths_that_cannot_be_written(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pt.FileError, match=message):
        plan(jnp.sin, array(8)).save(path)
    assert everything(tmp_path) == []


def test_the_old_file_stays_when_there_is_no_room_for_the_new_one(tmp_path, monkeypatch):
    file = tmp_path / "x"
    file.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(pt.FileError, match=r"cannot write .*: No space left on device"):
        write(file, b"new")
    assert file.read_text() == "old" and everything(tmp_path) == ["x"]


READERS = {
    "a model": pt.read,
    "a plan": lambda path: pt.load(path, jnp.sin, array(8)),
    "hardware": lambda path: plan(jnp.sin, array(8), hardware=f"{path}"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "a pipe"), (_folder, "a directory")])
def test_what_may_never_end_is_not_read(tmp_path, reader, make, what):
    path = tmp_path / "x.toml"
    make(path)
    with pytest.raises(pt.PartitaError, match=rf"x.toml'.*: it is {what}, not a regular file"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", [pt.read, READERS["a plan"]])
def test_devices_are_not_read(reader):
    with pytest.raises(pt.FileError, match="'/dev/zero': it is a device, not a regular file"):
        reader("/dev/zero")


@pytest.mark.parametrize("reader", READERS)
def test_files_have_a_largest_size(tmp_path, reader):
    """A file with a hole is as large as it says, and takes no room on the disk."""
    path = tmp_path / "x.toml"
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(pt.PartitaError, match=r"it has more than [\d,]+ bytes, the most for it"):
        READERS[reader](path)


def test_a_file_of_exactly_the_largest_size_is_read(tmp_path):
    (tmp_path / "x").write_bytes(b"1234")
    assert read(tmp_path / "x", 4) == b"1234"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read(tmp_path / "x", 3)
