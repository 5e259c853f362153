# Sourced by the other scripts: the build folder, and packages to install. Not run by itself.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# One target directory outside the checkout, so that another clone need not build everything again.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/fednode/target}

# install_packages NAME…: installs missing packages with apt. On other systems than Debian it names them.
install_packages() {
    local missing=()
    for package in "$@"; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if ! command -v apt-get >/dev/null; then
        echo "please install what Debian calls: ${missing[*]}" >&2
        return
    fi
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || { echo "please install as root: apt-get install ${missing[*]}" >&2; return 1; }
        sudo=(sudo)
    fi
    echo "installing ${missing[*]}"
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# The compiler that the bundled SQLite needs, whatever the system.
need_compiler() {
    command -v cc >/dev/null || install_packages build-essential
    command -v cargo >/dev/null || { echo "cargo is missing: install a Rust toolchain (https://rustup.rs)" >&2; exit 1; }
}
