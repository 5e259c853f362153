"""Texts of a package that come from the programs and the repository: manual pages, completions, licences."""
import re
import time

from .source import ROOT

COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/{}",
    "zsh": "usr/share/zsh/site-functions/_{}",
    "fish": "usr/share/fish/vendor_completions.d/{}.fish",
}
HEAD = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: fednode

Files: *
Copyright: the authors of fednode
License: Expat or Apache-2.0
Comment: The programs contain the crates that fednode.cdx.json lists, under the licences of their authors.

"""


def completions(name, source):
    """Returns the completions of a program by their places."""
    return {place.format(name): source.said_by(name, "completions", shell) for shell, place in COMPLETIONS.items()}


def commands(help_text):
    """Returns the names that `--help` lists under `Commands:`."""
    block = re.search(r"^Commands:\n((?:  .*\n)+)", help_text, re.MULTILINE)
    names = re.findall(r"^  (\S+)", block[1], re.MULTILINE) if block else []
    return [name for name in names if name != "help"]


def manual(name, source):
    """Returns a manual page: what `--help` says of the program and of each of its commands."""
    whole = source.said_by(name, "--help")
    about = whole.splitlines()[0].rstrip(".")
    day = time.strftime("%Y-%m-%d", time.gmtime(source.epoch))
    lines = [f'.TH {name.upper()} 1 "{day}" "{name} {source.version}" "User Commands"', ".nh"]
    lines += [".SH NAME", f"{name} \\- {roff(about[:1].lower() + about[1:])}"]
    lines += [".SH SYNOPSIS", f".B {name}", "COMMAND [FLAGS]", ".SH DESCRIPTION", *literal(whole)]
    for command in commands(whole):
        lines += [f".SH {name.upper()} {command.upper()}", *literal(source.said_by(name, command, "--help"))]
    return "\n".join(lines) + "\n"


def literal(text):
    return [".nf", *(roff(line) for line in text.rstrip().splitlines()), ".fi"]


def roff(line):
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def copyright_file():
    """Returns the file of licences, in Debian's form."""
    return HEAD + paragraph("Expat", read("LICENSE-MIT")) + "\n" + paragraph("Apache-2.0", read("LICENSE-APACHE"))


def debian_copyright():
    """Returns the same for Debian, which has the text of the second licence on every system."""
    place = "The text is in /usr/share/common-licenses/Apache-2.0."
    return HEAD + paragraph("Expat", read("LICENSE-MIT")) + "\n" + paragraph("Apache-2.0", place)


def paragraph(name, text):
    return f"License: {name}\n" + "".join(f" {line.rstrip() or '.'}\n" for line in text.rstrip().splitlines())


def read(name):
    return (ROOT / name).read_text()
