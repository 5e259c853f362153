//! A generator learned from the members' heads, without anybody's data: Zhu, Hong and Zhou, "Data-Free Knowledge
//! Distillation for Heterogeneous Federated Learning", ICML 2021 (FedGen), Algorithm 1, and the authors' code; `pm-moe`
//! §4.
//!
//! ```text
//! member m sends    its model (the last layer as head.*), the generator as it received it, s_mc = the share of class c
//!                   in its samples
//! model, shares     weighted means
//! generator         z = G(e, y) = W2 relu(W1 [e; onehot(y)] + b1) + b2          e ~ U(0, 1)^noise
//!                   loss = mean_i sum_m a_m,yi CE(head_m(z_i), y_i) + exp(-mean_ij n_ij l_ij)
//!                   a_mc = the member's share of all samples of class c, y uniform over the classes that anybody has
//!                   n_ij = mean_k (e_ik - e_jk)^2       l_ij = mean_d |z_id - z_jd|
//! ```
//!
//! The first term makes features that the heads agree on, each head counting by what it has seen of the class; the
//! second keeps them apart. The paper was not at hand. Both terms are the authors' code (PFLlib has the cross-entropy
//! of the summed logits). So are Adam, its weight decay and, by default, batches of 32 and 40 steps a round. Choices:
//!
//! - By default a step size of 0.005 as in PFLlib, whose 1000 steps a round are too many for everybody who audits a
//!   round. The authors' 0.0003 is meant for 200 rounds: in the few of a small federation the generator would stay what
//!   it was.
//! - Adam starts anew every round, and its step size does not decay: an aggregator remembers nothing and does not know
//!   the round here.
//! - No batch normalisation in the hidden layer: running statistics that every node would have to carry, for one layer.
//!
//! All draws come from a generator that the weighted mean seeds; sums run in `f64`, in one order: whoever has the same
//! members gets the same bits.

use fednode_core::{ParamSet, Tensor};

use fednode_core::random::Stream;

use super::learning::{self, Learning};
use super::mean::mean;
use super::{AverageError, Part, RuleRow, Takes, together};
use crate::exact;
use crate::names::{self, BIAS, FEATURES, HEAD, HIDDEN, SHARES, WEIGHT};

pub(super) const ROW: RuleRow = RuleRow {
    name: "generator",
    summary: "the weighted mean, and a generator is learned from the heads of the members",
    reference: "FedGen (Zhu et al., ICML 2021, arXiv 2105.10056)",
    takes: Takes::PartsOfItsAlgorithm,
    streams: false,
    uses_weights: true,
    params: learning::PARAMS,
    combine: |params, parts| learn_generator(Learning::of(params), &together(parts)?),
};

/// Share of every weight that is added to its slope, as in the authors' code.
const WEIGHT_DECAY: f64 = 0.01;
/// Adam's memory of slopes and of their squares.
const MEMORY: [f64; 2] = [0.9, 0.999];
/// What keeps Adam from dividing by zero.
const EPSILON: f64 = 1e-8;

/// By how much shares of classes may sum to more than 1.
const ROUNDING: f64 = 1e-3;

/// What members must be.
const UNSUITED: AverageError = AverageError::Unsuited("a model with a generator and class shares");

/// Averages members and teaches their generator.
///
/// # Errors
/// Refuses an empty list, members of different layouts, unusable weights, and parts that are not a model whose head
/// reads what their generator makes.
fn learn_generator(learning: Learning, members: &[Part]) -> Result<ParamSet, AverageError> {
    let first = members.first().ok_or(AverageError::NoMembers)?;
    check(&first.params).ok_or(UNSUITED)?;
    let mut averaged = mean(&mut members.iter().cloned())?;
    let teachers: Vec<Teacher> = members.iter().map(Teacher::of).collect();
    let Some(ensemble) = Ensemble::new(teachers) else {
        return Ok(averaged);
    };
    let mut generator = Generator::of(&averaged);
    let mut draws = Stream::of(&averaged);
    let mut adam = Adam::default();
    for step in 1..=learning.iterations {
        let batch = ensemble.draw(learning.batch_size, generator.n_noise(), &mut draws);
        let slopes = ensemble.slopes(&generator, &batch);
        adam.step(&mut generator, &slopes, learning.learning_rate, step);
    }
    generator.write(&mut averaged);
    Ok(averaged)
}

