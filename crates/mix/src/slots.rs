//! Experts in closed form: the parts that classes fall into, found from sums over groups of each node's samples.
//!
//! ```text
//! every node, alone   splits each class in two groups, by 2-means in the directions in which its samples vary most within
//!                     their classes; publishes n and s of each group beside its scatter G
//! a node, of peers    fits M slots a class to the means of all groups by expectation maximisation:
//!   E   r_gm  ~ pi_jm · exp(-d²(mu_g, mu_cm) · min(n_g, 4) / 2T)      d: in 30 directions, by the variances that are left
//!   M   mu_cm = sum r_gm w_j s_g / sum r_gm w_j n_g                   pi_jm: the share of node j's samples in slot m
//! then                W is taken around the slots; classes are judged by their best slots:
//!                     l_c(x) = log sum_m exp(log pi_cm + (a_cm · x + b_cm) / T)
//! ```
//!
//! So a domain that several nodes hold, an angle or a machine, becomes a slot, though nobody says which samples are of it.
//! It is mixture discriminant analysis (Hastie and Tibshirani, JRSS B 1996) with mixing shares of each node as in FedEM
//! (Marfoq et al., NeurIPS 2021). The nodes' groups take the place of rounds of expectation maximisation: nothing travels
//! but what is published once.

use fednode_core::random::{Purpose, nearly_normal, stream};

use crate::statistics::{Discriminant, EPSILON, Statistics, StatisticsError};

/// Most groups that a node makes of a class.
pub const GROUPS: usize = 2;
/// M: slots of a class.
pub const SLOTS: usize = 4;
/// In how many directions a node groups its samples.
pub const GROUPING_DIRECTIONS: usize = 10;

/// Fewest samples of a group: the sums of fewer say too much of each, and their mean too little.
const FEWEST_IN_GROUP: usize = 5;
/// In how many directions groups and slots are compared.
pub const DIRECTIONS: usize = 30;
/// Steps of 2-means, at most.
const GROUPING_STEPS: usize = 12;
/// Steps of the orthogonal iteration.
const POWER_STEPS: usize = 20;
/// Steps of expectation maximisation.
const EM_STEPS: usize = 10;
/// T of the E-step.
const SOFTNESS: f64 = 2.0;
/// How many samples a group counts as in the E-step, at most: their mean is no independent sample each.
const MOST_IN_GROUP: f64 = 4.0;
/// Samples of the class mean that every slot is given: slots of few samples stay near it.
const SHRINKAGE: f64 = 20.0;
/// The smallest share of its first variance that a direction keeps.
const LEAST_VARIANCE: f64 = 0.1;
/// The variance of a direction in which samples vary at all, as a share of the largest: the rest is rounding.
const LEAST_SHARE: f64 = 1e-9;
/// Fewest samples of a slot that a class may be recognised by.
const FEWEST_IN_SLOT: f64 = 2.0;
/// On which side of the class mean a slot starts, in the two directions of the largest variance.
const STARTS: [[f64; 2]; SLOTS] = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]];

/// Orthogonal directions of the largest variance, the largest first.
#[derive(Debug, Clone)]
pub struct Directions {
    variances: Vec<f64>,
    /// `[directions, D]`.
    vectors: Vec<Vec<f64>>,
}

impl Directions {
    /// Finds the directions in which samples vary most within their classes, by orthogonal iteration from a fixed start: so
    /// many, or fewer where samples do not vary in more.
    ///
    /// # Errors
    /// Fails without any sample.
    pub fn within_classes(statistics: &Statistics, count: usize) -> Result<Self, StatisticsError> {
        let covariance = statistics.covariance(0.0)?;
        let width = statistics.width();
        let mut rng = stream(Purpose::Directions, [0; 3]);
        let mut start = || nearly_normal(&mut rng, width);
        let mut vectors: Vec<Vec<f64>> = (0..count.min(width)).map(|_| start()).collect();
        orthogonalise(&mut vectors);
        for _ in 0..POWER_STEPS {
            vectors = times(&covariance, &vectors);
            orthogonalise(&mut vectors);
        }
        let images = times(&covariance, &vectors);
        let variances = vectors.iter().zip(&images).map(|(v, image)| dot(v, image));
        let variances: Vec<f64> = variances.collect();
        let least = LEAST_SHARE * variances.iter().copied().fold(0.0, f64::max);
        let all = variances.into_iter().zip(vectors);
        let (variances, vectors) = all.filter(|(variance, _)| *variance > least).unzip();
        Ok(Self { variances, vectors })
    }

    /// Returns the variances along them.
    pub fn variances(&self) -> &[f64] {
        &self.variances
    }

