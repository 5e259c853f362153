//! Raw tables: from cells with words and gaps to features on which all nodes agree, without any node showing a row.
//!
//! ```text
//! organiser's file ── Survey ──► columns: names, kinds, levels        (in the spec)
//! each node's file ── encode ──► raw values, a gap is NaN             (stays at home)
//!                  ── moments ─► means of powers, shares of levels    (averaged in the first round)
//! averaged moments ── Treatment ► the same features on every node
//! ```
//!
//! | file | is |
//! |---|---|
//! | `cell` | what the words of a cell mean: gaps, numbers, truth values, levels |
//! | `survey` | what a file holds, column by column, and what is proposed for it |
//! | `moments` | what a node adds up of a column |
//! | `treatment` | how raw values become features, given the moments of everybody |

mod cell;
mod moments;
mod survey;
mod treatment;

pub use cell::{CellError, Decimal, encode};
pub(crate) use cell::{is_gap, is_no_label, number};
pub use moments::{BINS, moments, n_moments, public_moments, public_spread};
pub use survey::{Proposal, Survey};
pub use treatment::{Described, Made, Of, Summary, Treatment};
