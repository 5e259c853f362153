"""What is installed where: one tree of files, from which each format takes its own."""
import dataclasses
import gzip
import io
import os
import pathlib
import tarfile

from . import sbom, texts
from .source import ROOT

UNITS = "usr/lib/systemd/system"
DOC = "usr/share/doc/fednode"
SETTINGS = ("etc/fednode/fedboot.env", "etc/fednode/fednode.env")


@dataclasses.dataclass(frozen=True)
class File:
    """A file or, without content, a folder; `owner` is 0 but in images."""

    content: bytes | None
    mode: int = 0o644
    owner: int = 0


class Tree(dict):
    """Files by their paths, which have no slash in front."""

    def put(self, path, content, mode=0o644):
        self[path] = File(content.encode() if isinstance(content, str) else content, mode)

    def folder(self, path, mode=0o755, owner=0):
        self[path] = File(None, mode, owner)

    def whole(self):
        """Yields paths and files in order, with the folders that hold them."""
        folders = {str(parent) for path in self for parent in pathlib.PurePosixPath(path).parents} - {"."}
        plain = {folder: File(None, 0o755) for folder in folders}
        yield from sorted({**plain, **self}.items())

    def write(self, target, epoch):
        """Writes all into a folder, as it is and with one time."""
        target.mkdir(parents=True, exist_ok=True)
        paths = []
        for path, file in self.whole():
            place = target / path
            if file.content is None:
                place.mkdir(exist_ok=True)
            else:
                place.write_bytes(file.content)
            place.chmod(file.mode)
            paths.append(place)
        for place in [*reversed(paths), target]:
            os.utime(place, (epoch, epoch))

    def tar(self, epoch, prefix=""):
        """Returns all as the bytes of a tar archive."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for path, file in self.whole():
                entry = tarfile.TarInfo(prefix + path)
                entry.mode, entry.mtime, entry.uid, entry.gid = file.mode, epoch, file.owner, file.owner
                if file.content is None:
                    entry.type = tarfile.DIRTYPE
                    archive.addfile(entry)
                else:
                    entry.size = len(file.content)
                    archive.addfile(entry, io.BytesIO(file.content))
        return buffer.getvalue()


def packed(data, level):
    """Returns what gzip makes of bytes, without a name and a time."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=level, mtime=0) as file:
        file.write(data)
    return buffer.getvalue()


def installed(source):
    """The tree of a system package, without what only Debian or only RPM wants."""
    tree = Tree()
    for name, path in source.programs.items():
        tree.put(f"usr/bin/{name}", path.read_bytes(), 0o755)
        page = texts.manual(name, source)
        tree.put(f"usr/share/man/man1/{name}.1.gz", packed(page.encode(), 9))
        for place, text in texts.completions(name, source).items():
            tree.put(place, text)
    systemd = ROOT / "packaging" / "systemd"
    for name in ("fednode@.service", "fedboot.service"):
        tree.put(f"{UNITS}/{name}", (systemd / name).read_bytes())
    tree.put("usr/lib/sysusers.d/fednode.conf", (systemd / "fednode.sysusers").read_bytes())
    for path in SETTINGS:
        tree.put(path, (systemd / pathlib.PurePosixPath(path).name).read_bytes())
    tree.put(f"{DOC}/examples/gpu.conf", (systemd / "gpu.conf").read_bytes())
    tree.put(f"{DOC}/copyright", texts.copyright_file())
    tree.put(f"{DOC}/fednode.cdx.json", sbom.document(source))
    for path in book():
        tree.put(f"{DOC}/{path.relative_to(ROOT)}", path.read_bytes())
    return tree


def book():
    """Returns the pages of the book and what they link to, whose places to each other stay as they are."""
    pages = (path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb", ".png"))
    return sorted(pages) + [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "experiments/README.md")]