    /// Returns the coordinates of a point.
    pub fn project(&self, point: &[f64]) -> Vec<f64> {
        let vectors = self.vectors.iter();
        vectors.map(|vector| dot(vector, point)).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Multiplies vectors with a symmetric matrix, of which the lower triangle is given.
fn times(matrix: &[f64], vectors: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let width = vectors.first().map_or(0, Vec::len);
    let image = |vector: &Vec<f64>| {
        let mut image = vec![0.0; width];
        for (row, at) in vector.iter().enumerate() {
            let (entries, diagonal) = matrix[row * width..][..=row].split_at(row);
            let (before, own) = image.split_at_mut(row);
            own[0] += dot(entries, vector) + diagonal[0] * at;
            let pairs = before.iter_mut().zip(entries);
            pairs.for_each(|(sum, entry)| *sum += entry * at);
        }
        image
    };
    vectors.iter().map(image).collect()
}

/// Makes vectors orthogonal and of length 1, in their order (modified Gram-Schmidt). What depends on those before becomes
/// zero.
fn orthogonalise(vectors: &mut [Vec<f64>]) {
    for at in 0..vectors.len() {
        let (before, rest) = vectors.split_at_mut(at);
        let vector = &mut rest[0];
        let scale = dot(vector, vector).sqrt();
        for other in before {
            let along = dot(vector, other);
            let pairs = vector.iter_mut().zip(other.iter());
            pairs.for_each(|(value, other)| *value -= along * other);
        }
        let length = dot(vector, vector).sqrt();
        let factor = if length > 1e-12 * scale {
            1.0 / length
        } else {
            0.0
        };
        vector.iter_mut().for_each(|value| *value *= factor);
    }
}

/// Splits the samples of one class in groups: returns the group of each. `points` are their coordinates less the class
/// mean's, `[n, directions]`.
///
/// A class of which one half would be too small stays whole, in group 0.
pub fn group(points: &[Vec<f64>]) -> Vec<usize> {
    let side = |point: &Vec<f64>| usize::from(point.first().is_some_and(|first| *first > 0.0));
    let mut groups: Vec<usize> = points.iter().map(side).collect();
    for _ in 0..GROUPING_STEPS {
        let Some(means) = means_of(points, &groups) else {
            break;
        };
        let distance = |point: &[f64], group: usize| -> f64 {
            let pairs = point.iter().zip(&means[group]);
            pairs.map(|(value, mean)| (value - mean).powi(2)).sum()
        };
        let nearest = |point: &Vec<f64>| usize::from(distance(point, 1) < distance(point, 0));
        let next: Vec<usize> = points.iter().map(nearest).collect();
        if next == groups {
            break;
        }
        groups = next;
    }
    let second: usize = groups.iter().sum();
    if second.min(groups.len() - second) < FEWEST_IN_GROUP {
        groups.fill(0);
    }
    groups
}

/// Returns the means of the two groups; nothing if one is empty.
fn means_of(points: &[Vec<f64>], groups: &[usize]) -> Option<[Vec<f64>; GROUPS]> {
    let mut sums = [const { Vec::new() }; GROUPS];
    let mut counts = [0.0; GROUPS];
    for (point, group) in points.iter().zip(groups) {
        sums[*group].resize(point.len(), 0.0);
        let pairs = sums[*group].iter_mut().zip(point);
        pairs.for_each(|(sum, value)| *sum += value);
        counts[*group] += 1.0;
    }
    for (sums, count) in sums.iter_mut().zip(counts) {
        sums.iter_mut().for_each(|sum| *sum /= count);
    }
    (!counts.contains(&0.0)).then_some(sums)
}

/// What a node says of its samples: sums of groups, [`GROUPS`] a class, times the weight of its samples.
#[derive(Debug, Clone)]
pub struct Grouped<'a> {
    /// The sums as they were published.
    pub statistics: &'a Statistics,
    /// What one of their units counts: the weight of a sample times the number that they were divided by.
    pub weight: f64,
}

/// Adds up the classes of these nodes.
///
/// # Errors
/// Fails without a node.
pub fn classes_of(nodes: &[Grouped<'_>]) -> Result<Statistics, StatisticsError> {
    let first = nodes.first().ok_or(StatisticsError::Empty)?.statistics;
    let mut total = Statistics::new(first.counts.len(), first.width());
    for node in nodes {
        total.add_weighted(node.statistics, node.weight);
    }
    Ok(total.joined(GROUPS))
}

/// A classifier of slots, as many of each class; one of each is discriminant analysis.
#[derive(Debug, Clone, PartialEq)]
pub struct Slots {
    /// One row per class and slot.
    pub rows: Discriminant,
    /// log pi_cm, one per row.
    pub log_shares: Vec<f64>,
    /// Slots of a class.
    pub per_class: usize,
}

impl From<Discriminant> for Slots {
    fn from(rows: Discriminant) -> Self {
        Self {
            log_shares: vec![0.0; rows.offsets.len()],
            rows,
            per_class: 1,
        }
    }
}

impl Slots {
    /// Fits the slots of these nodes' groups.
    ///
    /// # Errors
    /// Fails without any sample, and if the covariance around the slots is not finite and positive.
    pub fn fit(nodes: &[Grouped<'_>], directions: &Directions) -> Result<Self, StatisticsError> {
        let classes = classes_of(nodes)?;
        let mut fit = Fit::new(nodes, &classes, directions);
        (0..EM_STEPS).for_each(|_| fit.step());
        fit.solve(&classes)
    }

    /// Returns l_c(x) of each class at a temperature, given `A r + b` of the rows.
    pub fn scores(&self, logits: &[f64], temperature: f64) -> Vec<f64> {
        let rows = logits.iter().zip(&self.log_shares);
        let rows: Vec<f64> = rows
            .map(|(logit, share)| logit / temperature + share)
            .collect();
        rows.chunks(self.per_class).map(log_sum_exp).collect()
    }
}

fn log_sum_exp(values: &[f64]) -> f64 {
    let largest = values.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = values.iter().map(|value| (value - largest).exp()).sum();
    largest + sum.ln()
}

/// A group of one node, as the fit sees it.
struct Group<'a> {
    node: usize,
    class: usize,
    count: f64,
    /// What a sample counts.
    weight: f64,
    sums: &'a [f64],
    /// Its mean in the directions.
    point: Vec<f64>,
    /// How far it belongs to each slot of its class.
    belongs: [f64; SLOTS],
}

/// An expectation maximisation under way.
struct Fit<'a> {
    groups: Vec<Group<'a>>,
    /// The means of the slots in the directions, per class.
    slots: Vec<[Vec<f64>; SLOTS]>,
    class_points: Vec<Vec<f64>>,
    /// The share of each node's samples in the slots, whatever their class.
    shares: Vec<[f64; SLOTS]>,
    variances: Vec<f64>,
    least: Vec<f64>,
}

impl<'a> Fit<'a> {
    fn new(nodes: &[Grouped<'a>], classes: &Statistics, directions: &Directions) -> Self {
        let class_means = classes.means();
        let points = class_means.iter().map(|mean| directions.project(mean));
        let class_points: Vec<Vec<f64>> = points.collect();
        let start = |point: &Vec<f64>| {
            STARTS.map(|sides| {
                let mut slot = point.clone();
                let moved = slot.iter_mut().zip(sides).zip(&directions.variances);
                moved.for_each(|((value, side), variance)| *value += side * variance.sqrt());
                slot
            })
        };
        let least = directions.variances.iter();
        Self {
            groups: groups_of(nodes, directions),
            slots: class_points.iter().map(start).collect(),
            class_points,
            shares: vec![[1.0 / SLOTS as f64; SLOTS]; nodes.len()],
            variances: directions.variances.clone(),
            least: least.map(|variance| LEAST_VARIANCE * variance).collect(),
        }
    }

    /// One step: how far groups belong to slots, then what the slots are.
    fn step(&mut self) {
        for group in &mut self.groups {
            group.belong(&self.slots[group.class], &self.variances, &self.shares);
        }
        self.share();
        self.spread();
        self.place();
    }

    /// Sets the shares of the nodes' samples in the slots.
    fn share(&mut self) {
        self.shares.fill([0.0; SLOTS]);
        for group in &self.groups {
            for (share, belongs) in self.shares[group.node].iter_mut().zip(group.belongs) {
                *share += belongs * group.count;
            }
        }
        for shares in &mut self.shares {
            let total: f64 = shares.iter().sum();
            shares
                .iter_mut()
                .for_each(|share| *share /= total.max(1e-9));
        }
    }

    /// Sets the variances that are left around the slots as they were.
    fn spread(&mut self) {
        let mut left = vec![0.0; self.variances.len()];
        let mut total = 0.0;
        for group in &self.groups {
            total += group.samples();
            for (slot, belongs) in self.slots[group.class].iter().zip(group.belongs) {
                let parts = left.iter_mut().zip(&group.point).zip(slot);
                parts.for_each(|((sum, value), mean)| {
                    *sum += belongs * group.samples() * (value - mean).powi(2);
                });
            }
        }
        let variances = left.iter().zip(&self.least);
        self.variances = variances
            .map(|(sum, least)| (sum / total).max(*least).max(f64::MIN_POSITIVE))
            .collect();
    }

    /// Sets the means of the slots; one that hardly anything belongs to is where its class is.
    fn place(&mut self) {
        for (class, slots) in self.slots.iter_mut().enumerate() {
            let groups = || self.groups.iter().filter(|group| group.class == class);
            for (at, slot) in slots.iter_mut().enumerate() {
                let count: f64 = groups()
                    .map(|group| group.belongs[at] * group.samples())
                    .sum();
                if count <= 1.0 {
                    slot.clone_from(&self.class_points[class]);
                    continue;
                }
                slot.fill(0.0);
                for group in groups() {
                    let share = group.belongs[at] * group.samples() / count;
                    let pairs = slot.iter_mut().zip(&group.point);
                    pairs.for_each(|(mean, value)| *mean += share * value);
                }
            }
        }
    }

    /// Solves for the classifier of the slots as they are.
    fn solve(&self, classes: &Statistics) -> Result<Slots, StatisticsError> {
        let width = classes.width();
        let mut slots = Statistics::new(self.slots.len() * SLOTS, width);
        slots.scatter.clone_from(&classes.scatter);
        for group in &self.groups {
            for (at, belongs) in group.belongs.iter().enumerate() {
                let row = group.class * SLOTS + at;
                slots.counts[row] += belongs * group.samples();
                let pairs = slots.sums[row * width..][..width]
                    .iter_mut()
                    .zip(group.sums);
                pairs.for_each(|(sum, value)| *sum += belongs * group.weight * value);
            }
        }
        let means = shrunk(&slots, classes);
        let mut rows = slots.solve_for(&means, EPSILON)?;
        for (offset, count) in rows.offsets.iter_mut().zip(&slots.counts) {
            if *count < FEWEST_IN_SLOT {
                *offset = crate::statistics::IMPOSSIBLE;
            }
        }
        let log_shares = slots.counts.chunks(SLOTS).flat_map(|counts| {
            let total = counts.iter().sum::<f64>().max(1.0);
            let share = |count: &f64| ((count + 1e-9) / total + 1e-9).ln();
            counts.iter().map(share).collect::<Vec<_>>()
        });
        let log_shares = log_shares.collect();
        Ok(Slots {
            rows,
            log_shares,
            per_class: SLOTS,
        })
    }
}

/// Returns the groups of these nodes that have samples.
fn groups_of<'a>(nodes: &[Grouped<'a>], directions: &Directions) -> Vec<Group<'a>> {
    let of_node = |(node, grouped): (usize, &Grouped<'a>)| {
        let (statistics, weight) = (grouped.statistics, grouped.weight);
        let sums = statistics.sums.chunks_exact(statistics.width());
        let all = statistics.counts.iter().zip(sums).enumerate();
        let group = |(at, (count, sums)): (usize, (&f64, &'a [f64]))| {
            let mean: Vec<f64> = sums.iter().map(|sum| sum / count).collect();
            (*count > 0.0).then(|| Group {
                node,
                class: at / GROUPS,
                count: *count,
                weight,
                sums,
                point: directions.project(&mean),
                belongs: [0.0; SLOTS],
            })
        };
        all.filter_map(group).collect::<Vec<_>>()
    };
    nodes.iter().enumerate().flat_map(of_node).collect()
}