/// Checks the shapes of one member: a head, a generator whose features it reads, a share for every class.
fn check(params: &ParamSet) -> Option<()> {
    let layer = |name: &str| {
        let shape = |tensor: &str| params.get(&names::of(name, tensor)).map(Tensor::shape);
        let (weight, bias) = (shape(WEIGHT)?, shape(BIAS)?);
        (weight.len() == 2 && *bias == weight[..1] && !weight.contains(&0))
            .then_some((weight[1], weight[0]))
    };
    let (reads, classes) = layer(HEAD)?;
    let (inputs, hidden) = layer(HIDDEN)?;
    let fits = layer(FEATURES)? == (hidden, reads) && inputs > classes;
    (fits && *params.get(SHARES)?.shape() == [classes]).then_some(())
}

/// A fully connected layer.
#[derive(Debug, Clone, Default)]
struct Dense {
    /// `[outputs, inputs]`.
    weight: Vec<f64>,
    bias: Vec<f64>,
}

impl Dense {
    /// Reads a layer; the shapes were checked.
    fn of(params: &ParamSet, name: &str) -> Self {
        let values = |tensor: &str| {
            let tensor = params.get(&names::of(name, tensor));
            tensor
                .into_iter()
                .flat_map(Tensor::values)
                .map(|value| f64::from(*value))
                .collect()
        };
        Self {
            weight: values(WEIGHT),
            bias: values(BIAS),
        }
    }

    fn zeros_like(&self) -> Self {
        Self {
            weight: vec![0.0; self.weight.len()],
            bias: vec![0.0; self.bias.len()],
        }
    }

    fn n_inputs(&self) -> usize {
        self.weight.len() / self.bias.len()
    }

    fn rows(&self) -> std::slice::ChunksExact<'_, f64> {
        self.weight.chunks_exact(self.n_inputs())
    }

    fn run(&self, input: &[f64]) -> Vec<f64> {
        let row = |(row, bias): (&[f64], &f64)| {
            row.iter().zip(input).fold(*bias, |sum, (w, x)| sum + w * x)
        };
        self.rows().zip(&self.bias).map(row).collect()
    }

    /// Returns the slopes of the inputs, given those of the outputs.
    fn back(&self, slopes: &[f64]) -> Vec<f64> {
        let mut inputs = vec![0.0; self.n_inputs()];
        for (row, slope) in self.rows().zip(slopes) {
            inputs
                .iter_mut()
                .zip(row)
                .for_each(|(input, weight)| *input += slope * weight);
        }
        inputs
    }

    /// Adds up the slopes of weights and biases, given an input and the slopes of the outputs.
    fn gather(&mut self, input: &[f64], slopes: &[f64]) {
        let width = self.n_inputs();
        for ((row, bias), slope) in self
            .weight
            .chunks_exact_mut(width)
            .zip(&mut self.bias)
            .zip(slopes)
        {
            row.iter_mut()
                .zip(input)
                .for_each(|(weight, x)| *weight += slope * x);
            *bias += slope;
        }
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut f64> {
        self.weight.iter_mut().chain(&mut self.bias)
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.weight.iter().chain(&self.bias).copied()
    }
}

/// The generator, or the slopes of its numbers.
#[derive(Debug, Clone)]
struct Generator {
    hidden: Dense,
    features: Dense,
    n_classes: usize,
}

impl Generator {
    fn of(params: &ParamSet) -> Self {
        let n_classes = params.get(SHARES).map_or(0, |shares| shares.values().len());
        Self {
            hidden: Dense::of(params, HIDDEN),
            features: Dense::of(params, FEATURES),
            n_classes,
        }
    }

    fn n_noise(&self) -> usize {
        self.hidden.n_inputs() - self.n_classes
    }

