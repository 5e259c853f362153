//! How good predictions are: measures of classes and of numbers, each with an interval.
//!
//! Accuracy alone misleads where classes are rare, where probabilities are used, and where the target is a number. Users
//! of hospitals' and banks' data ask for other measures. This crate has them as pure functions of predictions and truth.
//!
//! | module | is |
//! |---|---|
//! | [`predictions`] | checked predictions beside the truth: [`Classified`] or [`Estimated`] |
//! | [`measure`] | a table of measures, one file and one row each |
//! | [`confusion`] | the confusion matrix, with precision, recall and F1 of each class |
//! | [`share`] | how far a counted share may be off |
//! | [`bootstrap`](mod@bootstrap) | how far a measure may be off on a small test, and whether two classifiers differ |
//!
//! # Conventions
//!
//! Numbers are those of scikit-learn, and a golden file holds them to it. The calibration error, which scikit-learn lacks,
//! is that of Guo et al. (ICML 2017). Three conventions deserve a word.
//!
//! - **Undefined is `None`.** scikit-learn answers with NaN, 0 or 1 and a warning where a measure has no value. Here a
//!   missing value is missing: AUROC without one of the classes, R² of a constant truth. Every file names its cases.
//! - **Two classes.** Class 1 is the positive one of AUROC and AUPRC. The Brier score of two classes is halved, so that it
//!   is the mean of (p − y)².
//! - **A tie goes to the first class.** The predicted class is the first of those with the highest probability.
//!
//! # Resampling is weighing
//!
//! A bootstrap resample draws rows with replacement, so each row occurs some number of times: its count. Every measure is
//! *prepared* once for the predictions: sorted, or reduced to one loss a row. It then answers for any counts of the rows in
//! one pass, and its plain value is the answer for counts of 1. So each measure has one definition, and AUROC sorts once for
//! a thousand resamples.
//!
//! ```
//! use fednode_measure::{Bootstrap, Measure, Predictions};
//!
//! // Four rows of two classes: the probabilities row by row, and the true classes.
//! let probabilities = [0.9, 0.1, 0.6, 0.4, 0.65, 0.35, 0.2, 0.8];
//! let predictions = Predictions::of_classes(2, &probabilities, &[0, 0, 1, 1])?;
//! assert_eq!(Measure::Accuracy.of(&predictions), Some(0.75));
//! assert_eq!(Measure::Auroc.of(&predictions), Some(0.75));
//! assert_eq!(Measure::Rmse.of(&predictions), None);
//!
//! let measure: Measure = "accuracy".parse()?;
//! let interval = Bootstrap::seeded(7).interval(measure, &predictions).expect("accuracy has a value");
//! assert!(interval.low <= 0.75 && 0.75 <= interval.high);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Everything here is a pure function of its arguments: no I/O, clocks, threads or ambient randomness. The crate uses no
//! other of the workspace, so that a spec, a learner and a report can all name measures.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bootstrap;
pub mod confusion;
pub mod measure;
pub mod predictions;
pub mod share;
mod split_mix;

pub use bootstrap::{Bootstrap, BootstrapError, Interval};
pub use confusion::Confusion;
pub use measure::{Better, Measure, UnknownMeasure};
pub use predictions::{Classified, Estimated, Predictions, PredictionsError, Real, Task};
pub use share::clopper_pearson;
