//! A head learned from class prototypes: Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global
//! Header", ACM MM 2023, Algorithm 1.
//!
//! ```text
//! member m sends     the head as it received it, h_mc = its mean feature of class c, and whether it has class c
//! learned here       W, b <- SGD of CE(W h_mc + b, c) over all pairs (h_mc, c)
//! ```
//!
//! Prototypes and classes are a member's own word. So a member is judged by those classes that three members or more have: a
//! prototype is false whose distance from their coordinate-wise median is more than three times the median distance. A
//! member whose prototypes are false in half of these classes or more teaches nothing, nor do single false ones. A prototype
//! of a class that fewer have may be nine times as long as the median prototype.
//!
//! The start is the mean of the heads that were sent, which are all the same: the last round's result. (The reference
//! starts from the locally trained head of its first client, through an alias.) Every prototype counts the same, whatever
//! the number of samples behind it. The order of the pairs is shuffled by a fixed generator that the start seeds, so every
//! node that has the same members gets the same bits. Sums run in `f64`.

use fednode_core::{ParamSet, Tensor};

use fednode_core::random::Stream;

use super::learning::{self, Learning};
use super::median::lower_median;
use super::{Accumulator, AverageError, Part, RuleRow, Takes, together};
use crate::exact;
use crate::names::{self, BIAS, PRESENT, PROTOTYPES, WEIGHT};

pub(super) const ROW: RuleRow = RuleRow {
    name: "prototypes",
    summary: "a head is learned from the class prototypes that come with it",
    reference: "FedGH (Yi et al., ACM MM 2023, arXiv 2303.13137)",
    takes: Takes::PartsOfItsAlgorithm,
    streams: false,
    uses_weights: false,
    params: learning::PARAMS,
    combine: |params, parts| learn_head(Learning::of(params), &together(parts)?),
};

/// What members must be.
const UNSUITED: AverageError = AverageError::Unsuited("a head with class prototypes");

/// A prototype and its class.
type Pair<'a> = (&'a [f32], usize);

/// Members that must have a class for one of them to be judged by it.
const FEWEST_MEMBERS: usize = 3;
/// Median distances beyond which a prototype is false.
const MOST: f64 = 3.0;
/// Median norms beyond which a prototype is false that cannot be compared with two others.
const MOST_NORMS: f64 = 9.0;
/// Share of a member's prototypes, among those that can be judged, from which on it is not believed at all.
const MOST_FALSE: f64 = 0.5;

/// Learns the head; what comes back has the members' layout, with the mean prototype of each class (over those that are
/// believed) and the share of members that have one.
///
/// # Errors
/// Refuses an empty list, members of different layouts, and parts that are not a head `[classes, features]` with bias and
/// prototypes.
fn learn_head(learning: Learning, members: &[Part]) -> Result<ParamSet, AverageError> {
    let first = members.first().ok_or(AverageError::NoMembers)?;
    let names = Names::of(&first.params)?;
    let mut start = Accumulator::new(first.params.layout());
    members
        .iter()
        .try_for_each(|part| start.add(1.0, &part.params))?;
    let mut learned = start.finish()?;
    let pairs = believed(pairs(members));
    let mut head = Head::of(&learned, &names);
    let mut draws = Stream::of(&learned);
    for _ in 0..learning.iterations {
        for batch in draws
            .shuffled(pairs.len())
            .chunks(learning.batch_size.max(1))
        {
            head.step(
                &batch.iter().map(|at| pairs[*at]).collect::<Vec<_>>(),
                learning.learning_rate,
            );
        }
    }
    let means = mean_prototypes(&pairs, head.n_features, head.bias.len());
    let present = shares(&pairs, members.len(), head.bias.len());
    for (name, tensor) in learned.iter_mut() {
        let source = match name {
            name if name == names.weight => &head.weight,
            name if name == names.bias => &head.bias,
            PROTOTYPES => &means,
            PRESENT => &present,
            _ => continue,
        };
        tensor
            .values_mut()
            .iter_mut()
            .zip(source)
            .for_each(|(value, source)| *value = *source as f32);
    }
    Ok(learned)
}

/// What the head's tensors are called.
struct Names {
    weight: String,
    bias: String,
}

