//! Predictions of one model over HTTP.
//!
//! ```text
//! request ─► token ─► a free place? ─► body, bounded ─► request: rows, table, images, texts
//!                        └─ 503                             │ Reader: any thread
//!                                                           ▼
//! answer ◄── names of classes ◄── answers ◄── queue ◄── samples
//!                                              └─ Predictor: one thread of its own, 64 samples a turn
//! ```
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/predict` | a class and its probability for each sample |
//! | `GET /v1/model` | [`ModelFacts`]: what the model takes, what it answers, where it comes from |
//! | `GET /v1/openapi.json` | these requests for programs, as OpenAPI 3.1 |
//! | `GET /healthz` | that the server runs; needs no token |
//!
//! **One thread predicts.** A model is used by one thread at a time. Requests that wait together are predicted together:
//! every turn of the thread takes some samples of each. So a request for one row waits for two turns at
//! most, however many rows another request has.
//!
//! **Everything is bounded:** connections, the body, the samples of a request, the requests at a time, how long head and body may take.
//! Who comes when all places are taken is told so at once, with status 503.
//!
//! **The token** is as for the control API of a node: new at every start, in a file that only its owner can read
//! ([`AccessFile`]). Requests and answers are not encrypted, so other machines should come through a proxy that encrypts.
//!
//! This crate knows HTTP and nothing of tensors, data formats or federations. A [`Reader`] and a [`Predictor`] bring those.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use fednode_serve::{Answer, Batch, Input, ModelFacts, Piece, Predictor, Reader, Refused, Server, Settings};
//!
//! /// Answers with class 0, whatever it is asked.
//! struct Constant(Arc<ModelFacts>);
//!
//! impl Reader for Constant {
//!     type Samples = ();
//!     fn facts(&self) -> Arc<ModelFacts> {
//!         Arc::clone(&self.0)
//!     }
//!     fn read(&self, input: Input<'_>) -> Result<Batch<()>, Refused> {
//!         match input {
//!             Input::Cells(rows) => Ok(Batch { samples: (), len: rows.len(), ids: Vec::new() }),
//!             _ => Err(Refused::Unfit("the model takes rows".into())),
//!         }
//!     }
//! }
//!
//! struct Zero;
//!
//! impl Predictor<()> for Zero {
//!     fn predict(&mut self, pieces: &[Piece<'_, ()>]) -> Result<Vec<Answer>, String> {
//!         let n = pieces.iter().map(|piece| piece.range.len()).sum();
//!         Ok(vec![Answer { class: 0, probabilities: vec![1.0], number: None, expert: None }; n])
//!     }
//! }
//!
//! # async fn example() -> Result<(), fednode_serve::StartError> {
//! let settings = Settings { bind: ([127, 0, 0, 1], 0).into(), access_file: "serve.json".into() };
//! let server = Server::start(Constant(Arc::default()), Zero, &settings).await?;
//! println!("http://{}", server.address());
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod connections;
mod model;
mod problem;
mod queue;
mod request;
mod server;

pub use access::AccessFile;
pub use model::{
    Answer, Batch, ColumnFacts, ColumnKind, Input, InputFacts, ModelFacts, Piece, Predictor,
    Reader, Refused,
};
pub use request::{MOST_BYTES, MOST_SAMPLES};
pub use server::{OPENAPI, Server, Settings, StartError};