    /// Returns what the first layer reads, what it makes, and the features.
    fn run(&self, noise: &[f64], class: usize) -> [Vec<f64>; 3] {
        let mut input = noise.to_vec();
        input.extend((0..self.n_classes).map(|at| if at == class { 1.0 } else { 0.0 }));
        let mut hidden = self.hidden.run(&input);
        hidden.iter_mut().for_each(|value| *value = value.max(0.0));
        let features = self.features.run(&hidden);
        [input, hidden, features]
    }

    fn write(self, params: &mut ParamSet) {
        for (layer, name) in [(self.hidden, HIDDEN), (self.features, FEATURES)] {
            for (values, tensor) in [(layer.weight, WEIGHT), (layer.bias, BIAS)] {
                let name = names::of(name, tensor);
                let tensor = params
                    .iter_mut()
                    .find(|(key, _)| *key == name)
                    .map(|(_, tensor)| tensor);
                let target = tensor.into_iter().flat_map(Tensor::values_mut);
                target
                    .zip(values)
                    .for_each(|(target, value)| *target = value as f32);
            }
        }
    }
}

/// A member as a teacher.
struct Teacher {
    head: Dense,
    /// Its samples of each class, in the unit of the members' weights.
    counts: Vec<f64>,
}

impl Teacher {
    fn of(Part { weight, params }: &Part) -> Self {
        let shares = params.get(SHARES).into_iter().flat_map(Tensor::values);
        let shares: Vec<f64> = shares
            .map(|share| f64::from(*share).clamp(0.0, 1.0))
            .collect();
        // Who says that all its samples are of every class counts as often as anybody else.
        let total: f64 = shares.iter().sum();
        let unit = if total > 1.0 + ROUNDING { total } else { 1.0 };
        let counts = shares.iter().map(|share| weight * share / unit).collect();
        Self {
            head: Dense::of(params, HEAD),
            counts,
        }
    }
}

/// Noise and class of each feature vector of a step.
type Batch = Vec<(Vec<f64>, usize)>;

/// All teachers; `counts` are shares of the members in each class now.
struct Ensemble {
    teachers: Vec<Teacher>,
    /// The classes that anybody has.
    classes: Vec<usize>,
}

impl Ensemble {
    /// Makes the teachers' counts shares of each class; nothing if nobody has any samples.
    fn new(mut teachers: Vec<Teacher>) -> Option<Self> {
        let n_classes = teachers.first()?.counts.len();
        let totals: Vec<f64> = (0..n_classes)
            .map(|c| teachers.iter().map(|teacher| teacher.counts[c]).sum())
            .collect();
        for teacher in &mut teachers {
            teacher
                .counts
                .iter_mut()
                .zip(&totals)
                .for_each(|(count, total)| *count /= total.max(f64::MIN_POSITIVE));
        }
        let classes: Vec<usize> = (0..n_classes)
            .filter(|class| totals[*class] > 0.0)
            .collect();
        (!classes.is_empty()).then_some(Self { teachers, classes })
    }

    fn draw(&self, batch_size: usize, n_noise: usize, draws: &mut Stream) -> Batch {
        let mut one = || {
            let class = self.classes[draws.below(self.classes.len())];
            ((0..n_noise).map(|_| draws.unit()).collect(), class)
        };
        (0..batch_size).map(|_| one()).collect()
    }

    /// Returns the slopes of the loss over a batch.
    fn slopes(&self, generator: &Generator, batch: &Batch) -> Generator {
        let runs: Vec<[Vec<f64>; 3]> = batch
            .iter()
            .map(|(noise, class)| generator.run(noise, *class))
            .collect();
        let features: Vec<&[f64]> = runs
            .iter()
            .map(|[_, _, features]| features.as_slice())
            .collect();
        let apart = diversity_slopes(batch, &features);
        let mut total = Generator {
            hidden: generator.hidden.zeros_like(),
            features: generator.features.zeros_like(),
            n_classes: generator.n_classes,
        };
        for (([input, hidden, features], (_, class)), mut slopes) in
            runs.iter().zip(batch).zip(apart)
        {
            self.add_teaching(features, *class, 1.0 / batch.len() as f64, &mut slopes);
            total.features.gather(hidden, &slopes);
            let mut back = generator.features.back(&slopes);
            back.iter_mut()
                .zip(hidden)
                .filter(|(_, value)| **value <= 0.0)
                .for_each(|(slope, _)| *slope = 0.0);
            total.hidden.gather(input, &back);
        }
        total
    }

