//! The numbers of a network on a device, and their way to plain numbers and back.
//!
//! Every parameter is one flat tensor; a layer gives it its shape when it runs, which costs nothing. Flat tensors make
//! everything here uniform: loading, saving, recording, the step of gradient descent.
//!
//! Weights are *plain* (no autodiff: inference, frozen parts) or *recorded* ([`Weights::recorded`]: what runs with them
//! is taped and gives gradients). A learner holds plain ones and records them anew for each step, so no graph outlives
//! its batch. Which of the two they are is also the [`Mode`] of batch normalisation and dropout: recorded weights train,
//! plain ones infer. Recorded weights collect the new running statistics, which take effect with the step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{Device, Gradients, Tensor, TensorData, Transaction};
use fednode_core::{LayoutMismatch, ParamSet};
use rand_chacha::ChaCha8Rng;

use crate::model::{Initial, Net, Parameter};
use crate::random::{self, Purpose};

/// Whether a batch trains what it runs through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Running statistics normalise, nothing is dropped.
    Inference,
    /// The batch's statistics normalise, dropout drops.
    Training,
}

/// The draws of dropout, which all parts of a model share.
pub(crate) type DropoutDraws = Arc<Mutex<ChaCha8Rng>>;

/// The numbers of one network, in the order of [`Net::parameters`].
#[derive(Debug, Clone)]
pub struct Weights {
    tensors: Vec<Tensor<1>>,
    /// Only in recorded weights.
    training: Option<Arc<Training>>,
}

/// What a step collects besides gradients.
#[derive(Debug)]
struct Training {
    /// New running statistics by their place among the tensors.
    statistics: Mutex<BTreeMap<usize, Tensor<1>>>,
    dropout: Option<DropoutDraws>,
}

impl Weights {
    /// Loads a parameter set onto a device.
    ///
    /// # Errors
    /// Names the first parameter that is missing, too many or of another shape.
    pub fn load(net: &Net, params: &ParamSet, device: &Device) -> Result<Self, LayoutMismatch> {
        params.check_layout(&net.layout())?;
        let tensors = net.parameters().iter().map(|parameter| {
            let tensor = params.get(&parameter.name).expect("the layout was checked");
            let values = if parameter.transposed {
                transpose(tensor.values(), parameter.shape[0], parameter.shape[1])
            } else {
                tensor.values().to_vec()
            };
            let length = values.len();
            Tensor::from_data(TensorData::new(values, [length]), device)
        });
        Ok(Self::new(tensors.collect()))
    }

    /// Returns plain weights of the same shapes that are all 0.
    pub(crate) fn zeros(&self) -> Self {
        Self::new(self.tensors.iter().map(Tensor::zeros_like).collect())
    }

    /// Returns the parameter set, with names and shapes as PyTorch has them.
    pub fn save(&self, net: &Net) -> ParamSet {
        let mut params = ParamSet::new();
        for (parameter, values) in net.parameters().iter().zip(all_values(&self.tensors)) {
            let values = if parameter.transposed {
                transpose(&values, parameter.shape[1], parameter.shape[0])
            } else {
                values
            };
            params
                .insert(parameter.name.as_str(), &parameter.shape, values)
                .expect("a net's parameters have distinct names and the shapes of its tensors");
        }
        params
    }

    /// Makes weights of flat tensors in the order of [`Net::parameters`].
    pub(crate) const fn new(tensors: Vec<Tensor<1>>) -> Self {
        Self {
            tensors,
            training: None,
        }
    }

    /// Returns one tensor, by its place in [`Net::parameters`].
    pub(crate) fn tensor(&self, at: usize) -> Tensor<1> {
        self.tensors[at].clone()
    }

