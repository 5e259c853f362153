"""The page: one row per figure, printed and kept at once, so that a later failure loses none."""
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
from typing import Callable, NamedTuple

from bench.run import ROOT


class Target(NamedTuple):
    """The target of a row: a text for people, and whether a value, or its ratio to a rival's, reaches it."""

    text: str
    holds: Callable[[float, float], bool]


def at_most(limit):
    return Target(f"at most {limit:,g}", lambda value, ratio: value <= limit)


def at_least(limit):
    return Target(f"at least {limit:,g}", lambda value, ratio: value >= limit)


def ratio(least):
    return Target(f"ratio {least:g}", lambda value, ratio: ratio >= least)


class Rival(NamedTuple):
    """Another program or a physical limit, with its value in the same run."""

    name: str
    value: float


class Page:
    """The rows of one run."""

    def __init__(self, path):
        self.path = path
        self.rows = []
        self.pictures = {}
        self.machine = machine()
        self.commit = commit()

    def row(self, name, value, unit, target, command, rival=None, less_is_better=False):
        """Enters a figure. The ratio is ours over the rival's; where less is better, it is the rival's over ours."""
        ratio = None
        if rival:
            ratio = rival.value / value if less_is_better else value / rival.value
        holds = target.holds(value, ratio) if target else None
        self._enter({
            "name": name, "value": rounded(value), "unit": unit, "rival": rival.name if rival else None,
            "rival_value": rounded(rival.value) if rival else None, "ratio": rounded(ratio) if rival else None,
            "target": target.text if target else None, "holds": holds, "command": command})
        mark = {True: "ok", False: "MISS", None: ""}[holds]
        against = f"  {ratio:5.2f} × {rival.name} ({rounded(rival.value):,})" if rival else ""
        wanted = f"  {target.text}" if target else ""
        print(f"{mark:4}  {name:<62} {rounded(value):>12,} {unit:<10}{wanted}{against}", flush=True)

    def skip(self, name, reason):
        self._enter({"name": name, "skipped": reason})
        print(f"skip  {name:<62} {reason}", flush=True)

    def picture(self, name, lines):
        """Keeps lines of text that belong to a row."""
        self.pictures[name] = lines
        self._write()
        for line in lines:
            print(f"          {line}", flush=True)

    def has(self, name):
        return any(row["name"] == name for row in self.rows)

    def _enter(self, row):
        self.rows.append(row)
        self._write()

    def _write(self):
        page = {"machine": self.machine, "commit": self.commit, "rows": self.rows, "pictures": self.pictures}
        text = json.dumps(page, indent=1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: a page on disk is always whole.
        beside = self.path.with_suffix(".tmp")
        beside.write_text(text + "\n")
        beside.replace(self.path)


def rounded(value):
    """Keeps four digits of a small number and all of a large one."""
    return round(value) if abs(value) >= 10_000 else float(f"{value:.4g}")


def default_path(kind, is_whole):
    """A page of some groups never replaces a whole one."""
    part = "" if is_whole else "-part"
    return ROOT / "bench" / "results" / f"{datetime.date.today()}-{kind}{part}.json"


def host_kind():
    return f"{platform.machine()}-{os.cpu_count()}cores"


def machine():
    try:
        cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        cpu = None
    return {"cpu": cpu[1] if cpu else platform.processor(), "cores": os.cpu_count(), "system": platform.system()}


def commit():
    """The commit that was measured, marked if the files differ from it."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def compare(paths):
    """Prints two pages side by side."""
    pages = [read(path) for path in paths]
    print(f"| figure | unit | {paths[0].stem} | {paths[1].stem} | second over first |\n|---|---|---|---|---|")
    for name in pages[0] | pages[1]:
        rows = [page.get(name, {}) for page in pages]
        rivals = [row["rival"] for row in rows if row.get("rival")]
        # Ratios compare across machines and hours, values only on one quiet machine.
        key, unit = ("ratio", f"× {rivals[0]}") if rivals else ("value", next((row["unit"] for row in rows if "unit" in row), ""))
        values = [row.get(key) for row in rows]
        change = f"{values[1] / values[0]:.2f}" if all(values) else "–"
        first, second = map(shown, rows, values)
        print(f"| {name} | {unit} | {first} | {second} | {change} |")


def shown(row, value):
    if "skipped" in row:
        return "skipped"
    return "–" if value is None else f"{value:,}"


def read(path):
    try:
        return {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    except OSError as error:
        sys.exit(f"error: {path} cannot be read: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        sys.exit(f"error: {path} is no page of scripts/bench")
