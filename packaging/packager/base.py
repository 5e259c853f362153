"""What an image holds below the programs: a shell, and the shared libraries that the shell and the programs need.

They are those of this system. For another kind of machine Debian's packages are fetched and unpacked.
"""
import os
import pathlib
import re

from .source import Unusable, need, run

# Where dash lies, and where libraries lie that no path names.
SHELLS = ("usr/bin/dash", "bin/dash")
FOLDERS = ("lib/{}-linux-gnu", "usr/lib/{}-linux-gnu", "lib", "usr/lib")
# Debian's packages that hold what dash needs.
FETCHED = ("dash", "libc6")


class Here:
    """The system that makes the image."""

    root = pathlib.Path("/")

    def __init__(self, source):
        need("dash", "dash")

    def needed(self, program):
        """Returns the shared libraries of a program and its loader: where programs look for them, and the files."""
        said = run("ldd", program)
        paths = re.findall(r"(?:=> |^\s*)(/\S+) \(0x", said, re.MULTILINE)
        return {path: pathlib.Path(path) for path in paths}

    def owner(self, path):
        """Returns name and version of the Debian package of a file."""
        # A merged /usr has each file under two names, and dpkg knows one.
        names = [path, os.path.realpath(path), os.path.realpath(path).removeprefix("/usr")]
        said = next(filter(None, (quiet("dpkg-query", "-S", name) for name in names)), "unknown: ")
        package = said.split(": ")[0].split(":")[0]
        return package, quiet("dpkg-query", "-W", "-f", "${Version}", package) or "unknown"


class Fetched:
    """A folder with Debian's packages for another kind of machine."""

    def __init__(self, source):
        folder = source.scratch / "base"
        self.root, self.machine = folder / "root", source.machine
        self.owners = {}
        for path in download(source, folder):
            package = run("dpkg-deb", "--show", "--showformat", "${Package} ${Version}", path).split()
            run("dpkg-deb", "--extract", path, self.root)
            for line in run("dpkg-deb", "--contents", path).splitlines():
                name = line.split(" -> ")[0].split(" ./")[-1]
                self.owners[os.path.realpath(self.root / name)] = tuple(package)

    def needed(self, program):
        found, left = {}, [program]
        while left:
            said = run(need("readelf", "binutils"), "--program-headers", "--dynamic", "--wide", left.pop())
            for loader, library in re.findall(r"interpreter: (\S+)\]|\(NEEDED\).*\[(\S+)\]", said):
                if any(path.endswith(f"/{library or loader}") for path in found):
                    continue
                places = [loader] if loader else [f"/{folder.format(self.machine)}/{library}" for folder in FOLDERS]
                there = {path: file for path in places if (file := self.inside(path))}
                if not there:
                    raise Unusable(f"{loader or library} is missing in Debian's packages for {self.machine}")
                path = next(iter(there))
                found[path] = there[path]
                left.append(there[path])
        return found

    def inside(self, path):
        """Returns the file below the root that a path means there, if there is one."""
        # Packages for a merged /usr have all files there.
        for start in (path, f"/usr{path}"):
            file = self.root / start.lstrip("/")
            while file.is_symlink():
                target = pathlib.Path(os.readlink(file))
                file = self.root / target.relative_to("/") if target.is_absolute() else file.parent / target
            if file.exists():
                return file
        return None

    def owner(self, path):
        file = self.inside(path)
        return self.owners.get(os.path.realpath(file) if file else None, ("unknown", "unknown"))


def download(source, folder):
    """Brings the packages with a memory of apt's own: what this system knows of packages stays as it is."""
    for place in ("lists/partial", "archives/partial", "debs"):
        (folder / place).mkdir(parents=True)
    (folder / "status").touch()
    settings = {
        "APT::Architecture": source.debian, "APT::Architectures": source.debian, "APT::Sandbox::User": "root",
        "Dir::State": folder, "Dir::State::status": folder / "status", "Dir::Cache": folder,
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    apt = [need("apt-get", "apt"), "-qq", *options]
    try:
        run(*apt, "update")
        run(*apt, "download", *FETCHED, cwd=folder / "debs")
    except Unusable as error:
        raise Unusable(f"{error} (it fetches the shell of the image; `--only tar,wheel` makes the rest)") from None
    return sorted((folder / "debs").glob("*.deb"))


def quiet(*command):
    try:
        return run(*command).strip()
    except (Unusable, FileNotFoundError):
        return None


class Base:
    """The files below the programs: the shell, and libraries by the paths at which programs look for them."""

    def __init__(self, source):
        self.system = Here(source) if source.is_native else Fetched(source)
        inside = (self.system.root / shell for shell in SHELLS)
        self.shell = next((path for path in inside if path.exists()), None)
        if self.shell is None:
            raise Unusable(f"there is no dash below {self.system.root}")
        linked = [] if source.is_static else source.programs.values()
        self.libraries = {}
        for program in [*linked, self.shell]:
            self.libraries.update(self.system.needed(program))

    def packages(self):
        """Returns the Debian packages of all files, with the names of their files."""
        packages = {}
        shell = "/" + str(self.shell.relative_to(self.system.root))
        for path in sorted([*self.libraries, shell]):
            packages.setdefault(self.system.owner(path), []).append(pathlib.Path(path).name)
        return packages

    def copyright(self, package):
        """Returns the licences of a Debian package, if they are here."""
        text = self.system.root / "usr/share/doc" / package / "copyright"
        return text.read_bytes() if text.exists() else None
