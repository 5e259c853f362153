"""Federations of real processes: an organiser, more nodes, a fedboot. Says when rounds pass, and what logs say."""
import collections
import json
import os
import pathlib
import re
import signal
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

# Seconds: the grace time of the federations here.
GRACE = 3.0
# Seconds until a process surely listens and rounds surely pass, and between two looks.
PATIENCE, STEP = 60.0, 0.03
# What is searched for in logs. A binary that says it otherwise would pass every check, so the words are looked up in it.
BANNED, COMPLETE, RESUMED = " is banned for ", "round complete", "going on from the checkpoint"
NEVER = float("inf")

Line = collections.namedtuple("Line", "at round members by")


class Stuck(Exception):
    """Why a scenario cannot go on, in one line."""


class Member:
    """A node or fedboot: its folder, its process, and the rounds that it has recorded."""

    def __init__(self, name, folder, binary, host):
        self.name, self.folder, self.binary, self.host = name, folder, binary, host
        self.is_hub = binary.name == "fedboot"
        self.state = folder / ("fedboot-state" if self.is_hub else "state")
        self.log = folder.with_suffix(".log")
        self.prefix = ["ip", "netns", "exec", host.name] if host else []
        self.listen = f"/ip4/{host.address if host else '127.0.0.1'}/tcp/{4001 if host else free_port()}"
        self.address, self.process, self.started, self.environment = None, None, 0, {}
        self.lines, self.inode, self.offset = [], None, 0

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def send(self, number):
        if self.runs():
            self.process.send_signal(number)

    def end(self, number=signal.SIGKILL, limit=20.0):
        """Sends a signal, and returns how many seconds the process took to end."""
        sent = time.monotonic()
        self.send(number)
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return NEVER
        return time.monotonic() - sent

    def said(self, start=0):
        """Returns its log from a byte on."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    def began_anew(self):
        """Tells whether its newest start knew of no round before."""
        said = self.said(self.started)
        return "listening address=" in said and " round=1 " in said.split("\n")[0] if self.is_hub else RESUMED not in said

    def look(self):
        """Takes note of new lines of its records. A start may replace the file; then only what follows is new."""
        path = self.state / "metrics.jsonl"
        try:
            found = path.stat()
            if found.st_ino != self.inode or found.st_size < self.offset:
                self.offset = 0 if self.inode is None else found.st_size
                self.inode = found.st_ino
            with path.open("rb") as file:
                file.seek(self.offset)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new[:new.rfind(b"\n") + 1]
        self.offset += len(whole)
        for record in filter(None, map(parsed, whole.splitlines())):
            self.lines.append(Line(time.monotonic(), record["round"], record["members"], record["closed_by"]))

    def books(self):
        """Returns the rounds that its records lack though it completed them, the rounds that they have twice, and how many
        lines are torn."""
        path = self.state / "metrics.jsonl"
        records = [parsed(line) for line in path.read_text().splitlines()] if path.exists() else []
        times = collections.Counter(record["round"] for record in records if record)
        complete = {int(number) for number in re.findall(COMPLETE + r" round=(\d+)", self.said())}
        lost = sorted((complete | {line.round for line in self.lines}) - times.keys())
        return lost, sorted(number for number, count in times.items() if count > 1), records.count(None)

    def replace_state(self, source):
        """Puts a copy of a folder in the place of its state, at one moment."""
        staged = self.folder / "staged"
        shutil.copytree(source, staged)
        self.state.rename(self.folder / f"before-{time.monotonic_ns()}")
        staged.rename(self.state)


class Federation:
    """Nodes `n1` (the organiser), `n2` and so on, and a fedboot, all of them running."""

    def __init__(self, folder, binaries):
        self.folder, self.binaries = pathlib.Path(folder), binaries
        self.nodes, self.hub, self.past, self.is_over = [], None, [], False

    def begin(self, options, nodes, rounds, net, prepare):
        """Makes the members, starts them, and waits until rounds pass."""
        host = net.host if net else lambda name: None
        member = lambda name, program: Member(name, self.folder / name, self.binaries / program, host(name))
        self.nodes = [member(f"n{number + 1}", "fednode") for number in range(nodes)]
        self.hub = member("fedboot", "fedboot")
        prepare(self)
        first, *others = self.nodes
        self.command(first, "fednode", "init", "--name", "n1", "--nodes", nodes, "--rounds", rounds, "--algorithm",
                     options.algorithm, "--model", "mlp", "--data", "digits", "--shard", f"1/{nodes}", "--seed", options.seed,
                     "--set", f"round.grace_seconds={GRACE}", first.folder)
        self.start(first)
        for number, node in enumerate(others, 2):
            self.command(node, "fednode", "join", self.ticket(node.name), "--no-start", "--data", "digits", "--shard",
                         f"{number}/{nodes}", "--dir", node.folder)
        self.admit_hub()
        for joined in (self.hub, *others):
            self.start(joined)
        threading.Thread(target=self.watch, daemon=True).start()
        self.wait("rounds to pass", lambda: all(len(node.lines) >= 5 for node in self.nodes))

    def members(self):
        return [*self.nodes, self.hub] if self.hub else self.nodes

    def command(self, member, program, *arguments):
        """Runs a command where a member is, and returns what it says."""
        command = list(map(str, [*member.prefix, self.binaries / program, *arguments, "--json"]))
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
                              env=clean_environment())
        if done.returncode:
            raise Stuck(f"{program} {arguments[0]}: {last_line(done.stderr)}")
        return json.loads(done.stdout)

    def ticket(self, name, role="node"):
        first = self.nodes[0]
        return self.command(first, "fednode", "invite", name, "--role", role, "--dir", first.folder)["ticket"]

    def admit_hub(self):
        folder = self.hub.folder
        self.command(self.hub, "fedboot", "join", self.ticket(folder.name, "aggregator"), "--dir", folder)

    def another_hub(self):
        """Puts a fedboot with a key of its own in the place of one that has ended."""
        old = self.hub
        self.past.append(old)
        self.hub = Member("fedboot", old.folder.with_name(f"fedboot-{len(self.past) + 1}"), old.binary, old.host)
        self.hub.listen = old.listen
        self.admit_hub()

    def spawn(self, member):
        """Starts the process of a member, which knows the addresses of all others."""
        member.started = member.log.stat().st_size if member.log.exists() else 0
        peers = [other.address for other in self.members() if other is not member and other.address]
        command = [*member.prefix, member.binary, "start", "--listen", member.listen, *(["--peers", *peers] if peers else []),
                   *([] if member.is_hub else ["--device", "cpu", "--threads", "1"]),
                   "--config", member.folder / f"{'fedboot' if member.is_hub else 'node'}.toml"]
        with member.log.open("a") as log:
            member.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                              env={**clean_environment(), **member.environment}, start_new_session=True)

    def start(self, member):
        """Starts a member, waits until it listens, and returns the moment of the start."""
        at = time.monotonic()
        self.spawn(member)
        listens = lambda: re.findall(r"^listening at (\S+)", member.said(member.started), re.MULTILINE)
        self.wait(f"{member.name} to listen", lambda: listens() or not member.runs())
        if not listens():
            raise Stuck(f"{member.name} ended with {member.process.returncode}: {last_line(member.said())}")
        member.address = listens()[0]
        return at

    def watch(self):
        while not self.is_over:
            for node in self.nodes:
                node.look()
            time.sleep(STEP)

    def wait(self, what, condition, limit=PATIENCE):
        if self.seconds_until(condition, limit) == NEVER:
            raise Stuck(f"waited {limit:g} s for {what}")

    def wait_for_rounds(self, number):
        passed = len(self.nodes[0].lines) + number
        self.wait(f"{number} more rounds", lambda: len(self.nodes[0].lines) >= passed)

    def seconds_until(self, condition, limit=PATIENCE, since=None):
        """Waits for a condition, and returns the seconds since a moment. Past the limit it was never."""
        since = time.monotonic() if since is None else since
        while not condition():
            if time.monotonic() - since > limit:
                return NEVER
            time.sleep(STEP)
        return time.monotonic() - since

    def until_counted(self, since, by=None, limit=PATIENCE):
        """Returns the seconds from a moment until each node has recorded a round that counts all, closed by `by` if given."""
        fits = lambda line: line.at > since and line.members == len(self.nodes) and by in (None, line.by)
        return self.seconds_until(lambda: all(any(map(fits, node.lines[::-1])) for node in self.nodes), limit, since)

    def longest(self, nodes, since):
        """Returns the longest time since a moment in which one of the nodes recorded no round."""
        now = time.monotonic()
        ends = [[since, *(line.at for line in node.lines if since < line.at <= now), now] for node in nodes]
        return max(after - before for times in ends for before, after in zip(times, times[1:]))

    def calm(self, nodes, seconds):
        """Returns the longest round without a fault."""
        since = time.monotonic()
        time.sleep(seconds)
        return self.longest(nodes, since)

    def n_banned(self):
        return sum(member.said().count(BANNED) for member in (*self.members(), *self.past))

    def explain(self):
        """Says what each member waits for and has warned of, for who looks into a missed goal."""
        for member in filter(Member.runs, self.members()):
            try:
                waits = self.command(member, member.binary.name, "status", "--state", member.state)["waiting_for"]
                state = "; ".join(f"{wait['what']} since {wait['seconds']:.0f} s" for wait in waits) or "nothing"
            except (Stuck, subprocess.TimeoutExpired) as reason:
                state = f"? ({reason})"
            say(f"    {member.name} waits for {state}")
            for line in [line for line in member.said().splitlines() if re.search(" WARN | ERROR |^error", line)][-3:]:
                say(f"        {line[:300]}")

    def close(self):
        self.is_over = True
        for member in (*self.members(), *self.past):
            if member.process:
                member.end()


def federation_in(folder, name, binaries):
    return Federation(tempfile.mkdtemp(dir=folder, prefix=f"{name}-"), binaries)


def check_words(binaries):
    """Returns words that checks look for and `fednode` does not say."""
    content = (binaries / "fednode").read_bytes()
    return [words.strip() for words in (BANNED, COMPLETE, RESUMED) if words.encode() not in content]


def parsed(line):
    try:
        return json.loads(line)
    except ValueError:
        return None


def last_line(text):
    return (text.strip().splitlines() or ["it says nothing"])[-1][:300]


def clean_environment():
    return {name: text for name, text in os.environ.items() if not name.startswith(("FEDNODE_", "FEDBOOT_"))}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def say(line):
    print(line, file=sys.stderr, flush=True)
