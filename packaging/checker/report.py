"""Lines of checks: one each, `ok`, `skipped` or `FAILED`, with what was measured or what went wrong."""
import subprocess
import sys


class Failed(Exception):
    """Says in one line what is wrong."""


class Skipped(Exception):
    """Says in one line what is missing here."""


class Report:
    def __init__(self, wanted=()):
        self.wanted, self.failed, self.done = wanted, 0, 0

    def wants(self, name):
        """Whether a check was asked for, or any check of a group."""
        group = name.endswith(":")
        return not self.wanted or any(word in name or group and word.startswith(name) for word in self.wanted)

    def check(self, name, function, *arguments, always=False):
        """Runs a check that returns its note, and prints its line. Returns whether it passed."""
        if not always and not self.wants(name):
            return True
        try:
            self.line("ok", name, function(*arguments))
        except Skipped as reason:
            self.line("skipped", name, reason)
        except (Failed, OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
            self.failed += 1
            self.line("FAILED", name, f"{type(error).__name__}: {error}" if not isinstance(error, Failed) else error)
            return False
        self.done += 1
        return True

    def line(self, word, name, note):
        print(f"{word:<8} {name:<34} {note or ''}".rstrip(), flush=True)

    def end(self):
        if self.failed:
            sys.exit(f"{self.failed} checks failed")
        if not self.done:
            sys.exit("no check was run")


def run(*command, timeout=600, **options):
    """Returns the output of a command; one that fails is told with its last lines."""
    command = [str(word) for word in command]
    options = {"stdin": subprocess.DEVNULL, **options} if "input" not in options else options
    done = subprocess.run(command, text=True, capture_output=True, timeout=timeout, **options)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        # Scripts among the arguments would hide the rest.
        short = " ".join(word for word in command if "\n" not in word)
        raise Failed(f"`{short if len(short) < 120 else '…' + short[-120:]}` ended with {done.returncode}: {' / '.join(last)}")
    return done.stdout


def hold(condition, text):
    """Fails with a text unless the condition holds."""
    if not condition:
        raise Failed(text)