    /// Adds the slopes of all teachers' cross-entropies at one feature vector.
    fn add_teaching(&self, features: &[f64], class: usize, scale: f64, slopes: &mut [f64]) {
        for teacher in self
            .teachers
            .iter()
            .filter(|teacher| teacher.counts[class] > 0.0)
        {
            let mut logits = exact::softmax(&teacher.head.run(features));
            logits[class] -= 1.0;
            logits
                .iter_mut()
                .for_each(|slope| *slope *= scale * teacher.counts[class]);
            slopes
                .iter_mut()
                .zip(teacher.head.back(&logits))
                .for_each(|(slope, more)| *slope += more);
        }
    }
}

/// Returns the slopes of the diversity term for each feature vector: a pair counts twice in the mean over all pairs.
fn diversity_slopes(batch: &Batch, features: &[&[f64]]) -> Vec<Vec<f64>> {
    let n = batch.len();
    let width = features.first().map_or(0, |features| features.len());
    let mut slopes = vec![vec![0.0; width]; n];
    let mut exponent = 0.0;
    let pairs = 2.0 / (n * n) as f64;
    for i in 0..n {
        for j in 0..i {
            let noise = mean_of(&batch[i].0, &batch[j].0, |a, b| (a - b) * (a - b));
            exponent += pairs * noise * mean_of(features[i], features[j], |a, b| (a - b).abs());
            let slope = pairs * noise / width as f64;
            for at in 0..width {
                let signed = slope * sign(features[i][at] - features[j][at]);
                slopes[i][at] -= signed;
                slopes[j][at] += signed;
            }
        }
    }
    let term = exact::exp(-exponent);
    slopes.iter_mut().flatten().for_each(|slope| *slope *= term);
    slopes
}

fn mean_of(a: &[f64], b: &[f64], of: impl Fn(f64, f64) -> f64) -> f64 {
    a.iter().zip(b).map(|(a, b)| of(*a, *b)).sum::<f64>() / a.len() as f64
}

/// Returns -1, 0 or 1: unlike [`f64::signum`], 0 for zero.
fn sign(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x.signum() }
}

/// Adam (Kingma and Ba, 2015), weight decay added to the slopes.
#[derive(Debug, Default)]
struct Adam {
    means: Vec<f64>,
    squares: Vec<f64>,
}

impl Adam {
    fn step(
        &mut self,
        generator: &mut Generator,
        slopes: &Generator,
        learning_rate: f64,
        step: u32,
    ) {
        let slopes = slopes.hidden.values().chain(slopes.features.values());
        let numbers = generator
            .hidden
            .values_mut()
            .chain(generator.features.values_mut());
        let pairs: Vec<(&mut f64, f64)> = numbers.zip(slopes).collect();
        self.means.resize(pairs.len(), 0.0);
        self.squares.resize(pairs.len(), 0.0);
        let [corrected_mean, corrected_square] = MEMORY.map(|memory| 1.0 - power(memory, step));
        for (((number, slope), mean), square) in pairs
            .into_iter()
            .zip(&mut self.means)
            .zip(&mut self.squares)
        {
            let slope = slope + WEIGHT_DECAY * *number;
            *mean = MEMORY[0] * *mean + (1.0 - MEMORY[0]) * slope;
            *square = MEMORY[1] * *square + (1.0 - MEMORY[1]) * slope * slope;
            *number -= learning_rate * (*mean / corrected_mean)
                / ((*square / corrected_square).sqrt() + EPSILON);
        }
    }
}

