"""The program `fednode`: where it is, and how it is called."""
import functools
import importlib.metadata
import json
import os
import pathlib
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any, Union

# What a flag may be: a word, True for a flag without a value, several words, or keys with values for `--set`.
Flag = Union[str, int, float, bool, None, os.PathLike[str], Iterable[Any], Mapping[str, Any]]


# How many seconds a program has to save what it has, once it is asked to end.
GRACE = 60.0


class Error(Exception):
    """What `fednode` could not do. `code` is its exit code: 4 is for data, 6 for a federation that refuses, and so on."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def version() -> str:
    """The version of this package, which is that of the program."""
    try:
        return importlib.metadata.version("fednode")
    except importlib.metadata.PackageNotFoundError:
        return "0"


@functools.cache
def program() -> pathlib.Path:
    """Where the program is: the one that was installed with this package, else the one on the path."""
    for file in _files():
        if file.name == "fednode" and file.is_file():
            return file
    found = shutil.which("fednode")
    if found is None:
        raise Error("the program `fednode` is not installed: install the wheel, or put the program on the path", 70)
    return pathlib.Path(found)


def _files() -> list[pathlib.Path]:
    """The files that were installed with this package."""
    try:
        files = importlib.metadata.files("fednode")
    except importlib.metadata.PackageNotFoundError:
        files = None
    return [pathlib.Path(str(file.locate())).resolve() for file in files or []]


def words(**flags: Flag) -> list[str]:
    """The words of a command line: `samples_per_node=150` is `--samples-per-node 150`.

    None and False are left out, True is the flag alone, a list repeats the flag, and a mapping is `--set KEY=VALUE` for each
    of its keys.
    """
    found: list[str] = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            found.append(flag)
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                found.append(f"{flag}={key}={_word(inner)}")
        elif isinstance(value, Iterable) and not isinstance(value, (str, os.PathLike)):
            for inner in value:
                found.append(f"{flag}={_word(inner)}")
        else:
            # In one word: a value may begin with `-`.
            found.append(f"{flag}={_word(value)}")
    return found


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def run(*command: Union[str, os.PathLike[str]], text: Union[str, None] = None) -> Any:
    """Runs a command of the program and returns what it says in JSON: None if it says nothing, a list if it says several lines.

    `run("algorithms")` is `fednode algorithms --json`. `text` is its standard input.
    """
    line = [os.fspath(program()), *(os.fspath(word) for word in command), "--json"]
    code, told, complained = _ended(line, text or "")
    if code != 0:
        raise Error(complaint(complained, code), code)
    try:
        return json.loads(told) if told.strip() else None
    except json.JSONDecodeError:
        pass
    try:
        return [json.loads(said) for said in told.splitlines() if said.strip()]
    except json.JSONDecodeError:
        raise Error(f"`fednode {command[0]}` says nothing in JSON: call it on a command line", 2) from None


def _ended(line: list[str], text: str) -> tuple[int, str, str]:
    """Runs a program to its end: its exit code, what it printed, and what it complained of.

    Ctrl-C and other exceptions ask the program once to end, and it saves what it has, as on a command line. Ctrl-C while it does
    so asks it again, and it ends at once. It has a session of its own, so that a terminal does not ask it besides.
    """
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                          errors="replace", start_new_session=True) as process:
        try:
            told, complained = process.communicate(text)
        except BaseException:
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                try:
                    process.communicate(timeout=GRACE)
                    break
                except KeyboardInterrupt:
                    continue
                except subprocess.TimeoutExpired:
                    break
            process.kill()
            raise
    return process.returncode, told, complained


def complaint(said: str, code: int) -> str:
    """The line in which a program says what went wrong."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    if errors:
        return errors[-1].removeprefix("error: ")
    if code < 0:
        why = ", as systems do that run out of memory" if -code == signal.SIGKILL else ""
        last = f"; its last line was: {lines[-1]}" if lines else ""
        return f"`fednode` was ended by {signal.Signals(-code).name}{why}{last}"
    return lines[-1] if lines else f"`fednode` ended with exit code {code}"
