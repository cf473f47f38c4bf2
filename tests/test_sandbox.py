"""A submission that looks around: it reads no secret, writes nothing of ours, signals nobody outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.course import ROOT
from harness.process.sandbox import readable
from harness.workshop import Workshop

HOSTILE = """
import os, signal
from pathlib import Path

def attempt(work):
    try:
        work()
    except PermissionError:
        return "refused"
    except OSError as error:
        return f"{type(error).__name__}"
    return "done"

def run_chunk(conn, paths):
    secret, checkout = paths
    parent = os.getppid()
    return {
        "read the password": attempt(lambda: Path(secret, "password").read_text()),
        "list the secrets": attempt(lambda: os.listdir(secret)),
        "write into the checkout": attempt(lambda: Path(checkout, "labs", "hacked").write_text("x")),
        "remove a lesson": attempt(lambda: os.unlink(Path(checkout, "labs", "README.md"))),
        "stop its warden": attempt(lambda: os.kill(parent, signal.SIGSTOP)),
        "read its warden's environment": attempt(lambda: Path(f"/proc/{parent}/environ").read_bytes()),
        "write in its own folder": attempt(lambda: Path("note.txt").write_text("x")),
        "read the standard library": attempt(lambda: Path(os.__file__).read_text()),
        "use the database": attempt(lambda: conn.execute("SELECT count(*) FROM jobs").fetchone()),
    }
"""
ALLOWED = {"write in its own folder", "read the standard library", "use the database"}


def test_a_hostile_submission_is_shut_in(workshop: Workshop, tmp_path: Path):
    """Scenario: it tries nine things. Outcome: the three that a lab needs are done, six are refused."""
    server = workshop.laboratory.server
    if not server.secrets:
        pytest.skip(f"no secret of ours on this machine: the server is {server.source}")
    (tmp_path / "lab03_chunk").mkdir()
    (tmp_path / "lab03_chunk" / "chunk.py").write_text(HOSTILE)
    home = next(path for path in Path(server.secrets[0]).iterdir() if (path / "password").exists())
    with workshop.scene() as scene:
        seen = scene.actor(tmp_path).call(3, "run_chunk", [str(home), str(ROOT)])
    if seen.value["stop its warden"] == "done":
        pytest.skip("this kernel has no Landlock that keeps signals inside")
    expected = {what: "done" if what in ALLOWED else "refused" for what in seen.value}
    assert seen.value == expected
    assert (ROOT / "labs" / "README.md").exists()


def test_what_is_readable_is_everything_but_the_forbidden(tmp_path: Path):
    for name in ("a/secret/key", "a/open/file", "b/file"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a" / "secret")
    paths = set(readable(str(tmp_path), [str(tmp_path / "a" / "secret")]))
    assert paths == {str(tmp_path / "a" / "open"), str(tmp_path / "b")}
    assert set(readable(str(tmp_path), [])) == {str(tmp_path)}