    /// Visits the tensors in the order of [`Net::parameters`].
    pub fn tensors(&self) -> std::slice::Iter<'_, Tensor<1>> {
        self.tensors.iter()
    }

    /// Returns the same numbers as leaves of a new tape; what runs with them can be differentiated.
    #[must_use]
    pub fn recorded(&self) -> Self {
        self.recorded_with(None)
    }

    /// Does the same with draws for dropout; without them nothing is dropped.
    #[must_use]
    pub(crate) fn recorded_with(&self, dropout: Option<DropoutDraws>) -> Self {
        let record = |tensor: &Tensor<1>| tensor.clone().autodiff().require_grad();
        let statistics = Mutex::default();
        Self {
            tensors: self.tensors.iter().map(record).collect(),
            training: Some(Arc::new(Training {
                statistics,
                dropout,
            })),
        }
    }

    /// Tells whether what runs with them trains them.
    pub const fn mode(&self) -> Mode {
        match self.training {
            Some(_) => Mode::Training,
            None => Mode::Inference,
        }
    }

    /// Returns a running statistic as the last batch left it, off every tape.
    pub(crate) fn statistic(&self, at: usize) -> Tensor<1> {
        let training = self.training.as_ref();
        let renewed = training.and_then(|training| locked(&training.statistics).get(&at).cloned());
        renewed.unwrap_or_else(|| self.tensor(at).without_autodiff())
    }

    /// Keeps a new running statistic until the step is made; plain weights keep none.
    pub(crate) fn renew(&self, at: usize, statistic: Tensor<1>) {
        if let Some(training) = &self.training {
            locked(&training.statistics).insert(at, statistic);
        }
    }

    /// Takes the new running statistics, each with its place.
    pub(crate) fn take_statistics(&self) -> Vec<(usize, Tensor<1>)> {
        let taken = self
            .training
            .as_ref()
            .map(|training| std::mem::take(&mut *locked(&training.statistics)));
        taken.unwrap_or_default().into_iter().collect()
    }

    /// Draws factors of dropout; nothing outside of training.
    pub(crate) fn dropout(&self, share: f64, count: usize) -> Option<Vec<f32>> {
        let draws = self.training.as_ref()?.dropout.as_ref()?;
        Some(random::dropout(&mut locked(draws), share, count))
    }

    /// Takes the gradients of recorded weights; plain ones and those that the loss does not depend on have none.
    pub fn take_gradients(self, gradients: &mut Gradients) -> Vec<Option<Tensor<1>>> {
        let mut take = |tensor: &Tensor<1>| {
            tensor
                .is_require_grad()
                .then(|| tensor.grad_remove(gradients))
                .flatten()
        };
        self.tensors.iter().map(&mut take).collect()
    }

    /// Moves by the difference of two others of the same network, `w += to - from`.
    pub fn shift(&mut self, from: &Self, to: &Self) {
        let both = from.tensors.iter().zip(&to.tensors);
        for (tensor, (from, to)) in self.tensors.iter_mut().zip(both) {
            let step = to.clone() - from.clone();
            tensor.inplace(|values| values + step);
        }
    }

    /// Replaces one tensor by what is made of it, in place where nobody else holds it.
    pub(crate) fn change(&mut self, at: usize, change: impl FnOnce(Tensor<1>) -> Tensor<1>) {
        self.tensors[at].inplace(change);
    }
}

/// Locks what only one thread works on; a panic elsewhere leaves nothing half done in it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Draws the initial parameters of a network.
///
/// A parameter's numbers depend on the seed, its name and the slot alone, so that a layer starts alike in every
/// algorithm, whatever else the algorithm holds.
pub(crate) fn initial(net: &Net, seed: u64, slot: u64) -> ParamSet {
    let mut params = ParamSet::new();
    for Parameter {
        name,
        shape,
        initial,
        ..
    } in net.parameters()
    {
        let mut rng = random::stream(Purpose::Initial, [seed, random::name_index(name), slot]);
        let count = shape.iter().product();
        let mut uniform = |bound: f32| random::uniform(&mut rng, bound, count);
        let values = match initial {
            Initial::FanIn(fan_in) => uniform((1.0 / (*fan_in as f64).sqrt()) as f32),
            Initial::Zeros => vec![0.0; count],
            Initial::Ones => vec![1.0; count],
            Initial::UnitInterval => uniform(0.5).into_iter().map(|value| value + 0.5).collect(),
            Initial::UnitVariance => uniform(3f32.sqrt()),
            Initial::Rows { zeros } => {
                let mut values = uniform(3f32.sqrt());
                values[..*zeros].fill(0.0);
                values
            }
        };
        params
            .insert(name.as_str(), shape, values)
            .expect("a net's parameters have distinct names");
    }
    params
}

