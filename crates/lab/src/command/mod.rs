//! The commands, one file each: what is typed, what is done, what is printed.

pub mod report;
pub mod simulate;
pub mod swarm;
