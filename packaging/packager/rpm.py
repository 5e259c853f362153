"""The package for Fedora, RHEL, SUSE and their like, by rpmbuild. What it requires rpm reads off the programs."""
import shutil

from .content import DOC, SETTINGS
from .source import ROOT, Unusable, run

SPEC = """Name: fednode
Version: {version}
Release: 1
Summary: Peer-to-peer federated learning
License: MIT OR Apache-2.0
Requires(pre): /usr/sbin/useradd
Recommends: vulkan-loader

%description
fednode trains models together with parties who cannot pool their data. Every party runs one process, keeps its data at
home, and ends with a model of its own. fedboot introduces newcomers and averages what all share. Both are systemd units
that nothing starts by itself.

%pre
{pre}
%post
{post}
%preun
{preun}
%files
{files}
%attr(0750,fednode,fednode) %dir /var/lib/fednode
%attr(0750,fedboot,fedboot) %dir /var/lib/fedboot
"""


def make(source, tree, out, level):
    """Writes the package into a folder and returns its path, or none where there is no rpmbuild."""
    if shutil.which("rpmbuild") is None:
        return None
    top = source.scratch / "rpm"
    root = top / "root"
    tree.write(root, source.epoch)
    for name in ("fednode", "fedboot"):
        (root / "var" / "lib" / name).mkdir(parents=True)
    scripts = {name: (ROOT / "packaging" / "rpm" / name).read_text() for name in ("pre", "post", "preun")}
    files = "\n".join(line(path) for path, file in sorted(tree.items()) if file.content is not None)
    text = SPEC.format(version=source.version, files=files, **scripts)
    (top / "fednode.spec").write_text(text)
    macros = {
        "_topdir": top, "_rpmdir": top / "out", "_dbpath": top / "db", "_build_id_links": "none",
        "_buildhost": "reproducible", "use_source_date_epoch_as_buildtime": 1,
        "clamp_mtime_to_source_date_epoch": 1, "source_date_epoch_from_changelog": 0,
        "_binary_payload": f"w{level}.gzdio", "debug_package": "%{nil}",
        # The tree is as it should be: nothing is stripped, compressed or rewritten once more.
        "__os_install_post": "%{nil}",
    }
    defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    run("rpmbuild", "-bb", "--noclean", "--target", source.machine, "--buildroot", root, *defines, top / "fednode.spec",
        env={"SOURCE_DATE_EPOCH": str(source.epoch)})
    made = list((top / "out").glob("*/*.rpm"))
    if len(made) != 1:
        raise Unusable(f"rpmbuild made {len(made)} packages")
    return shutil.move(made[0], out / made[0].name)


def line(path):
    """Returns the entry of a file in the list of the package."""
    if path in SETTINGS:
        return f"%config(noreplace) /{path}"
    if path.startswith((DOC, "usr/share/man/")):
        return f"%doc /{path}"
    return f"/{path}"
