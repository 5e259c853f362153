//! What is kept of what was received: a classifier, the reason why there is none, or nothing once its owners took it back.

use std::borrow::Borrow;

use burn::tensor::{Device, Tensor};
use fednode_core::work::PeerExpert;
use fednode_core::{BlobId, ParamSet};
use fednode_data::Samples;
use fednode_mix::statistics::Discriminant;

use super::Noised;
use super::solving::NoSolution;
use crate::agreement;
use crate::class_statistics::upload;
use crate::weights::Weights;

impl Noised {
    /// Solves for the classifier of peers' releases; the same ones are solved once.
    pub(crate) fn adopt<P: Borrow<ParamSet>>(&mut self, peers: &[PeerExpert<P>], device: &Device) {
        let key = agreement::key_of(&self.released.params(), peers);
        if self.remembered.solved != Some(key) {
            self.take(key, self.solve(peers), device);
        }
    }

    /// Solves for the classifier of the total, if it is that which was adopted. Until there is one, all have zeros. `samples` are the
    /// own ones: where others have come, the same total is solved again.
    pub(crate) fn adopt_total(&mut self, samples: &Samples, device: &Device) {
        let Some(total) = self.total else { return };
        let key = self.released.params().to_blob().0.id;
        let (members, sums) = self.read_total(&self.released.params());
        if members <= 1.0 {
            return;
        }
        let has_others = self.keep_anew(samples, device);
        if has_others || self.remembered.solved != Some(key) {
            let solved = self.solve_total(members, total, sums.statistics());
            self.take(key, solved, device);
        }
    }

    /// Deletes what was made of peers' statistics, as if none had ever come.
    pub(crate) fn forget_peers(&mut self, device: &Device) {
        let mut none = self.classifier();
        none.weights.fill(0.0);
        none.offsets.fill(0.0);
        self.write(&none, device);
        (self.remembered.solved, self.remembered.missing) = (None, None);
    }

    fn write(&mut self, classifier: &Discriminant, device: &Device) {
        let mut kept: Vec<Tensor<1>> = (0..3).map(|at| self.kept.weights.tensor(at)).collect();
        let written = [&classifier.weights, &classifier.offsets];
        kept.extend(written.map(|values| upload(values, device)));
        self.kept.weights = Weights::new(kept);
    }

    /// Remembers the classifier of what was received, or why there is none.
    fn take(&mut self, key: BlobId, solved: Result<Discriminant, NoSolution>, device: &Device) {
        match solved {
            Ok(solved) => {
                self.write(&solved, device);
                (self.remembered.solved, self.remembered.missing) = (Some(key), None);
            }
            Err(reason) => {
                let before = self.remembered.missing.replace(reason.to_string());
                self.remembered.solved = None;
                // Said once: noise that is too large stays so from round to round.
                if before != self.remembered.missing {
                    tracing::warn!(%reason, "no classifier of peers' noised statistics");
                }
            }
        }
    }
}
