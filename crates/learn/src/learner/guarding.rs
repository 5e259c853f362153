//! The guard by the measure that the spec names (`metric`): what peers brought is not served to a node that it makes worse.
//!
//! It comes after each choice of how peers' statistics are joined. That choice is by log loss or squares, and is the best one for
//! the probabilities. It may still put samples in a worse order (AUROC) or recognise rare classes less often (balanced
//! accuracy).

use burn::tensor::Device;
use fednode_measure::Predictions;

use super::Learner;
use super::parts::Parts;
use crate::agreement::{self, Agreement};
use crate::pool::Predictor;
use crate::{class_statistics, evaluate, metric, noised, regression};

/// What was left out, to be put back.
enum LeftOut {
    Statistics(Box<class_statistics::LeftOut>),
    Agreement(agreement::Remembered),
    Regression(regression::Remembered),
    Noised(noised::Remembered),
}

impl Learner {
    /// Leaves out what peers brought, where the node is clearly better without it on its validation samples.
    pub(super) fn guard(&mut self) {
        let Some(judge) = self.judge else { return };
        if self.data.validation.is_empty() || !self.parts.serves_peers() {
            return;
        }
        let joined = self.on_validation();
        let device = self.parts.device.clone();
        let Some(before) = device.run(|| self.leave_peers_out(device.tensors())) else {
            return;
        };
        let pair = joined.zip(self.on_validation());
        let seed = self.training.node_seed;
        if pair.is_some_and(|(joined, alone)| judge.is_clearly_worse(&joined, &alone, seed)) {
            tracing::info!(
                "peers' statistics are left out: with them the {} on the validation samples is worse",
                judge.name()
            );
        } else {
            device.run(|| self.parts.put_peers_back(before, device.tensors()));
        }
    }

    /// Predicts the validation samples as they would be served.
    fn on_validation(&self) -> Option<Predictions> {
        let (samples, device) = (&self.data.validation, &self.parts.device);
        let predict =
            || evaluate::predict(&|inputs| self.forward(inputs), samples, device.tensors());
        metric::beside(&device.run(predict), samples).ok()
    }

    /// Leaves out what peers brought.
    fn leave_peers_out(&mut self, device: &Device) -> Option<LeftOut> {
        let own = Predictor {
            algorithm: self.parts.algorithm.as_ref(),
            pool: self.pool.as_ref(),
        };
        if let Some(regression) = &mut self.parts.regression {
            let before = regression.leave_peers_out(&own, &self.data.validation, device);
            return Some(LeftOut::Regression(before));
        }
        if let Some((_, statistics)) = &mut self.parts.statistics {
            let before = statistics.leave_peers_out(device);
            return Some(LeftOut::Statistics(Box::new(before)));
        }
        if let Some(noised) = &mut self.parts.noised {
            return Some(LeftOut::Noised(noised.leave_peers_out(device)));
        }
        let agreement = self.parts.agreement.as_mut()?;
        Some(LeftOut::Agreement(agreement.leave_peers_out(device)))
    }
}

impl Parts {
    /// Tells whether something of peers is in what is served.
    fn serves_peers(&self) -> bool {
        if let Some(regression) = &self.regression {
            return regression.serves_peers();
        }
        if let Some((_, statistics)) = &self.statistics {
            return statistics.serves_peers();
        }
        if let Some(noised) = &self.noised {
            return noised.serves_peers();
        }
        self.agreement.as_ref().is_some_and(Agreement::serves_peers)
    }

    /// Serves again what was left out.
    fn put_peers_back(&mut self, left_out: LeftOut, device: &Device) {
        match left_out {
            LeftOut::Statistics(before) => {
                if let Some((_, statistics)) = &mut self.statistics {
                    statistics.put_peers_back(*before);
                }
            }
            LeftOut::Agreement(before) => {
                if let Some(agreement) = &mut self.agreement {
                    agreement.put_peers_back(before, device);
                }
            }
            LeftOut::Regression(before) => {
                if let Some(regression) = &mut self.regression {
                    regression.put_peers_back(before, device);
                }
            }
            LeftOut::Noised(before) => {
                if let Some(noised) = &mut self.noised {
                    noised.put_peers_back(before, device);
                }
            }
        }
    }
}
