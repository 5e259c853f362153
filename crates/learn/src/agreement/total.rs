//! One sum of all sites, under masks: raw tables whose nodes add up what their common slope is made of ([`fednode_mix::sites`]).
//!
//! In an open federation a node fetches the statistics of peers and leaves out those whose classes differ otherwise than its own. Under
//! masks it sees their sum alone, and judges that:
//!
//! ```text
//! sum of all sites ──► could rows have it? ──► w: how far its classes differ as the own ones do ──► w · sum and the own ones
//! ```
//!
//! "Could rows have it" looks at laws that every sum of rows keeps, and at how widely rows spread beside the own ones. How many rows a
//! member counts cannot be seen.
//!
//! So a node whose labels are exchanged, or among whose peers most are, serves its own statistics. What is served is joined and chosen
//! as in an open federation, too.
//!
//! | | what a node adds up | the covariance |
//! |---|---|---|
//! | without a promise | M, R, S and counts ([`SiteSums`]), with (1 - w) of its own to w of the sum | that of the sum |
//! | with one | M and R of rows that are cut to one length, with its share of the noise ([`NoisySites`]) | its own |

use burn::tensor::Device;
use fednode_core::masked::MAX_HOLDERS;
use fednode_core::spec::{Scaling, TableColumn};
use fednode_core::{ConfigError, FederationSpec, Round, Total};
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::matching::ClassMeans;
use fednode_mix::sites::{NoisySites, SiteSums};
use fednode_mix::statistics::{Discriminant, StatisticsError};

use super::promised;
use super::{Agreement, Source};
use crate::algorithm::Part;
use crate::noised::{self, NoiseKey};
use crate::promised::Promised;
use crate::total;
use crate::weights::Weights;

/// Whole numbers in a row. A node's rows may have a square of 2^28 in a column: the numbers of a total are below 2^44.
const GRID: f64 = (1_u64 << 16) as f64;
/// How many times as wide as the own rows those of all may spread, or as narrow.
const MOST_SPREAD: f64 = 10.0;
/// Fewest own rows, beyond one of each class, whose spread is compared.
const FEWEST_ROWS: f64 = 5.0;

/// Tells whether the nodes of a federation add up sums of sites: those of raw tables, all in one sum. Other totals are of features on
/// the sphere ([`crate::noised`]). So are those of columns that are taken as they are, of whatever size.
pub(crate) fn adds_up_sites(spec: &FederationSpec) -> bool {
    let columns = &spec.data.columns;
    let is_scaled = |column: &TableColumn| column.scaling != Scaling::Plain;
    let is_one = |total: &Total| total.group.is_none();
    !columns.is_empty()
        && columns.iter().all(is_scaled)
        && spec.exchange.total.as_ref().is_some_and(is_one)
}

/// What all nodes add up once.
pub(super) struct SitesTotal {
    /// The own sums, and then those of all.
    pub(super) part: Part,
    pub(super) total: Total,
    /// How many members' noise hides a row from any other one.
    pub(super) hiding: u32,
    /// How rows are hidden in it; nothing without a promise.
    pub(super) promised: Option<Promised>,
}

impl SitesTotal {
    /// Makes the part of nodes of so many classes and columns; nothing where they add up something else.
    ///
    /// # Errors
    /// Refuses a promise that no noise keeps.
    pub(super) fn of(
        spec: &FederationSpec,
        [classes, width]: [usize; 2],
        device: &Device,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(total) = spec.exchange.total.filter(|_| adds_up_sites(spec)) else {
            return Ok(None);
        };
        let promised = noised::noise_of_node(spec)?;
        let promised = promised.map(|share| Promised::new(share, &spec.data.columns));
        let numbers = match promised {
            Some(_) => SiteSums::n_whole(classes, width),
            None => SiteSums::new(classes, width).numbers().count(),
        };
        Ok(Some(Self {
            part: total::part(numbers, device),
            total,
            hiding: total.hiding(spec.nodes),
            promised,
        }))
    }

    /// Tells whether rows are hidden in the sum.
    pub(super) fn is_promised(&self) -> bool {
        self.promised.is_some()
    }
}

/// Why the sum of all sites makes no classifier.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
enum NoTotal {
    #[error("the sum does not say how many nodes are in it")]
    Members,
    #[error("the sum of all nodes is none of rows: {0}")]
    Fault(&'static str),
    #[error("no node has rows of two classes, so their sum does not say how classes differ")]
    Nowhere,
    #[error(
        "noise is too large for so few rows: it takes a larger `privacy.epsilon`, more rows or more nodes"
    )]
    TooNoisy,
    #[error(
        "in the sum of all nodes classes differ otherwise than in this node's rows: compare the label columns"
    )]
    Turned,
    #[error(transparent)]
    Unsolved(#[from] StatisticsError),
}

/// Tells whether rows spread about as widely as the own ones, as far as these say. Who claims rows that it does not have makes the
/// spread narrow, and the classifier too sure.
fn spreads_alike(all: &SiteSums, own: &Statistics) -> bool {
    let mine = SiteSums::of(own).spread();
    let is_known = own.total() >= own.counts.len() as f64 + FEWEST_ROWS && mine > 0.0;
    !is_known || (1.0 / MOST_SPREAD..=MOST_SPREAD).contains(&(all.spread() / mine))
}