/// Reads a tensor back.
pub(crate) fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor
        .clone()
        .without_autodiff()
        .try_into_vec_as::<f32>()
        .expect("all tensors here hold 32-bit floats")
}

/// Reads several tensors back; a GPU is waited for once.
pub(crate) fn all_values<const D: usize>(tensors: &[Tensor<D>]) -> Vec<Vec<f32>> {
    if tensors.is_empty() {
        return Vec::new();
    }
    let register = |reading: Transaction, tensor: &Tensor<D>| {
        reading.register(tensor.clone().without_autodiff())
    };
    let read = tensors
        .iter()
        .fold(Transaction::default(), register)
        .execute();
    let values = |data: TensorData| {
        data.try_into_vec_as::<f32>()
            .expect("all tensors here hold floats")
    };
    read.into_iter().map(values).collect()
}

/// Turns a row-major `rows × columns` matrix into `columns × rows`.
///
/// It goes square by square: a column of a large matrix touches a cache line per number, and experts are transposed
/// several times in a round.
fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const SIDE: usize = 16;
    let mut transposed = vec![0.0; rows * columns];
    for top in (0..rows).step_by(SIDE) {
        for left in (0..columns).step_by(SIDE) {
            for column in left..columns.min(left + SIDE) {
                for row in top..rows.min(top + SIDE) {
                    transposed[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    transposed
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::spec::Architecture;

    fn net() -> Net {
        crate::model::build(&Architecture {
            name: "cnn".into(),
            input: [1, 8, 8],
            classes: 3,
            experts: 1,
            ..Architecture::default()
        })
        .unwrap()
    }

    #[test]
    fn survive_the_device_bit_for_bit() {
        let params = initial(&net(), 1, 0);
        let weights = Weights::load(&net(), &params, &Device::flex()).unwrap();
        assert_eq!(weights.save(&net()), params);
    }

    #[test]
    fn transposes_matrices_that_are_no_multiple_of_a_square() {
        let (rows, columns) = (33, 18);
        let values: Vec<f32> = (0..rows * columns).map(|at| at as f32).collect();
        let transposed = transpose(&values, rows, columns);
        let expected = (0..columns)
            .flat_map(|column| (0..rows).map(move |row| (row * columns + column) as f32));
        assert!(transposed.iter().copied().eq(expected));
    }

    #[test]
    fn initial_values_depend_on_seed_name_and_slot_only() {
        let head = net().split(crate::model::Cut::Head).1;
        assert_eq!(
            initial(&head, 1, 0).get("fc.weight"),
            initial(&net(), 1, 0).get("fc.weight")
        );
        assert_ne!(initial(&net(), 1, 0), initial(&net(), 2, 0));
        assert_ne!(initial(&net(), 1, 0), initial(&net(), 1, 1));
        let bound = 1.0 / 512f32.sqrt();
        let params = initial(&head, 1, 0);
        let largest = params
            .values()
            .fold(0f32, |largest, value| largest.max(value.abs()));
        assert!(largest <= bound && largest > 0.99 * bound);
    }

    #[test]
    fn plain_weights_have_no_gradients() {
        let net = Net::arrays(&[("a", &[2], Initial::Ones)]);
        let plain = Weights::load(&net, &initial(&net, 1, 0), &Device::flex()).unwrap();
        let recorded = plain.recorded();
        let mut gradients = (recorded.tensor(0) * plain.tensor(0)).sum().backward();
        assert_eq!(recorded.take_gradients(&mut gradients).len(), 1);
        assert!(plain.take_gradients(&mut gradients)[0].is_none());
    }
}
