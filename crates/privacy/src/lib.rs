//! Differential privacy as numbers: what noise promises, what releases cost together, and exact noise to draw.
//!
//! A node may release sums over its samples: class statistics once, or clipped gradients in every step of training. A sum
//! is private if it would look almost the same with one sample more or less. Noise makes it so, and two numbers say how
//! much: the privacy loss is at most ε, except with a probability of δ. Every release adds to the loss, so somebody has to
//! keep count. This crate is the arithmetic of that; what is released, and when, others decide.
//!
//! | module | is |
//! |---|---|
//! | [`units`] | ε, δ, noise and sampling rate, checked once |
//! | [`gaussian`] | one Gaussian release, exactly: ε, δ and noise, each from the other two |
//! | [`rdp`] | Rényi curves of releases and of whole training runs, which add |
//! | [`pld`] | a tighter number for training runs that are known beforehand |
//! | [`budget`] | what was released, what it cost, and whether another release still fits |
//! | [`statistics`] | the mechanism for class statistics: sensitivity, noise by statistic, shares of members |
//! | [`one_run`] | the other side: the least ε that guesses of who is in a release give away |
//! | [`discrete`] | noise on whole numbers, drawn without a float |
//! | [`rounded`] | the same for training, where it has to be fast |
//!
//! # From ε to noise on a grid
//!
//! ```text
//! ε, δ ──► noise σ for sensitivity 1 ──► × sensitivity ──► ÷ √(members who stay) ──► ÷ grid unit, squared ──► draws
//!        gaussian                      statistics         statistics               discrete::Variance       discrete
//! ```
//!
//! ```
//! use fednode_privacy::budget::{Adjacency, Budget, Calibrated, Change, Mechanism, Release, Unit};
//! use fednode_privacy::gaussian;
//! use fednode_privacy::units::{Delta, Epsilon};
//!
//! let (epsilon, delta) = (Epsilon::new(4.0)?, Delta::new(1e-5)?);
//! let noise = gaussian::noise_for(epsilon, delta).expect("a usual promise");
//! assert!((noise.get() - 1.081).abs() < 1e-3);
//!
//! let adjacency = Adjacency { unit: Unit::Row, change: Change::AddRemove };
//! let budget = Budget { epsilon, delta, adjacency };
//! let statistics = Release {
//!     what: "class statistics".to_owned(),
//!     when: 1_900_000_000,
//!     mechanism: Mechanism::Gaussian { noise: Calibrated::new(noise.get(), 1.0)?, adjacency },
//! };
//! assert!(budget.may_release(&[], &statistics)?.epsilon <= 4.0);
//! // The same once more does not fit: publishing once is part of the promise.
//! assert!(budget.may_release(&[statistics.clone()], &statistics).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which accountant
//!
//! - **One Gaussian release, or several**: exact. Their 1/σ² add, and the formula of Balle and Wang does the rest.
//! - **Training, in a budget**: Rényi curves. They hold even if each release is chosen by what earlier ones said.
//! - **Training, planned**: the privacy loss distribution. Its ε is 4 to 15 % lower for most runs, and many times lower
//!   for a few steps at a small rate.
//!
//! Numbers are held to those of Google's dp-accounting and of Opacus (`tests/accounting.json`). Every accountant errs to the
//! safe side: an ε that is returned is never below the truth by more than the last digits of a float.
//!
//! Everything here is a pure function of its arguments: no I/O, clocks, threads or ambient randomness. Draws take their
//! source as an argument. The crate uses no other of the workspace.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod budget;
pub mod discrete;
pub mod gaussian;
mod normal;
pub mod one_run;
pub mod pld;
pub mod rdp;
pub mod rounded;
pub mod statistics;
pub mod units;
