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

# build_programs [--cpu]: builds `fednode` and `fedboot` for use, and prints the folder that holds them. --cpu leaves the GPU path
# out. These programs are smaller, are built in less time, and on Linux are linked to no library at all.
build_programs() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    if [ "${1:-}" != --cpu ]; then
        cargo build --release --locked --bin fednode --bin fedboot >&2 || return
        echo "$CARGO_TARGET_DIR/release"
        return
    fi
    local static=()
    case $host in *-linux-gnu) static=(env RUSTFLAGS="-C target-feature=+crt-static") ;; esac
    # With a target named, flags are not for what runs during the build.
    ${static[@]+"${static[@]}"} cargo build --release --locked -p fednode -p fedboot --no-default-features \
        --target "$host" --target-dir "$CARGO_TARGET_DIR/cpu" >&2 || return
    echo "$CARGO_TARGET_DIR/cpu/$host/release"
}

# The compiler that the bundled SQLite needs, whatever the system.
need_compiler() {
    command -v cc >/dev/null || install_packages build-essential
    command -v cargo >/dev/null || { echo "cargo is missing: install a Rust toolchain (https://rustup.rs)" >&2; exit 1; }
}
