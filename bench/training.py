"""Rows of local updates against PyTorch: the same networks, batches and threads, ours and theirs in turns."""
import re
import statistics
import subprocess

from bench.page import Rival, ratio
from bench.run import RELEASE, ROOT, CannotRun, environment, last_line, output, shown, start, stop

MODELS = ["cnn", "lenet5", "cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"]
GPU_MODELS = ["cnn", "lenet5", "mlp"]
BATCHES = [10, 64, 256]
# The least ratio wanted on a GPU, by batch.
GPU_LEAST = {64: 0.5, 256: 0.8}
OURS = RELEASE / "examples" / "speed"
THEIRS = ROOT / "scripts" / "bench-torch.py"
ANSWER = re.compile(r"batch +\d+: +(\S+) samples/s, +(\S+) per processor second")
WALL, PROCESSOR = 0, 1


class Trainer:
    """A program that measures on request. It stays alive, so that its start is paid once."""

    def __init__(self, command):
        self.command = [*map(str, command), "--requests"]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.child = start(self.command, **pipes)

    def ask(self, model, batch, seconds):
        try:
            self.child.stdin.write(f"{model} {batch} {seconds}\n")
            self.child.stdin.flush()
        except OSError as error:
            raise CannotRun(self.reason()) from error

    def answer(self):
        """Samples per second of wall time and of processor time."""
        line = self.child.stdout.readline()
        found = ANSWER.search(line)
        if not found:
            raise CannotRun(self.reason())
        return [float(rate) for rate in found.groups()]

    def reason(self):
        stop(self.child)
        return last_line(self.child.stderr.read()) or f"{self.command[0]} ended"


class Side:
    """One or more trainers at once, and their sum."""

    def __init__(self, command, processes):
        self.trainers = [Trainer(command) for _ in range(processes)]

    def measure(self, model, batch, seconds, clock):
        for trainer in self.trainers:
            trainer.ask(model, batch, seconds)
        return sum(trainer.answer()[clock] for trainer in self.trainers)

    def stop(self):
        for trainer in self.trainers:
            stop(trainer.child)


def cpu(page, options):
    python = torch(options)
    ways = [("1 thread", 1, 1, PROCESSOR), ("2 threads", 2, 1, WALL), ("2 processes of 1 thread", 1, 2, WALL)]
    for label, threads, processes, clock in ways:
        commands = ([OURS, "--threads", threads], [python, THEIRS, "--threads", threads])
        table(page, options, label, MODELS, commands, ["PyTorch"], processes, clock, lambda batch: 0.9)


def gpu(page, options):
    """The same table on the GPU. PyTorch has no Vulkan, so its rows are those of CUDA. Without CUDA they are absent."""
    commands, rivals = [[OURS, "--device", "vulkan"]], []
    page.machine["gpu"] = output([*commands[0], "--name"]).strip()
    try:
        if options.no_torch:
            raise CannotRun("--no-torch")
        theirs = [torch(options), THEIRS, "--device", "cuda"]
        require(theirs)
        commands += [theirs, [*theirs, "--compile"]]
        rivals += ["PyTorch with CUDA", "PyTorch with CUDA, compiled"]
    except CannotRun as reason:
        page.skip("PyTorch with CUDA", str(reason))
    table(page, options, "GPU", GPU_MODELS, commands, rivals, 1, WALL, GPU_LEAST.get)


def require_gpu():
    """Raises the reason if there is no adapter to train on."""
    require([OURS, "--device", "vulkan"])


def require(command):
    """Raises the reason if a trainer cannot do the smallest task."""
    side = Side(command, 1)
    try:
        side.measure("mlp", 256, 0.1, WALL)
    finally:
        side.stop()


def torch(options):
    """The Python to measure PyTorch with: the one that was named, or one with PyTorch from PyPI."""
    return options.python or environment("torch", "torch", "numpy", imports="torch")


def table(page, options, label, models, commands, rivals, processes, clock, least):
    """One row per model, batch and rival. `least` is the ratio wanted at a batch, if one is."""
    seconds, turns = (0.5, 1) if options.quick else (2, 3)
    sides = []
    try:
        sides = [Side(command, processes) for command in commands]
        for model in models:
            for batch in BATCHES:
                rates = [[side.measure(model, batch, seconds, clock) for side in sides] for _ in range(turns)]
                ours, *theirs = map(statistics.median, zip(*rates))
                name = f"local update of {model}, batch {batch}, {label}"
                unit = "samples/s" if clock == WALL else "samples/cpu s"
                target = ratio(least(batch)) if theirs and least(batch) else None
                for at, against in enumerate([Rival(*pair) for pair in zip(rivals, theirs)] or [None]):
                    title = f"{name}, against {against.name}" if at else name
                    page.row(title, ours, unit, target, shown(commands[0]), against)
    except CannotRun as reason:
        page.skip(f"local updates, {label}", str(reason))
    finally:
        for side in sides:
            side.stop()
