//! Keeps glibc's allocator from hoarding small blocks and from giving large ones back at once.
//!
//! Glibc gives up to eight arenas per core to a program's threads and returns little of what is freed in them. Experts
//! come and go by the megabyte on every thread of a node, so the arenas fill up with what nobody uses. That was 200 to
//! 240 MB against 120 MB with two arenas (500 samples, four experts of the CNN, two cores). Other allocators were no
//! better (mimalloc: 205 MB).
//!
//! Blocks above 32 MB on the other hand are taken from the system and given back every time. Every page of them is
//! cleared when it is touched. For that, averaging 10 million floats among four nodes took 2.6 to 2.9 s, 1.7 to 2.5
//! without. So blocks up to 256 MB come from the arenas, too, and 128 MB of what is free may stay there.
//!
//! All this can be set from the environment only, before the program starts; so a program that calls [`settle`] starts
//! itself anew, once, in the same process. Where the C library is another one, the variables mean nothing.

use std::os::unix::process::CommandExt;
use std::process::Command;

const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "2");
const LARGE: [(&str, &str); 2] = [
    ("MALLOC_MMAP_THRESHOLD_", "268435456"),
    ("MALLOC_TRIM_THRESHOLD_", "134217728"),
];

/// Starts the program anew with settings that suit it, unless the environment says how many arenas; goes on as it is if
/// that fails.
pub fn settle() {
    if cfg!(not(target_env = "gnu")) || std::env::var_os(ARENAS.0).is_some() {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        let mut anew = Command::new(program);
        anew.args(std::env::args_os().skip(1))
            .env(ARENAS.0, ARENAS.1)
            .envs(LARGE);
        // Returns only if it fails: more memory and time are then all that is lost.
        let _ = anew.exec();
    }
}
