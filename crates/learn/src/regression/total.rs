//! One sum of the rows of all sites in place of the peers' own ones, under masks.
//!
//! In an open federation a node fetches the sums of peers and leaves out those whose number goes the other way. Under masks it sees their
//! sum alone, and finds out on its own rows what that is worth.
//!
//! | | what a node adds up | what of it is solved |
//! |---|---|---|
//! | without a promise | its rows around their own means ([`summed`]) | as the sums of one peer, if that could have such rows |
//! | with one | how number and features go together, of rows that are cut to one length, with its share of the noise ([`noised`]) | as precise as noise and rows let it be |

use burn::tensor::Device;
use fednode_core::masked::MAX_HOLDERS;
use fednode_core::{ConfigError, FederationSpec, Round, Total};
use fednode_data::Samples;
use fednode_mix::matching;
use fednode_mix::ridge::noised::{CutRows, NoisyMoments};
use fednode_mix::ridge::summed::{self, NoSum};
use fednode_mix::ridge::{Found, Joint, noised};
use fednode_mix::statistics::StatisticsError;

use super::{Regression, Source, rows_of};
use crate::algorithm::Part;
use crate::noised::{NoiseKey, noise_of_node};
use crate::promised::Promised;
use crate::total;
use crate::weights::Weights;

/// What all nodes add up once.
pub(super) struct RowsTotal {
    /// The own numbers, and then those of all.
    pub(super) part: Part,
    pub(super) total: Total,
    /// How many members' noise hides a row from any other one.
    pub(super) hiding: u32,
    /// How rows are hidden in it; nothing without a promise.
    pub(super) promised: Option<Promised>,
}

/// Why the sum of all nodes makes no line.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
enum NoTotal {
    #[error("the sum does not say how many nodes are in it")]
    Members,
    #[error("the sum of all nodes is none of rows: {0}")]
    Fault(String),
    #[error(
        "noise is too large for so few rows: it takes a larger `privacy.epsilon`, more rows or more nodes"
    )]
    TooNoisy,
    #[error(transparent)]
    Unread(#[from] NoSum),
    #[error(transparent)]
    Unsolved(#[from] StatisticsError),
}

impl RowsTotal {
    /// Makes the part of nodes of so many columns; nothing where they add up nothing.
    ///
    /// # Errors
    /// Refuses a promise that no noise keeps.
    pub(super) fn of(
        spec: &FederationSpec,
        width: usize,
        device: &Device,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(total) = spec.exchange.total else {
            return Ok(None);
        };
        let promised = noise_of_node(spec)?;
        let promised = promised.map(|share| Promised::new(share, &spec.data.columns));
        let numbers = match promised {
            Some(_) => noised::n_whole(width),
            None => summed::n_whole(width),
        };
        Ok(Some(Self {
            part: total::part(numbers, device),
            total,
            hiding: total.hiding(spec.nodes),
            promised,
        }))
    }

    /// Returns what rows add to the sum, without noise.
    fn numbers(&self, samples: &Samples) -> Vec<i64> {
        match &self.promised {
            Some(promised) => cut(promised, samples).whole(promised.radius),
            None => summed::whole(&joint_of(samples), samples.len() as f64),
        }
    }
}

fn joint_of(samples: &Samples) -> Joint {
    let (features, numbers) = rows_of(samples);
    Joint::of(&features, numbers)
}

fn cut(promised: &Promised, samples: &Samples) -> CutRows {
    let (features, numbers) = rows_of(samples);
    let rows = features.chunks_exact(samples.values_per_sample());
    let cut: Vec<f32> = rows.flat_map(|row| promised.cut(row)).collect();
    CutRows::new(samples.values_per_sample(), &cut, numbers)
}

impl Regression {
    /// Tells whether all nodes add up their rows once.
    pub(crate) fn has_total(&self) -> bool {
        self.total.is_some()
    }

    /// Tells whether the own rows are still to be added up for the total.
    pub(crate) fn waits_for_total(&self) -> bool {
        self.has_total() && !self.remembered.is_released
    }

    /// Says where the noise of what is released comes from, where there is any.
    pub(crate) fn draw_from(&mut self, key: NoiseKey) {
        let total = self.total.as_mut();
        if let Some(promised) = total.and_then(|total| total.promised.as_mut()) {
            promised.key = key;
        }
    }

    /// Adds up the own rows for the total.
    pub(crate) fn release(&mut self, samples: &Samples, seeds: [u64; 2], device: &Device) {
        let Some(total) = &mut self.total else { return };
        let mut numbers = total.numbers(samples);
        if let Some(promised) = &total.promised {
            promised.hide(&mut numbers, seeds);
        }
        let written = total::write(numbers.into_iter(), 1.0);
        let weights = Weights::load(&total.part.net, &written, device);
        total.part.weights = weights.expect("a part of its own net");
        self.remembered.is_released = true;
    }

    /// Solves for the line of the total, if it is that which was adopted; the same one is solved again where other own rows have come.
    /// `samples` are these.
    pub(crate) fn adopt_total(&mut self, samples: &Samples, device: &Device) {
        let Some(total) = &self.total else { return };
        let n_own = Some(samples.len() as u32);
        let before = self.remembered.solved;
        let before = before.filter(|_| self.remembered.n_solved == n_own);
        let Some(sum) = total::arrived(&total.part, before) else {
            return;
        };
        self.remembered.n_solved = n_own;
        let solved = total.solve(sum.members, &sum.numbers, samples);
        if self.remembered.gathered.is_none() {
            self.gather(Round(1), samples, device);
        }
        match solved {
            Ok(found) => {
                self.write(Source::Peers, &found.line, device);
                self.remembered.trust = Some(found.setting.trust);
                (self.remembered.solved, self.remembered.missing) = (Some(sum.key), None);
            }
            Err(reason) => {
                let before = self.remembered.missing.replace(reason.to_string());
                (self.remembered.solved, self.remembered.trust) = (None, None);
                if before != self.remembered.missing {
                    tracing::warn!(%reason, "no line of the rows of all nodes");
                }
            }
        }
    }
}

impl RowsTotal {
    fn solve(&self, members: f64, all: &[i64], samples: &Samples) -> Result<Found, NoTotal> {
        // Liars may say any number of members.
        if !(f64::from(self.total.fewest)..=MAX_HOLDERS as f64).contains(&members) {
            return Err(NoTotal::Members);
        }
        let (features, numbers) = rows_of(samples);
        let Some(promised) = &self.promised else {
            let own = joint_of(samples);
            let (rows, joint) = summed::read(all, &own)?;
            // Where sites lie is not in the sum.
            let [mine, theirs] = [&own, &joint].map(Joint::centred);
            matching::judge_rows(&mine, &theirs).map_err(NoTotal::Fault)?;
            return Ok(summed::solve(&features, numbers, (rows, &joint))?);
        };
        let noise = promised.noise_of(members).ok_or(NoTotal::Members)?;
        let moments = NoisyMoments::of_whole(promised.radius, noise, all);
        if let Some(doubt) = moments.doubt() {
            return Err(NoTotal::Fault(doubt.to_owned()));
        }
        if !moments.has_rows() {
            return Err(NoTotal::TooNoisy);
        }
        Ok(moments.solve(&features, numbers, &cut(promised, samples))?)
    }
}
