//! The commands, one file each: what is typed, what is done, what is printed.

pub(crate) mod advise;
pub(crate) mod algorithms;
pub(crate) mod completions;
pub(crate) mod dashboard;
pub(crate) mod data;
pub(crate) mod describe;
pub(crate) mod doctor;
pub(crate) mod evaluate;
pub(crate) mod experts;
pub(crate) mod export;
pub(crate) mod init;
pub(crate) mod join;
pub(crate) mod members;
pub(crate) mod peers;
pub(crate) mod personalise;
pub(crate) mod predict;
pub(crate) mod privacy;
pub(crate) mod probe_device;
pub(crate) mod replay;
pub(crate) mod serve;
pub(crate) mod spent;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod tensorboard;
pub(crate) mod watch;