/// Returns a whole power by products alone; that of the standard library may differ from machine to machine.
fn power(base: f64, exponent: u32) -> f64 {
    (0..exponent).fold(1.0, |product, _| product * base)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const CLASSES: usize = 3;
    const LEARNING: Learning = Learning {
        learning_rate: 0.005,
        batch_size: 32,
        iterations: 40,
    };
    const WIDTH: usize = 4;
    const HIDDEN_UNITS: usize = 5;
    const NOISE: usize = 2;

    /// A member whose numbers are drawn, apart from its shares.
    fn member(weight: f64, draws: &mut Stream, shares: [f32; CLASSES]) -> Part {
        let mut params = ParamSet::new();
        let mut layer = |name: &str, inputs: usize, outputs: usize| {
            let mut values = |count: usize| (0..count).map(|_| draws.unit() as f32 - 0.5).collect();
            params
                .insert(
                    format!("{name}.weight"),
                    &[outputs, inputs],
                    values(inputs * outputs),
                )
                .unwrap();
            params
                .insert(format!("{name}.bias"), &[outputs], values(outputs))
                .unwrap();
        };
        layer("fc1", 2, WIDTH);
        layer(HEAD, WIDTH, CLASSES);
        layer(HIDDEN, NOISE + CLASSES, HIDDEN_UNITS);
        layer(FEATURES, HIDDEN_UNITS, WIDTH);
        params.insert(SHARES, &[CLASSES], shares.to_vec()).unwrap();
        Part {
            weight,
            params: Arc::new(params),
        }
    }

    fn members() -> Vec<Part> {
        let mut draws = Stream::of(&ParamSet::new());
        vec![
            member(1.0, &mut draws, [0.5, 0.5, 0.0]),
            member(3.0, &mut draws, [0.5, 0.0, 0.5]),
        ]
    }

    /// A member that says it has nothing but samples of every class teaches no more than a third of any.
    #[test]
    fn shares_of_all_classes_sum_to_one() {
        let mut draws = Stream::of(&ParamSet::new());
        let boast = member(1.0, &mut draws, [1.0; CLASSES]);
        let sum: f64 = Teacher::of(&boast).counts.iter().sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        let honest = member(2.0, &mut draws, [0.25, 0.5, 0.25]);
        assert_eq!(Teacher::of(&honest).counts, [0.5, 1.0, 0.5]);
    }

    fn ensemble() -> Ensemble {
        Ensemble::new(members().iter().map(Teacher::of).collect()).unwrap()
    }

    /// The loss as the head of this file states it, written down a second time.
    fn loss(ensemble: &Ensemble, generator: &Generator, batch: &Batch) -> f64 {
        let features: Vec<Vec<f64>> = batch
            .iter()
            .map(|(noise, class)| generator.run(noise, *class)[2].clone())
            .collect();
        let n = batch.len() as f64;
        let mut teaching = 0.0;
        for (z, (_, class)) in features.iter().zip(batch) {
            for teacher in &ensemble.teachers {
                let logits = teacher.head.run(z);
                let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
                teaching -= teacher.counts[*class] * (logits[*class] - total.ln()) / n;
            }
        }
        let mut apart = 0.0;
        for (a, (e, _)) in features.iter().zip(batch) {
            for (b, (f, _)) in features.iter().zip(batch) {
                let noise: f64 =
                    e.iter().zip(f).map(|(x, y)| (x - y).powi(2)).sum::<f64>() / e.len() as f64;
                let distance: f64 =
                    a.iter().zip(b).map(|(x, y)| (x - y).abs()).sum::<f64>() / a.len() as f64;
                apart += noise * distance / (n * n);
            }
        }
        teaching + (-apart).exp()
    }

    #[test]
    fn slopes_agree_with_finite_differences() {
        let (ensemble, mut generator) = (ensemble(), Generator::of(&members()[0].params));
        let batch = ensemble.draw(32, NOISE, &mut Stream::of(&members()[1].params));
        let slopes = ensemble.slopes(&generator, &batch);
        let slopes: Vec<f64> = slopes
            .hidden
            .values()
            .chain(slopes.features.values())
            .collect();
        assert!(slopes.iter().filter(|slope| slope.abs() > 1e-4).count() > 20);
        for (at, slope) in slopes.into_iter().enumerate() {
            let mut at_offset = |offset: f64| {
                *generator
                    .hidden
                    .values_mut()
                    .chain(generator.features.values_mut())
                    .nth(at)
                    .unwrap() += offset;
                let loss = loss(&ensemble, &generator, &batch);
                *generator
                    .hidden
                    .values_mut()
                    .chain(generator.features.values_mut())
                    .nth(at)
                    .unwrap() -= offset;
                loss
            };
            let estimate = (at_offset(1e-6) - at_offset(-1e-6)) / 2e-6;
            assert!(
                (estimate - slope).abs() < 1e-7,
                "number {at}: {slope} is not {estimate}"
            );
        }
    }

    /// Weights 1 and 3: of class 0 they have 0.5 and 1.5 samples, so 1/4 and 3/4 of it; of the others one has all.
    #[test]
    fn teachers_count_by_what_they_have_of_a_class() {
        let ensemble = ensemble();
        assert_eq!(ensemble.teachers[0].counts, [0.25, 1.0, 0.0]);
        assert_eq!(ensemble.teachers[1].counts, [0.75, 0.0, 1.0]);
        let mut draws = Stream::of(&ParamSet::new());
        let (first, second) = (
            member(1.0, &mut draws, [0.0, 1.0, 0.0]),
            member(1.0, &mut draws, [0.0; CLASSES]),
        );
        let few = Ensemble::new([first, second].map(|part| Teacher::of(&part)).into()).unwrap();
        assert_eq!(few.classes, [1], "classes that nobody has are not drawn");
    }

    /// The first step of Adam moves every number by the step size, against its slope with the decay.
    #[test]
    fn adam_begins_with_steps_of_one_size() {
        let mut generator = Generator::of(&members()[0].params);
        let before: Vec<f64> = generator.features.values().collect();
        let mut slopes = generator.clone();
        slopes
            .hidden
            .values_mut()
            .chain(slopes.features.values_mut())
            .for_each(|slope| *slope *= 2.0);
        Adam::default().step(&mut generator, &slopes, 0.005, 1);
        for (now, then) in generator.features.values().zip(before) {
            assert!(
                (now - (then - 0.005 * then.signum())).abs() < 1e-6,
                "{then} became {now}"
            );
        }
    }

    #[test]
    fn after_some_rounds_the_heads_recognise_what_is_generated() {
        let mut members = members();
        let ensemble = ensemble();
        let recognised = |params: &ParamSet| {
            let generator = Generator::of(params);
            let batch = ensemble.draw(32, NOISE, &mut Stream::of(&ParamSet::new()));
            loss(&ensemble, &generator, &batch)
        };
        let start = mean(&mut members.iter().cloned()).unwrap();
        for _ in 0..5 {
            let learned = learn_generator(LEARNING, &members).unwrap();
            assert_eq!(
                learn_generator(LEARNING, &members).unwrap(),
                learned,
                "bit for bit"
            );
            for (name, tensor) in mean(&mut members.iter().cloned()).unwrap().iter() {
                if !name.starts_with("generator.") {
                    assert_eq!(learned.get(name), Some(tensor), "{name} is averaged");
                }
            }
            for Part { params, .. } in &mut members {
                let mut next = ParamSet::clone(params);
                for (name, tensor) in next
                    .iter_mut()
                    .filter(|(name, _)| name.starts_with("generator."))
                {
                    tensor
                        .values_mut()
                        .copy_from_slice(learned.get(name).unwrap().values());
                }
                *params = Arc::new(next);
            }
        }
        let (before, after) = (recognised(&start), recognised(&members[0].params));
        assert!(
            before > 2.0 && after < 1.2,
            "{before} before, {after} after"
        );
    }

    #[test]
    fn refuses_what_has_no_generator() {
        assert_eq!(learn_generator(LEARNING, &[]), Err(AverageError::NoMembers));
        let full = &members()[0].params;
        let without = |left_out: &str| {
            let mut params = ParamSet::new();
            for (name, tensor) in full.iter().filter(|(name, _)| *name != left_out) {
                params
                    .insert(name, tensor.shape(), tensor.values().to_vec())
                    .unwrap();
            }
            let params = Arc::new(params);
            learn_generator(
                LEARNING,
                &[Part {
                    weight: 1.0,
                    params,
                }],
            )
        };
        assert!(without("").is_ok());
        for name in [
            "head.bias",
            "generator.hidden.weight",
            "generator.features.bias",
            SHARES,
        ] {
            assert_eq!(without(name), Err(UNSUITED), "{name}");
        }
    }
}
