//! How small files are written: settings, keys, tokens, what a command leaves for a service.
//!
//! ```text
//!   bytes ──► NAME.partial, new, with its rights ──► its owner ──► on the disk ──► NAME
//!                                                   (owner)                     (whole_file)
//! ```
//!
//! A crash or a full disk leaves the old file or the new one, never a piece. An administrator may run commands as root in the
//! folder of a service: what they write stays the service's. Blobs and checkpoints are `fednode-store`'s, which has its own ways.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod owner;
pub mod whole_file;