/// Returns a classifier all of whose numbers are finite in 32 bits.
fn finite(solved: Discriminant) -> Result<Discriminant, NoTotal> {
    let mut numbers = solved.weights.iter().chain(&solved.offsets);
    let is_finite = numbers.all(|number| (*number as f32).is_finite());
    is_finite
        .then_some(solved)
        .ok_or(NoTotal::Fault("its classifier has no numbers"))
}

impl Agreement {
    /// Tells whether all nodes add up their sums of sites once.
    pub(crate) fn has_total(&self) -> bool {
        self.total.is_some()
    }

    /// Tells whether the own rows are still to be added up for the total.
    pub(crate) fn waits_for_total(&self) -> bool {
        self.has_total() && !self.remembered.is_released
    }

    /// Says where the noise of what is released comes from, where there is any.
    pub(crate) fn draw_from(&mut self, key: NoiseKey) {
        if let Some(promised) = self
            .total
            .as_mut()
            .and_then(|total| total.promised.as_mut())
        {
            promised.key = key;
        }
    }

    /// Adds up the own rows for the total.
    pub(crate) fn release(&mut self, samples: &Samples, seeds: [u64; 2], device: &Device) {
        let Some(total) = &self.total else { return };
        let numbers = match &total.promised {
            Some(promised) => {
                let cut = self.cut_by_class(promised, samples, device);
                promised::release(promised, &cut, seeds)
            }
            None => {
                let sums = SiteSums::of(&self.by_class(samples, device));
                let numbers = sums.numbers().map(|number| (number * GRID).round() as i64);
                numbers.collect()
            }
        };
        let written = total::write(numbers.into_iter(), 1.0);
        let weights = Weights::load(&total.part.net, &written, device);
        if let Some(total) = &mut self.total {
            total.part.weights = weights.expect("a part of its own net");
            self.remembered.is_released = true;
        }
    }

    /// Solves for the classifier of the total, if it is that which was adopted; the same one is solved again where other own rows have
    /// come. `samples` are these: a node that joined too late for the total has not added them up.
    pub(crate) fn adopt_total(&mut self, samples: &Samples, device: &Device) {
        let Some(total) = &self.total else { return };
        let n_own = Some(samples.len() as u32);
        let before = self.remembered.solved;
        let before = before.filter(|_| self.remembered.n_solved == n_own);
        let Some(sum) = total::arrived(&total.part, before) else {
            return;
        };
        self.remembered.n_solved = n_own;
        if self.remembered.gathered.is_none() {
            self.gather(Round(1), samples, device);
            self.remembered.is_untrained = true;
        }
        let own = self.by_class(samples, device);
        match self.solve_total(sum.members, &sum.numbers, &own) {
            Ok(solved) => {
                self.classifiers
                    .write(Source::Peers, &solved.into(), device);
                (self.remembered.solved, self.remembered.missing) = (Some(sum.key), None);
            }
            Err(reason) => {
                let before = self.remembered.missing.replace(reason.to_string());
                self.remembered.solved = None;
                if before != self.remembered.missing {
                    tracing::warn!(%reason, "no classifier of the statistics of all nodes");
                }
            }
        }
    }

    fn solve_total(
        &self,
        members: f64,
        numbers: &[i64],
        own: &Statistics,
    ) -> Result<Discriminant, NoTotal> {
        let total = self.total.as_ref().ok_or(NoTotal::Members)?;
        // Liars may say any number of members.
        if !(f64::from(total.total.fewest)..=MAX_HOLDERS as f64).contains(&members) {
            return Err(NoTotal::Members);
        }
        let weight_of = |means: &ClassMeans| {
            let mine = ClassMeans::of_sums(own.counts.clone(), &own.sums);
            let weight = mine.weight_at_site(means);
            (weight > 0.0).then_some(weight).ok_or(NoTotal::Turned)
        };
        if let Some(promised) = &total.promised {
            let noise = promised.noise_of(members).ok_or(NoTotal::Members)?;
            let shape = [self.classes, self.width];
            let numbers = numbers.iter().copied();
            let all = NoisySites::of_whole(shape, promised.radius, noise, numbers);
            if let Some(doubt) = all.doubt() {
                return Err(NoTotal::Fault(doubt));
            }
            let weight = weight_of(&all.class_means().ok_or(NoTotal::TooNoisy)?)?;
            return finite(all.solve(own, weight)?);
        }
        let mut all = SiteSums::new(self.classes, self.width);
        let pairs = all.numbers_mut().zip(numbers);
        pairs.for_each(|(sum, number)| *sum = *number as f64 / GRID);
        if let Some(fault) = all.fault() {
            return Err(NoTotal::Fault(fault));
        }
        let means = all.class_means().ok_or(NoTotal::Nowhere)?;
        if all.is_far(&means) {
            return Err(NoTotal::Fault("classes lie farther apart than rows can"));
        }
        if !spreads_alike(&all, own) {
            return Err(NoTotal::Fault(
                "its rows spread otherwise than the own ones",
            ));
        }
        let weight = weight_of(&means)?;
        let mut sums = SiteSums::of(own);
        sums.scale(1.0 - weight);
        sums.add_share(&all, weight);
        finite(sums.solve(own)?)
    }
}
