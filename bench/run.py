"""Runs programs: builds ours, stops them with the bench, and says in one line why a program cannot run."""
import os
import pathlib
import shlex
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "fednode"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "target"))
RELEASE = TARGET / "release"
FEDNODE = RELEASE / "fednode"
CARGO = os.environ.get("CARGO", "cargo")
# Time limit of one program: none of ours takes a tenth of it.
LIMIT = 1800
# Seconds between two looks at a program that runs.
STEP = 0.05

children = set()


class CannotRun(Exception):
    """Why a row is skipped, in one line."""


def start(command, **settings):
    """Starts a program in a process group of its own, so that its children can be stopped too."""
    try:
        child = subprocess.Popen(list(map(str, command)), text=True, start_new_session=True, **settings)
    except OSError as error:
        raise CannotRun(f"{pathlib.Path(command[0]).name}: {error.strerror}") from error
    children.add(child)
    return child


def output(command, limit=LIMIT, accepts=(0,), look=lambda child: None, **settings):
    """Runs a program and returns what it prints; what it says of an error becomes the reason. Looks at it while it runs.

    It writes to files: a pipe would block a program that prints more than it holds, and stay open as long as anything
    lives that the program left behind.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as printed, tempfile.TemporaryFile("w+", errors="replace") as said:
        child = start(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=said, **settings)
        until = time.monotonic() + limit
        while child.poll() is None and time.monotonic() < until:
            look(child)
            time.sleep(STEP)
        ended = child.returncode
        # Processes that it left behind would disturb the next rows.
        stop(child)
        printed, said = map(whole, (printed, said))
    if ended is None:
        raise CannotRun(f"{name_of(command)} took more than {limit} s")
    if ended not in accepts:
        raise CannotRun(f"{name_of(command)}: {last_line(said) or last_line(printed) or f'ended with {ended}'}")
    return printed


def whole(file):
    file.seek(0)
    return file.read()


def stop(child):
    """Ends a program and its whole process group, first by SIGTERM, so that a swarm ends its nodes. Processes that a finished
    program left behind are ended too."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, signal_number)
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            continue
        except (ProcessLookupError, PermissionError):
            break
    children.discard(child)


def stop_all():
    for child in list(children):
        stop(child)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def name_of(command):
    return " ".join(pathlib.Path(str(part)).name for part in command[:3])


def shown(command):
    """A command as a person would type it in the checkout."""
    return shlex.join(str(part).replace(f"{RELEASE}/", "").replace(f"{ROOT}/", "") for part in command)


def build():
    """Builds all measured programs but criterion's benches, which come last and are built then."""
    print("building (release)", flush=True)
    cargo("build", "--workspace", "--bins", "--examples")


def cargo(*arguments):
    command = [CARGO, arguments[0], "--release" if arguments[0] == "build" else "--quiet", "--locked", *arguments[1:]]
    return output(command, limit=2 * LIMIT, cwd=ROOT, env={**os.environ, "CARGO_TARGET_DIR": str(TARGET)})


def example(name, *arguments, before=()):
    """Runs one of our examples; returns what it prints and the command."""
    command = [*before, RELEASE / "examples" / name, *arguments]
    return output(command), shown(command).replace(f"examples/{name}", f"cargo run --release --example {name} --", 1)


def environment(name, *packages, imports):
    """Returns a Python with these packages from PyPI, in a virtual environment that is made at the first use."""
    folder = CACHE / name
    python = folder / "bin" / "python"
    if python.exists() and works(python, imports):
        return python
    print(f"      installing {' '.join(packages)} into {folder}", flush=True)
    output(["python3", "-m", "venv", folder])
    output([python, "-m", "pip", "install", "--quiet", *packages])
    output([python, "-c", f"import {imports}"], cwd=folder)
    return python


def works(python, imports):
    try:
        # Some packages leave files where they are imported.
        output([python, "-c", f"import {imports}"], cwd=python.parent)
    except CannotRun:
        return False
    return True