impl Names {
    /// Finds them, and checks all four shapes.
    fn of(params: &ParamSet) -> Result<Self, AverageError> {
        let find = |tensor: &str| {
            let suffix = names::of("", tensor);
            let found = params.iter().find(|(name, _)| name.ends_with(&suffix));
            found.map(|(name, _)| name.to_owned()).ok_or(UNSUITED)
        };
        let names = Self {
            weight: find(WEIGHT)?,
            bias: find(BIAS)?,
        };
        let shape = |name: &str| params.get(name).map(Tensor::shape).unwrap_or_default();
        let (weight, classes) = (shape(&names.weight), shape(&names.bias));
        let fits = weight.len() == 2 && weight[..1] == *classes && !weight.contains(&0);
        if fits && params.len() == 4 && shape(PROTOTYPES) == weight && shape(PRESENT) == classes {
            Ok(names)
        } else {
            Err(UNSUITED)
        }
    }
}

/// Returns the pairs that teach, in the order given: by member, then by class.
fn believed(members: Vec<Vec<Pair<'_>>>) -> Vec<Pair<'_>> {
    let n_classes = members.iter().flatten().map(|(_, class)| class + 1).max();
    let mut judged: Vec<Vec<Option<bool>>> = members
        .iter()
        .map(|pairs| vec![None; pairs.len()])
        .collect();
    for class in 0..n_classes.unwrap_or(0) {
        let places = members.iter().enumerate().filter_map(|(member, pairs)| {
            let at = pairs.iter().position(|(_, of)| *of == class)?;
            Some((member, at))
        });
        let places: Vec<(usize, usize)> = places.collect();
        if places.len() < FEWEST_MEMBERS {
            continue;
        }
        let rows: Vec<&[f32]> = places.iter().map(|(m, at)| members[*m][*at].0).collect();
        for ((member, at), is_false) in places.iter().zip(far(&rows)) {
            judged[*member][*at] = Some(is_false);
        }
    }
    let norms: Vec<f64> = members
        .iter()
        .flatten()
        .map(|(row, _)| distance(row.iter().map(|value| f64::from(*value))))
        .collect();
    let largest = MOST_NORMS * lower_median(&norms);
    let mut pairs = Vec::new();
    for (own, judged) in members.into_iter().zip(judged) {
        let known = judged.iter().flatten().count() as f64;
        let n_false = judged
            .iter()
            .flatten()
            .filter(|is_false| **is_false)
            .count() as f64;
        if n_false > 0.0 && n_false >= MOST_FALSE * known {
            continue;
        }
        let of_own = own.into_iter().zip(judged).filter(|((row, _), is_false)| {
            let norm = distance(row.iter().map(|value| f64::from(*value)));
            is_false.map_or(norm <= largest, |is_false| !is_false)
        });
        pairs.extend(of_own.map(|(pair, _)| pair));
    }
    pairs
}

/// Tells of each row whether it is far from the coordinate-wise median of all of them.
fn far(rows: &[&[f32]]) -> Vec<bool> {
    let width = rows.first().map_or(0, |row| row.len());
    let middle: Vec<f64> = (0..width)
        .map(|at| {
            lower_median(
                &rows
                    .iter()
                    .map(|row| f64::from(row[at]))
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    let distances: Vec<f64> = rows
        .iter()
        .map(|row| distance(row.iter().zip(&middle).map(|(a, b)| f64::from(*a) - b)))
        .collect();
    let most = MOST * lower_median(&distances);
    // Where most are the same, a distance is none of chance.
    let slack = f64::from(f32::EPSILON) * distance(middle.into_iter());
    distances.into_iter().map(|d| d > most + slack).collect()
}

fn distance(differences: impl Iterator<Item = f64>) -> f64 {
    differences.map(|d| d * d).sum::<f64>().sqrt()
}

/// Collects the pairs of each member, in the order of the classes. The layout was checked.
fn pairs(members: &[Part]) -> Vec<Vec<Pair<'_>>> {
    let mut all = Vec::new();
    for Part { params, .. } in members {
        let (Some(prototypes), Some(present)) = (params.get(PROTOTYPES), params.get(PRESENT))
        else {
            continue;
        };
        let rows = prototypes.values().chunks_exact(prototypes.shape()[1]);
        let with_class = rows.zip(present.values()).enumerate();
        let own = with_class
            .filter(|(_, (_, present))| **present > 0.5)
            .map(|(class, (row, _))| (row, class));
        all.push(own.collect());
    }
    all
}

/// Returns the mean of each class's prototypes, zeros where there are none.
fn mean_prototypes(pairs: &[Pair<'_>], n_features: usize, n_classes: usize) -> Vec<f64> {
    let mut sums = vec![0.0; n_features * n_classes];
    let mut counts = vec![0.0f64; n_classes];
    for (row, class) in pairs {
        counts[*class] += 1.0;
        let sums = &mut sums[class * n_features..(class + 1) * n_features];
        sums.iter_mut()
            .zip(*row)
            .for_each(|(sum, value)| *sum += f64::from(*value));
    }
    for (row, count) in sums.chunks_exact_mut(n_features).zip(counts) {
        row.iter_mut().for_each(|sum| *sum /= count.max(1.0));
    }
    sums
}

/// Returns the share of members that have a prototype of each class.
fn shares(pairs: &[Pair<'_>], n_members: usize, n_classes: usize) -> Vec<f64> {
    let mut counts = vec![0_u32; n_classes];
    pairs.iter().for_each(|(_, class)| counts[*class] += 1);
    let share = |count| f64::from(count) / n_members as f64;
    counts.into_iter().map(share).collect()
}

/// A linear classifier in the making.
struct Head {
    /// `[classes, features]`.
    weight: Vec<f64>,
    /// `[classes]`.
    bias: Vec<f64>,
    n_features: usize,
}

impl Head {
    fn of(params: &ParamSet, names: &Names) -> Self {
        let values = |name: &str| {
            params
                .get(name)
                .into_iter()
                .flat_map(Tensor::values)
                .map(|value| f64::from(*value))
        };
        let (weight, bias): (Vec<f64>, Vec<f64>) = (
            values(&names.weight).collect(),
            values(&names.bias).collect(),
        );
        let n_features = weight.len() / bias.len().max(1);
        Self {
            weight,
            bias,
            n_features,
        }
    }

    /// Makes one step on the mean cross-entropy of a batch: the slope of a logit is its probability, less 1 for the
    /// true class.
    fn step(&mut self, batch: &[Pair<'_>], learning_rate: f64) {
        let slopes: Vec<Vec<f64>> = batch
            .iter()
            .map(|(row, class)| self.slopes(row, *class))
            .collect();
        let step = learning_rate / batch.len() as f64;
        for ((row, _), slopes) in batch.iter().zip(slopes) {
            for (class, slope) in slopes.into_iter().enumerate() {
                self.bias[class] -= step * slope;
                let weights =
                    &mut self.weight[class * self.n_features..(class + 1) * self.n_features];
                weights
                    .iter_mut()
                    .zip(*row)
                    .for_each(|(weight, value)| *weight -= step * slope * f64::from(*value));
            }
        }
    }

    fn slopes(&self, row: &[f32], class: usize) -> Vec<f64> {
        let products = self.weight.chunks_exact(self.n_features).zip(&self.bias);
        let logit = |(weights, bias): (&[f64], &f64)| {
            weights.iter().zip(row).fold(*bias, |sum, (weight, value)| {
                sum + weight * f64::from(*value)
            })
        };
        let logits: Vec<f64> = products.map(logit).collect();
        let mut slopes = exact::softmax(&logits);
        slopes[class] -= 1.0;
        slopes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LEARNING: Learning = Learning {
        learning_rate: 1.0,
        batch_size: 10,
        iterations: 1,
    };

    fn member(head: [f32; 6], prototypes: [f32; 4], present: [f32; 2]) -> Part {
        let mut params = ParamSet::new();
        params
            .insert("fc.weight", &[2, 2], head[..4].to_vec())
            .unwrap();
        params.insert("fc.bias", &[2], head[4..].to_vec()).unwrap();
        params
            .insert(PROTOTYPES, &[2, 2], prototypes.to_vec())
            .unwrap();
        params.insert(PRESENT, &[2], present.to_vec()).unwrap();
        part(params)
    }

    fn part(params: ParamSet) -> Part {
        Part {
            weight: 1.0,
            params: Arc::new(params),
        }
    }

    fn values(params: &ParamSet, name: &str) -> Vec<f32> {
        params.get(name).unwrap().values().to_vec()
    }

    /// A zero head gives every class 1/2. Pairs: (1, 2) of class 0; (3, 0) of class 0; (0, 4) of class 1. Slopes of class 0
    /// are -1/2, -1/2, 1/2; the step for its weights is (1/3)(1/2)(1 + 3 - 0, 2 + 0 - 4) = (2/3, -1/3), for its bias
    /// (1/3)(1/2)(1 + 1 - 1) = 1/6. Class 1 moves the other way.
    #[test]
    fn one_batch_agrees_with_a_worked_example() {
        let zero = [0.0; 6];
        // The absent prototype is there to be ignored.
        let members = [
            member(zero, [1.0, 2.0, 99.0, 99.0], [1.0, 0.0]),
            member(zero, [3.0, 0.0, 0.0, 4.0], [1.0, 1.0]),
        ];
        let learned = learn_head(LEARNING, &members).unwrap();
        let close = |name: &str, expected: &[f32]| {
            let got = values(&learned, name);
            assert!(
                got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6),
                "{name}: {got:?}"
            );
        };
        let third = 1.0 / 3.0;
        close("fc.weight", &[2.0 * third, -third, -2.0 * third, third]);
        close("fc.bias", &[third / 2.0, -third / 2.0]);
        close(PROTOTYPES, &[2.0, 1.0, 0.0, 4.0]);
        close(PRESENT, &[1.0, 0.5]);
        assert_eq!(learned.layout(), members[0].params.layout());
        assert_eq!(learn_head(LEARNING, &members), Ok(learned));
    }

    #[test]
    fn without_prototypes_the_head_stays_bit_for_bit() {
        let head = [0.1, -0.0, 7.0, 1e-30, 3.0, -1.0];
        let members = vec![member(head, [f32::MAX; 4], [0.0; 2]); 3];
        let learned = learn_head(LEARNING, &members).unwrap();
        assert_eq!(values(&learned, "fc.weight"), head[..4]);
        assert_eq!(values(&learned, "fc.bias"), head[4..]);
    }

    #[test]
    fn learning_separates_the_classes() {
        let mut members = vec![member([0.0; 6], [1.0, 0.0, 0.0, 1.0], [1.0; 2]); 30];
        for _ in 0..3 {
            let learned = learn_head(LEARNING, &members).unwrap();
            let head: Vec<f32> =
                [values(&learned, "fc.weight"), values(&learned, "fc.bias")].concat();
            members = vec![member(head.try_into().unwrap(), [1.0, 0.0, 0.0, 1.0], [1.0; 2]); 30];
        }
        let weight = values(&members[0].params, "fc.weight");
        assert!(
            weight[0] - weight[2] > 2.0 && weight[3] - weight[1] > 2.0,
            "{weight:?}"
        );
    }

    /// The liar has a prototype of both classes, at the places of the other one.
    #[test]
    fn a_member_that_turns_the_classes_teaches_nothing() {
        let honest = |at: f32| member([0.0; 6], [1.0 + at, 0.1 * at, 0.0, 1.0 - at], [1.0; 2]);
        let mut members: Vec<Part> = [0.1, -0.1, 0.05, 0.0].map(honest).to_vec();
        let alone = learn_head(LEARNING, &members).unwrap();
        members.push(member([0.0; 6], [0.0, 5.0, 5.0, 0.0], [1.0; 2]));
        let learned = learn_head(LEARNING, &members).unwrap();
        // The start is the same zero head, and its prototypes seed nothing that matters in one whole batch.
        for name in ["fc.weight", "fc.bias", PROTOTYPES] {
            let pairs = values(&learned, name).into_iter().zip(values(&alone, name));
            assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-6), "{name}");
        }
    }

    /// Nobody else has class 1, so nobody can say that it is false; but it cannot be as large as the liar likes.
    #[test]
    fn a_class_of_one_member_is_bounded_by_the_norms_of_all() {
        let honest = |at: f32| member([0.0; 6], [1.0 + at, 0.1, 0.0, 0.0], [1.0, 0.0]);
        let with = |prototype: [f32; 2]| {
            let mut members: Vec<Part> = [0.1, -0.1, 0.05, 0.0].map(honest).to_vec();
            let [x, y] = prototype;
            members.push(member([0.0; 6], [0.0, 0.0, x, y], [0.0, 1.0]));
            let learned = learn_head(LEARNING, &members).unwrap();
            (
                values(&learned, PROTOTYPES)[3],
                values(&learned, PRESENT)[1],
            )
        };
        assert_eq!(with([0.0, 2.0]), (2.0, 0.2));
        assert_eq!(
            with([0.0, 2000.0]),
            (0.0, 0.0),
            "nobody is believed to have it"
        );
    }

    #[test]
    fn refuses_what_is_not_a_head_with_prototypes() {
        assert_eq!(learn_head(LEARNING, &[]), Err(AverageError::NoMembers));
        let mut plain = ParamSet::new();
        plain.insert("fc.weight", &[2, 2], vec![0.0; 4]).unwrap();
        assert_eq!(learn_head(LEARNING, &[part(plain.clone())]), Err(UNSUITED));
        plain.insert("fc.bias", &[2], vec![0.0; 2]).unwrap();
        plain.insert(PROTOTYPES, &[2, 3], vec![0.0; 6]).unwrap();
        plain.insert(PRESENT, &[2], vec![0.0; 2]).unwrap();
        assert_eq!(learn_head(LEARNING, &[part(plain.clone())]), Err(UNSUITED));
        let mixed = [member([0.0; 6], [0.0; 4], [1.0; 2]), part(plain)];
        assert!(matches!(
            learn_head(LEARNING, &mixed),
            Err(AverageError::Layout(_))
        ));
    }
}
