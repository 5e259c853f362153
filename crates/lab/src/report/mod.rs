//! The results of runs for people to read: one HTML file, plots, CSV, and comparisons.
//!
//! ```text
//! folders ─► load ─► run (what a report knows of a run) ─┬► figures ─► lines, bars, heat ─► svg ─┐
//!                                                        ├► compare ─► stats, effort             ├► page ─► html
//!                                                        └► csv                                  ┘
//!             scale (runs of the protocol alone)
//! ```
//!
//! A report only reads. It asks no node, trains nothing and changes no file of a run. Absent numbers are shown as absent.

mod bars;
pub(crate) mod compare;
pub(crate) mod csv;
pub(crate) mod effort;
pub(crate) mod figures;
#[cfg(test)]
mod fixtures;
mod heat;
mod html;
mod lines;
pub(crate) mod load;
pub(crate) mod page;
pub(crate) mod run;
pub(crate) mod scale;
mod stats;
pub(crate) mod svg;
#[cfg(test)]
mod tests;
pub(crate) mod words;
