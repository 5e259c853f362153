"""The tarball: programs, units and documents, to be unpacked anywhere; on a glibc system, unless the programs are static."""
import re

from .content import DOC, UNITS, Tree, packed
from .source import ROOT, run

README = """fednode {version} for {machine}, {system}.

bin/fednode and bin/fedboot run from any folder. Nothing need be installed:

    bin/fednode swarm --nodes 3 --rounds 3

share/ holds manual pages and completions. systemd/ holds units: they expect the programs in /usr/bin and the users of
sysusers.d/fednode.conf. doc/ holds the book (begin with doc/docs/SUMMARY.md), licences, the list of changes and a bill of materials.
"""
ANY = "any Linux. These programs train on the CPU alone"
# Where the parts of the installed tree stand in the tarball.
PLACES = [(f"{UNITS}/", "systemd/"), (f"{DOC}/", "doc/"), ("usr/lib/sysusers.d/", "sysusers.d/"),
          ("etc/fednode/", "systemd/"), ("usr/", "")]


def make(source, tree, out, level):
    """Writes the tarball into a folder and returns its path."""
    name = f"fednode-{source.version}-{source.machine}-linux-{'static' if source.is_static else 'gnu'}"
    system = ANY if source.is_static else f"Linux with glibc {glibc(source)} or newer"
    moved = Tree()
    for path, file in tree.items():
        old, new = next(pair for pair in PLACES if path.startswith(pair[0]))
        moved[new + path.removeprefix(old)] = file
    fields = {"version": source.version, "machine": source.machine, "system": system}
    moved.put("README", README.format(**fields))
    moved.put("doc/CHANGELOG.md", (ROOT / "CHANGELOG.md").read_bytes())
    package = out / f"{name}.tar.gz"
    package.write_bytes(packed(moved.tar(source.epoch, f"{name}/"), level))
    return package


def glibc(source):
    """Returns the newest version of glibc of which the programs need a symbol."""
    said = "".join(run(source.tool("objdump"), "-T", path) for path in source.programs.values())
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_(\d+(?:\.\d+)+)", said)}
    return ".".join(map(str, max(versions)))
