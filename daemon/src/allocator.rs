//! Keeps glibc's allocator from hoarding: half the resident memory of a training node.
//!
//! Glibc gives up to eight arenas per core to a program's threads and returns little of what is freed in them. Experts
//! come and go by the megabyte on every thread of a node, so the arenas fill up with what nobody uses: 200 to 240 MB
//! against 120 MB with two arenas (500 samples, four experts of the CNN, two cores). Other allocators were no better
//! (mimalloc: 205 MB). The number can be set from the environment only, before the program starts; so the program
//! starts itself anew, once, in the same process. Where the C library is another one, the variable means nothing.

use std::os::unix::process::CommandExt;
use std::process::Command;

const VARIABLE: &str = "MALLOC_ARENA_MAX";
const ARENAS: &str = "2";

/// Starts the program anew with few arenas, unless the environment says how many; goes on as it is if that fails.
pub(crate) fn limit_arenas() {
    if cfg!(not(target_env = "gnu")) || std::env::var_os(VARIABLE).is_some() {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        // Returns only if it fails: more memory is then all that is lost.
        let _ = Command::new(program).args(std::env::args_os().skip(1)).env(VARIABLE, ARENAS).exec();
    }
}
