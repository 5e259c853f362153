//! The control API: what a person or a script asks a running daemon, over HTTP on the loopback interface.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`crate::status::Status`] |
//! | `GET /v1/peers` | list of [`crate::status::Peer`] |
//! | `GET /v1/experts` | [`crate::status::Experts`] |
//! | `GET /v1/rounds` | list of [`crate::status::RoundRecord`] |
//! | `POST /v1/leave` | says goodbye to the federation, then stops |
//! | `POST /v1/stop` | stops after a checkpoint |
//! | `POST /v1/withdraw` | takes back what this node has contributed |
//! | `GET /metrics` | the same figures for Prometheus |
//!
//! Every request needs `Authorization: Bearer <token>`; the token is in `control.json` in the state folder, which only
//! its owner can read, and it changes at every start. `/metrics` takes that of `metrics.token` too, which stays: whoever
//! collects figures needs no other right. The server asks the driver and answers with what it says; it holds no state of its own.

mod client;
mod end;
mod file;
mod server;

pub use client::{Client, ClientError};
pub use end::{Farewell, end, is_free};
pub use file::{FILE_NAME, is_closed, read};

pub(crate) use file::ControlGuard;
pub(crate) use server::{Request, Server, start};
