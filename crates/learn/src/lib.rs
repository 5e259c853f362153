//! Everything with a tensor: devices, models, algorithms, training, evaluation.
//!
//! A node owns one [`Learner`]. It is made from the federation's spec, the node's data and a device, and from then on
//! only plain numbers go in and out:
//!
//! ```text
//!            spec ─► algorithm::TABLE ─► Learner ◄── data (train, validation, test)
//!                                          │ ▲
//!            local_update: shared part,  ──┘ └── adopt: mean of the shared parts, mixed experts
//!            experts, proxies, loss              restore: a checkpoint
//! ```
//!
//! - [`algorithm`]: one file per federated algorithm, each with its split of the model, its step, its hyper-parameters
//!   and its exchange.
//! - [`optimizer`]: one file per optimiser, and the learning-rate schedules; the training loop owns them.
//! - [`model`]: one file per model; a model is a list of layers that algorithms split where they need.
//! - [`metric`]: by what measure models are judged, guarded and reported.
//! - [`own_model`]: nodes of different models in one federation.
//! - [`gate`]: top-1 routing, the core of the mixture of experts.
//! - [`device`] and [`probe`]: GPU through Vulkan, or the CPU; how to find out without being taken down by a driver;
//!   `vulkan` alone touches it, and is left out of programs for the CPU.
//! - [`trial`]: whether a GPU is worth using for a model; [`fallback`]: one that fails in the middle of a round.
//! - [`growing`]: samples that come while a node trains.
//! - `resident`: the training samples on a GPU.
//! - `pool`: the stage after the last round, a mixture of everybody's private modules.
//! - `frozen`: what frozen parts make of each sample, computed once per stage; [`CacheBudget`]: where that is kept, memory or a
//!   file; `augment`: random crops and flips.
//! - `private`: training under a promise of differential privacy; `noised`: statistics under one.
//! - `total`: whole numbers that are added up once, under masks.
//! - `worker`: a learner as the [`fednode_core::work::Worker`] that live driver and simulator give their orders to.
//! - the rest: the training loop, evaluation, and the way of numbers to the device and back.
//!
//! There is no network here, no round logic, no clock that anything depends on and no global random generator.
//!
//! ```
//! # use std::{ops::ControlFlow, sync::Arc};
//! use fednode_core::{FederationSpec, Round};
//! use fednode_data::{Pixels, Samples, Split};
//! use fednode_learn::{ComputeDevice, Learner, Subset, algorithm};
//!
//! let mut spec = FederationSpec::default();
//! spec.model.name = "mlp".into();
//! spec.fingerprints.input = [1, 2, 2];
//! spec.fingerprints.classes = 2;
//! spec.model.experts = 2;
//! algorithm::fill_exchange(&mut spec)?;
//!
//! // Two classes: bright above, bright below.
//! let pixels = Pixels::Floats([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]].repeat(50).concat());
//! let names = ["above".to_owned(), "below".to_owned()];
//! let samples = Samples::new([1, 2, 2], pixels, [0, 1].repeat(50), Arc::new(names))?;
//! let split = Split { train: samples.clone(), validation: samples.clone(), test: samples };
//!
//! let mut learner = Learner::new(&spec, 0, Arc::new(split), &ComputeDevice::cpu(1)?)?;
//! for round in 1..=20 {
//!     learner.local_update(Round(round), &mut |_progress| ControlFlow::Continue(()))?;
//! }
//! assert_eq!(learner.evaluate(Subset::Test).score.accuracy, 1.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod algorithm;
pub mod device;
pub mod fallback;
pub mod gate;
pub mod growing;
pub mod last_stage;
pub mod metric;
pub mod model;
pub mod optimizer;
pub mod own_model;
pub mod probe;
pub mod trial;

mod agreement;
mod augment;
mod batch;
mod class_statistics;
mod error;
mod evaluate;
mod explosion;
mod exposure;
mod feature_cache;
mod frozen;
mod learner;
mod maps;
mod memory;
mod noised;
mod pool;
mod private;
mod promised;
mod regression;
mod resident;
mod total;
mod train;
mod vulkan;
mod weights;
mod words;
mod worker;

pub use batch::Batch;
pub use device::{ComputeDevice, DeviceChoice};
pub use error::LearnError;
pub use evaluate::{ClassCount, Evaluation, Prediction};
pub use exposure::{Exposure, FALSE_ALARMS, Redrawn};
pub use feature_cache::CacheBudget;
pub(crate) use fednode_core::random;
pub use fednode_core::random::Draws;
pub use learner::{Learner, Subset};
pub use memory::Memory;
pub use noised::{Canaried, NoiseKey};
pub use pool::{BiasStart, GateInput, GateSettings, ModuleScore, PoolSettings, Renormalize};
pub use train::cross_entropy;
pub use weights::Weights;
