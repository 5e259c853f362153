"""The image for containers, made without a daemon: an OCI layout in one tar file, with Docker's own index beside it.

It holds what the programs need and nothing else: glibc with its loader, the other shared libraries, dash as /bin/sh, two
names of users, and the programs. There is no package manager and no certificate authority, as nothing here speaks TLS.
dash is there for the first containers of a pod, which copy keys and use tickets; it has no other program to start.
"""
import hashlib
import json
import time

from . import sbom, texts
from .base import Base
from .content import Tree, packed

USER = 65532
PORT = 4001
PASSWD = f"root:x:0:0:root:/:/bin/false\nfednode:x:{USER}:{USER}:fednode:/state:/bin/false\n"
GROUP = f"root:x:0:\nfednode:x:{USER}:\n"
MEDIA = "application/vnd.oci.image"


def make(source, tree, out, level):
    """Writes the archive into a folder and returns its path."""
    base, libraries = system(source)
    programs = Tree({path: file for path, file in tree.items() if path.startswith("usr/bin/")})
    programs.put("usr/share/doc/fednode/copyright", texts.copyright_file())
    programs.put("usr/share/doc/fednode/fednode.cdx.json", sbom.document(source, libraries))
    blobs = {}
    layers = [layer(part, source, level, blobs) for part in (base, programs)]
    config = blob(blobs, f"{MEDIA}.config.v1+json", as_json(configuration(source, layers)))
    manifest = {
        "schemaVersion": 2, "mediaType": f"{MEDIA}.manifest.v1+json", "config": config,
        "layers": [described for described, _ in layers],
    }
    described = blob(blobs, f"{MEDIA}.manifest.v1+json", as_json(manifest))
    tag = f"{source.version}-cpu" if source.is_static else source.version
    name = f"fednode:{tag}"
    described["annotations"] = {"org.opencontainers.image.ref.name": tag,
                                "io.containerd.image.name": f"docker.io/library/{name}"}
    index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": [described]}
    archive = Tree()
    archive.put("oci-layout", as_json({"imageLayoutVersion": "1.0.0"}))
    archive.put("index.json", as_json(index))
    for digest, data in blobs.items():
        archive.put(path_of(digest), data)
    # Docker before 25 reads this file and none of the others.
    archive.put("manifest.json", as_json([{
        "Config": path_of(config["digest"]), "RepoTags": [name],
        "Layers": [path_of(described["digest"]) for described, _ in layers],
    }]))
    package = out / f"fednode-{tag}-{source.oci}.oci.tar"
    package.write_bytes(archive.tar(source.epoch))
    return package


def system(source):
    """Returns the tree below the programs, and the libraries in it as components."""
    tree, base = Tree(), Base(source)
    tree.put("bin/sh", base.shell.read_bytes(), 0o755)
    for path, file in sorted(base.libraries.items()):
        tree.put(path.lstrip("/"), file.read_bytes(), 0o755)
    tree.put("etc/passwd", PASSWD)
    tree.put("etc/group", GROUP)
    tree.put("etc/nsswitch.conf", "hosts: files dns\n")
    tree.folder("tmp", 0o1777)
    tree.folder("state", 0o700, USER)
    for folder in ("dev", "proc", "sys"):
        tree.folder(folder)
    packages = base.packages()
    for package, _ in packages:
        if text := base.copyright(package):
            tree.put(f"usr/share/doc/{package}/copyright", text)
    return tree, [sbom.library(*package, files) for package, files in sorted(packages.items())]


def layer(tree, source, level, blobs):
    """Adds a layer; returns its descriptor and the hash of its tar."""
    tar = tree.tar(source.epoch)
    described = blob(blobs, f"{MEDIA}.layer.v1.tar+gzip", packed(tar, level))
    return described, digest_of(tar)


def configuration(source, layers):
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(source.epoch))
    said = ["shared libraries and dash", "fednode and fedboot"]
    return {
        "architecture": source.oci, "os": "linux", "created": created,
        "config": {
            "User": f"{USER}:{USER}", "WorkingDir": "/state", "Volumes": {"/state": {}},
            "Env": ["PATH=/usr/bin:/bin"], "Entrypoint": ["/usr/bin/fednode"], "Cmd": ["--help"],
            "ExposedPorts": {f"{PORT}/tcp": {}}, "StopSignal": "SIGTERM",
            "Labels": {"org.opencontainers.image.title": "fednode", "org.opencontainers.image.version": source.version,
                       "org.opencontainers.image.licenses": "MIT OR Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": [diff for _, diff in layers]},
        "history": [{"created": created, "comment": text} for text in said],
    }


def blob(blobs, media, data):
    """Keeps bytes by their hash, and returns their descriptor."""
    blobs[digest_of(data)] = data
    return {"mediaType": media, "digest": digest_of(data), "size": len(data)}


def digest_of(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def path_of(digest):
    return "blobs/" + digest.replace(":", "/")


def as_json(value):
    return json.dumps(value, sort_keys=True).encode()
