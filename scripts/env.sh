# Sourced by the other scripts: the build folder, and packages to install. Not run by itself.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# One target directory outside the checkout, so that another clone need not build everything again.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/fednode/target}

# Some programs hold the path of the checkout that they were built in. Those of another checkout are built anew.
built_in=$CARGO_TARGET_DIR/.checkout
if [ "$(cat "$built_in" 2>/dev/null)" != "$root" ]; then
    if grep -rl --include='*.rs' CARGO_MANIFEST_DIR "$root"/{crates,daemon,bootstrap,tests} | xargs -r -d '\n' touch -c; then
        mkdir -p "$CARGO_TARGET_DIR" && echo "$root" >"$built_in"
    else
        echo "warning: $root cannot be written to: tests that were built in another checkout may look for files there" >&2
    fi
fi
unset built_in

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

# build_programs [--cpu [TARGET]]: builds `fednode` and `fedboot` for use, and prints the folder that holds them. --cpu leaves the GPU
# path out. These programs are smaller, are built in less time, and on Linux are linked to no library at all. TARGET is what Rust
# calls another kind of machine, such as aarch64-unknown-linux-gnu.
build_programs() {
    local host target
    if [ "${1:-}" != --cpu ]; then
        cargo build --release --locked --bin fednode --bin fedboot >&2 || return
        echo "$CARGO_TARGET_DIR/release"
        return
    fi
    host=$(rustc -vV | sed -n 's/^host: //p')
    target=${2:-$host}
    local settings=()
    case $target in *-linux-gnu) settings+=(RUSTFLAGS="-C target-feature=+crt-static") ;; esac
    if [ "$target" != "$host" ]; then
        need_target "$target" >&2 || return
        settings+=("$(linker_variable "$target")=$(cross_compiler "$target")")
    fi
    # With a target named, flags are not for what runs during the build.
    env ${settings[@]+"${settings[@]}"} cargo build --release --locked -p fednode -p fedboot --no-default-features \
        --target "$target" --target-dir "$CARGO_TARGET_DIR/cpu" >&2 || return
    echo "$CARGO_TARGET_DIR/cpu/$target/release"
}

# need_target TARGET: whether programs for another kind of machine can be built here. What Debian has is installed.
need_target() {
    local machine=${1%%-*} debian
    case $1 in
        aarch64-unknown-linux-gnu) debian=arm64 ;;
        x86_64-unknown-linux-gnu) debian=amd64 ;;
        *)
            echo "programs for $1 are not made here: there are aarch64-unknown-linux-gnu and x86_64-unknown-linux-gnu" >&2
            return 1
            ;;
    esac
    if ! [ -d "$(rustc --print target-libdir --target "$1")" ]; then
        echo "Rust's standard library for $1 is missing: rustup target add $1" >&2
        return 1
    fi
    install_packages "gcc-${machine//_/-}-linux-gnu" "libc6-dev-$debian-cross" || return
    if ! command -v "$(cross_compiler "$1")" >/dev/null; then
        echo "the C compiler $(cross_compiler "$1") is missing" >&2
        return 1
    fi
}

# cross_compiler TARGET: what Debian calls the C compiler for that machine, which also links.
cross_compiler() {
    echo "${1%%-*}-linux-gnu-gcc"
}

# linker_variable TARGET: the variable by which cargo hears of the linker.
linker_variable() {
    echo "CARGO_TARGET_$(tr a-z- A-Z_ <<<"$1")_LINKER"
}

# The compiler that the bundled SQLite needs, whatever the system.
need_compiler() {
    command -v cc >/dev/null || install_packages build-essential
    command -v cargo >/dev/null || { echo "cargo is missing: install a Rust toolchain (https://rustup.rs)" >&2; exit 1; }
}
