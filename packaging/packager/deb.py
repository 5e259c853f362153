"""The package for Debian and what is made of it, by dpkg-deb."""
import email.utils
import hashlib

from . import texts
from .content import DOC, SETTINGS, packed
from .source import ROOT, need, run

ZSH = ("usr/share/zsh/site-functions", "usr/share/zsh/vendor-completions")
MAINTAINER = "the authors of fednode <maintainers@fednode.invalid>"
CHANGES = """fednode ({version}) unstable; urgency=medium

  * What changed is in changelog.gz.

 -- {maintainer}  {day}
"""
CONTROL = """Package: fednode
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Section: science
Priority: optional
Depends: {depends}, passwd
Recommends: libvulkan1
Installed-Size: {kibibytes}
Description: peer-to-peer federated learning
 fednode trains models together with parties who cannot pool their data.
 Every party runs one process, keeps its data at home, and ends with a model
 of its own.
 .
 This package holds fednode, one member of a federation, and fedboot, which
 introduces newcomers and averages what all share. Both are systemd units
 that nothing starts by itself.
"""


def make(source, tree, out, level):
    """Writes the package into a folder and returns its path."""
    need("dpkg-deb", "dpkg")
    need("dpkg-shlibdeps", "dpkg-dev")
    tree = for_debian(source, tree)
    folder = source.scratch / "deb"
    tree.write(folder, source.epoch)
    control = folder / "DEBIAN"
    control.mkdir()
    bytes_inside = sum(len(file.content or b"") for file in tree.values())
    fields = {"version": version(source), "maintainer": MAINTAINER, "architecture": source.debian,
              "depends": depends(source), "kibibytes": -(-bytes_inside // 1024)}
    (control / "control").write_text(CONTROL.format(**fields))
    (control / "conffiles").write_text("".join(f"/{path}\n" for path in SETTINGS))
    sums = [f"{hashlib.md5(file.content).hexdigest()}  {path}\n" for path, file in sorted(tree.items())
            if file.content is not None and path not in SETTINGS]
    (control / "md5sums").write_text("".join(sums))
    for script in ("postinst", "prerm", "postrm"):
        (control / script).write_bytes((ROOT / "packaging" / "debian" / script).read_bytes())
        (control / script).chmod(0o755)
    package = out / f"fednode_{version(source)}_{source.debian}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zxz", f"-z{level}", "--threads-max=1", "--build", folder, package,
        env={"SOURCE_DATE_EPOCH": str(source.epoch)})
    return package


def for_debian(source, tree):
    """Moves what stands elsewhere in Debian, and adds what Debian wants."""
    moved = type(tree)((path.replace(*ZSH), file) for path, file in tree.items())
    changes = (ROOT / "CHANGELOG.md").read_bytes()
    moved.put(f"{DOC}/changelog.gz", packed(changes, 9))
    day = email.utils.formatdate(source.epoch)
    entry = CHANGES.format(version=version(source), maintainer=MAINTAINER, day=day)
    moved.put(f"{DOC}/changelog.Debian.gz", packed(entry.encode(), 9))
    moved.put(f"{DOC}/copyright", texts.debian_copyright())
    return moved


def version(source):
    """The version of the package: that of the programs, and the first that Debian has of it."""
    return f"{source.version}-1"


def depends(source):
    """Returns the packages whose libraries the programs need, with versions, as dpkg-shlibdeps finds them."""
    folder = source.scratch / "shlibdeps"
    (folder / "debian").mkdir(parents=True)
    (folder / "debian" / "control").write_text("Source: fednode\n\nPackage: fednode\nArchitecture: any\n")
    said = run("dpkg-shlibdeps", "-O", *source.programs.values(), cwd=folder)
    return said.strip().removeprefix("shlibs:Depends=")
