"""Makes packages of built binaries, for `scripts/package`.

    source: version, time, binaries ─► content: what is installed where ─► tarball, deb, rpm, image: one file each

A module writes nothing but what it is asked for. Nothing in a package depends on the folder, the user, the clock or the
locale: the time is that of the last commit, owners are 0:0, and files stand in the order of their names.
"""
