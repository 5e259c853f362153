"""Runs: whole federations on this machine, and what they learned."""
import functools
import importlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable
from typing import Any, Optional, Union

from . import command
from .command import Error, Flag
from .model import Model, load

Path = Union[str, os.PathLike[str]]


class Run:
    """A folder that `swarm` or `simulate` wrote.

    Measures are those of the test samples of all nodes: `measure` names the one by which the federation judges. Shares such as the
    accuracy are from 0 to 1. `alone` is the best that nodes do without each other,
    with the same tools and budget.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = pathlib.Path(folder)
        if not (self.folder / "summary.json").is_file():
            raise Error(f"`{self.folder}` holds no summary.json: it is no finished run", 4)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """All that summary.json holds."""
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text("utf-8"))
        return summary

    @property
    def served(self) -> float:
        """What the nodes' models reach in the end."""
        served: Optional[float] = self.summary.get("served")
        return self.summary["mean_accuracy"] if served is None else served

    @property
    def alone(self) -> Optional[float]:
        """What they reach alone; None where no control was trained."""
        return self.summary.get("alone")

    @property
    def measure(self) -> str:
        """By what `served` and `alone` are given, such as `accuracy`, `auroc` or `mae`."""
        usual = "r2" if self.summary.get("target") else "accuracy"
        measure: str = self.summary.get("measure", usual)
        return measure

    @property
    def difference(self) -> Optional[float]:
        """By how much `served` is better than `alone`; below 0 where it is worse, whichever way the measure goes."""
        return self.summary.get("difference")

    @property
    def interval(self) -> Optional[tuple[float, float]]:
        """The 95 % interval of the difference between both."""
        found = self.summary.get("interval")
        return None if found is None else (found[0], found[1])

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """A line per node: samples, what it serves, what it reaches alone, bytes."""
        nodes: list[dict[str, Any]] = self.summary["per_node"]
        return nodes

    def records(self) -> list[dict[str, Any]]:
        """What each node recorded of each round, in the order in which it came."""
        lines = (self.folder / "metrics.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def frame(self) -> Any:
        """The records as a data frame, a row per node and round. It needs pandas."""
        return _pandas().json_normalize(self.records())

    def nodes_frame(self) -> Any:
        """The nodes as a data frame, a row per node. It needs pandas."""
        return _pandas().json_normalize(self.nodes)

    def model(self, node: int, *, backbone: Optional[Path] = None, threads: int = 1) -> Model:
        """The model of a node, which are counted from 1. A simulation keeps none. `backbone` and `threads` are those of `load`."""
        file = self.folder / "models" / f"{node}.safetensors"
        if not file.is_file():
            raise Error(f"`{self.folder}` holds no model of node {node}: a swarm keeps one per node, a simulation none", 4)
        return load(file, backbone=backbone, threads=threads)


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise Error("data frames need pandas: `pip install pandas`, or take the records as they are", 70) from error


def swarm(*, out: Optional[Path] = None, own: Optional[Iterable[str]] = None, data: Optional[str] = None,
          nodes: Optional[int] = None, rounds: Optional[int] = None, algorithm: Optional[str] = None,
          model: Optional[str] = None, settings: Optional[dict[str, Any]] = None, **flags: Flag) -> Run:
    """Runs a federation of real processes on this machine, to its end.

    `own` names the data of each node, `data` one set that is divided. `settings` are keys of federation.toml. Other flags are
    those of `fednode swarm --help`, with underscores: `seed=3, no_control=True`. Without `out` the run is in a new folder.
    """
    return _whole("swarm", out, dict(own=own, data=data, nodes=nodes, rounds=rounds, algorithm=algorithm, model=model,
                                     set=settings, **flags))


def simulate(*, out: Optional[Path] = None, own: Optional[Iterable[str]] = None, data: Optional[str] = None,
             nodes: Optional[int] = None, rounds: Optional[int] = None, algorithm: Optional[str] = None,
             model: Optional[str] = None, settings: Optional[dict[str, Any]] = None, **flags: Flag) -> Run:
    """Plays the same federation in one process, which is quicker. It takes what `swarm` takes."""
    return _whole("simulate", out, dict(own=own, data=data, nodes=nodes, rounds=rounds, algorithm=algorithm, model=model,
                                        set=settings, **flags))


def _whole(kind: str, out: Optional[Path], flags: dict[str, Flag]) -> Run:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fednode-")) / "run" if out is None else pathlib.Path(out)
    summary = folder / "summary.json"
    was_there = summary.exists()
    try:
        command.run(kind, *command.words(out=folder, **flags))
    except BaseException as error:
        if isinstance(error, Error) and summary.is_file() and not was_there:
            raise Error(f"{error}; what there is lies in `{folder}`", error.code) from None
        if out is None:
            shutil.rmtree(folder.parent, ignore_errors=True)
        raise
    return Run(folder)
