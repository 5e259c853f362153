//! Starting from parameters that were trained elsewhere, instead of drawn ones (FedMoE-DA §V-D: a pre-trained embedding).

use fednode_core::ParamSet;

use super::Learner;
use crate::error::LearnError;

impl Learner {
    /// Takes over what the model has under the same name and in the same shape, and keeps the rest as it was drawn: a
    /// pre-trained extractor may come with a head for other classes. What starts as a copy of another part, and is not
    /// named itself, is one again. To be called before anything is trained or restored;
    /// returns how many tensors were taken over.
    ///
    /// # Errors
    /// Refuses parameters of which the model has none, and such as are not finite.
    pub fn start_from(&mut self, initial: &ParamSet) -> Result<usize, LearnError> {
        let tensors = self.parts.device.tensors();
        let (mut taken, mut is_given) = (0, Vec::new());
        for part in self.parts.algorithm.parts_mut() {
            let (prefix, mut params, before) = (part.prefix(), part.params(), taken);
            for (name, tensor) in params.iter_mut() {
                let Some(given) = initial.get(&format!("{prefix}{name}")) else {
                    continue;
                };
                if given.shape() != tensor.shape() {
                    continue;
                }
                if !given.values().iter().all(|value| value.is_finite()) {
                    return Err(LearnError::NotFinite {
                        part: "the initial parameters".into(),
                        tensor: name.into(),
                    });
                }
                tensor.values_mut().copy_from_slice(given.values());
                taken += 1;
            }
            if taken > before {
                self.parts
                    .device
                    .run(|| part.load(&params, tensors))
                    .expect("names and shapes are the part's own");
            }
            is_given.push(taken > before);
        }
        for [copy, original] in self.parts.algorithm.copies() {
            if is_given[*original] && !is_given[*copy] {
                let parts = self.parts.algorithm.parts_mut();
                parts[*copy].weights = parts[*original].weights.clone();
            }
        }
        if taken == 0 {
            return Err(LearnError::NothingInitial {
                model: self.model.name.clone(),
            });
        }
        self.initial_shared = self.shared();
        Ok(taken)
    }
}