impl Group<'_> {
    /// Returns how many samples it counts as.
    fn samples(&self) -> f64 {
        self.weight * self.count
    }

    /// Sets how far it belongs to the slots of its class.
    fn belong(&mut self, slots: &[Vec<f64>; SLOTS], variances: &[f64], shares: &[[f64; SLOTS]]) {
        let counted = self.samples().min(MOST_IN_GROUP);
        let shares = shares[self.node];
        let mut scores = [0.0; SLOTS];
        for ((score, slot), share) in scores.iter_mut().zip(slots).zip(shares) {
            let parts = self.point.iter().zip(slot).zip(variances);
            let distance: f64 = parts
                .map(|((value, mean), variance)| (value - mean).powi(2) / variance)
                .sum();
            *score = -0.5 * distance * counted / SOFTNESS + (share + 1e-3).ln();
        }
        let total = log_sum_exp(&scores);
        self.belongs = scores.map(|score| (score - total).exp());
    }
}

/// Returns the means of the slots, each moved towards its class as if that had [`SHRINKAGE`] more samples there.
fn shrunk(slots: &Statistics, classes: &Statistics) -> Vec<Vec<f64>> {
    let means = slots.means();
    let class_means = classes.means();
    let rows = means.into_iter().zip(&slots.counts).enumerate();
    let move_one = |(row, (mut mean, count)): (usize, (Vec<f64>, &f64))| {
        let pairs = mean.iter_mut().zip(&class_means[row / SLOTS]);
        pairs.for_each(|(value, of_class)| {
            *value = (*value * count + SHRINKAGE * of_class) / (count + SHRINKAGE);
        });
        mean
    };
    rows.map(move_one).collect()
}
