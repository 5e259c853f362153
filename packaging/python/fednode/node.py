"""Members of a real federation: one process each, on one machine or many."""
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Optional, Union

from . import command
from .command import Error, Flag
from .model import Model

Path = Union[str, os.PathLike[str]]
# How long a process may take to open its ports, and to end.
BEGIN, END = 60.0, 60.0


def init(folder: Path, *, data: Optional[str] = None, nodes: Optional[int] = None, rounds: Optional[int] = None,
         name: Optional[str] = None, settings: Optional[dict[str, Any]] = None, **flags: Flag) -> "Node":
    """Prepares a federation and its organiser's node in a folder. Other flags are those of `fednode init --help`."""
    words = command.words(data=data, nodes=nodes, rounds=rounds, name=name, set=settings, **flags)
    command.run("init", folder, *words)
    return Node(folder)


def invite(name: str, folder: Path, *, role: Optional[str] = None, **flags: Flag) -> str:
    """Makes a ticket, one line of text, with which one node joins. The organiser's node must run."""
    ticket: str = command.run("invite", name, *command.words(dir=folder, role=role, **flags))["ticket"]
    return ticket


def join(ticket: str, folder: Path, *, data: str, **flags: Flag) -> "Node":
    """Prepares a member's folder with a ticket. `Node.start` starts it."""
    # Of standard input, since others on this machine see a command line.
    command.run("join", "-", *command.words(dir=folder, data=data, no_start=True, **flags), text=ticket + "\n")
    return Node(folder)


class Node:
    """A node by its folder, which `init` or `join` prepared. `with` stops it."""

    def __init__(self, folder: Path) -> None:
        self.folder = pathlib.Path(folder)
        self.config = self.folder / "node.toml"
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._began = 0
        if not self.config.is_file():
            raise Error(f"`{self.folder}` holds no node.toml: prepare it with `init` or `join`", 3)

    def __repr__(self) -> str:
        return f"Node({str(self.folder)!r})"

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.stop()

    @property
    def log(self) -> pathlib.Path:
        """The file with what the process says."""
        return self.folder / "fednode.log"

    def start(self, **flags: Flag) -> "Node":
        """Starts the process and waits until it listens. Flags are those of `fednode start --help`.

        It goes on when this program ends, unless `stop` was called. Started again, it continues from its checkpoint.
        """
        if self._process is not None and self._process.poll() is None:
            raise Error(f"the node of `{self.folder}` runs already", 7)
        line = [os.fspath(command.program()), "start", "--config", os.fspath(self.config), *command.words(**flags), "--json"]
        with self.log.open("ab") as log:
            self._began = log.tell()
            self._process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + BEGIN
        while '{"listening":' not in self._said():
            if (code := self._process.poll()) is not None:
                raise Error(command.complaint(self._said(), code), code)
            if time.monotonic() > end:
                self.stop()
                raise Error(f"the node of `{self.folder}` does not begin to listen: see `{self.log}`", 5)
            time.sleep(0.05)
        return self

    def _said(self) -> str:
        """What the process has said since it was started."""
        with self.log.open("rb") as log:
            log.seek(self._began)
            return log.read().decode("utf-8", "replace")

    def status(self) -> dict[str, Any]:
        """What the node does: phase, round, what it waits for, peers, traffic."""
        status: dict[str, Any] = command.run("status", "--config", self.config)
        return status

    def follow(self, every: float = 1.0, timeout: Optional[float] = None) -> Iterator[dict[str, Any]]:
        """Yields the status until all rounds are over or the process has ended. Too long a wait raises TimeoutError."""
        end = None if timeout is None else time.monotonic() + timeout
        waits = "an answer of the node"
        while True:
            if self._process is not None and (code := self._process.poll()) is not None:
                if code != 0:
                    raise Error(command.complaint(self._said(), code), code)
                return
            try:
                status = self.status()
            except Error:
                # A process of ours may be about to begin or to end.
                if self._process is None:
                    raise
            else:
                yield status
                if status["finished"]:
                    return
                names = ", ".join(wait["what"] for wait in status["waiting_for"]) or "nothing"
                waits = f"{names} in round {status['round']} of {status['rounds']}"
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"the node of `{self.folder}` still waits for {waits}")
            time.sleep(every)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until all rounds are over. Too long a wait raises TimeoutError."""
        for _ in self.follow(0.2, timeout):
            pass

    def evaluate(self) -> dict[str, Any]:
        """How good the node's model is on its own test samples: `score`, and a count for each class."""
        found: dict[str, Any] = command.run("evaluate", "--config", self.config)
        return found

    def model(self) -> Model:
        """The node's model as a function."""
        return Model("--config", self.config)

    def stop(self) -> None:
        """Ends the process as Ctrl-C does: it saves what it has. A node that does not run stays as it is."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(END)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None
