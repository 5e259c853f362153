//! FedBN: Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021,
//! Algorithm 1.
//!
//! FedAvg, but every normalisation is the node's own: its scale, its shift and, of batch normalisation, the running
//! statistics are neither sent nor received. All layers learn together. A model without normalisation makes it FedAvg.
//!
//! The paper averages uniformly over nodes of equally many samples; here nodes count by their samples, as in FedAvg, which
//! is the same there.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::hyper::AGGREGATION;
use super::part::{Part, Role};
use super::{
    Algorithm, Extractor, Gradients, Optimizers, Output, Row, Setup, Stage, Step, StepContext,
    averaged,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{self, Cut, Net, ParameterKind};
use crate::train::misfit;
use crate::weights::Weights;

pub(super) const ROW: Row = Row {
    name: "fedbn",
    summary: "FedAvg whose nodes keep their normalisations, with scale, shift and running statistics",
    reference: "Li et al., ICLR 2021, arXiv 2102.07623",
    averages: "the whole model but its normalisations",
    peer_to_peer: "nothing",
    keeps_private: "scale, shift and running statistics of every normalisation",
    trains_ahead: true,
    optimizers: Optimizers::Any,
    hyper: &[AGGREGATION],
    profiles: &[],
    exchange: averaged,
    build: |setup| FedBn::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const COMMON: usize = 0;
const OWN: usize = 1;

struct FedBn {
    /// The arrays of the model in two parts: what is averaged, and the normalisations.
    parts: [Part; 2],
    /// The model that has the arrays of both.
    net: Net,
    /// Where each parameter of the model is: its part, and its place there.
    places: Vec<(usize, usize)>,
}

impl FedBn {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let net = model::build(setup.model)?;
        let (mut arrays, mut places) = ([Vec::new(), Vec::new()], Vec::new());
        for parameter in net.parameters() {
            let part = match parameter.kind {
                ParameterKind::Weight => COMMON,
                ParameterKind::Normalization | ParameterKind::Statistic => OWN,
            };
            places.push((part, arrays[part].len()));
            arrays[part].push(parameter.clone());
        }
        let [common, own] = arrays.map(Net::of_parameters);
        let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
        let parts = [part(Role::Shared, common), part(Role::Private, own)];
        Ok(Self { parts, net, places })
    }

    /// Puts the weights of the model together, in its own order.
    fn whole(&self) -> Weights {
        let tensor = |(part, at): &(usize, usize)| self.parts[*part].weights.tensor(*at);
        Weights::new(self.places.iter().map(tensor).collect())
    }

    /// Divides what belongs to each parameter of the model among the two parts.
    fn divide<T>(&self, whole: Vec<T>) -> Vec<Vec<T>> {
        let mut divided = vec![Vec::new(), Vec::new()];
        for (one, (part, _)) in whole.into_iter().zip(&self.places) {
            divided[*part].push(one);
        }
        divided
    }
}

impl Algorithm for FedBn {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record_weights(&self.whole());
        let logits = self.net.forward(&tape, batch.inputs);
        let mut found = ctx.differentiate(vec![tape], misfit(logits, batch.targets));
        let whole: Gradients = std::mem::take(&mut found.gradients);
        found.gradients = self.divide(whole.into_iter().flatten().collect());
        let renewed = std::mem::take(&mut found.statistics);
        let place = |(at, statistic): (usize, Tensor<1>)| (self.places[at].1, statistic);
        let own = renewed.into_iter().flatten().map(place).collect();
        found.statistics = vec![Vec::new(), own];
        Step {
            loss: ctx.apply(&mut self.parts, found),
            routed: Vec::new(),
        }
    }

    /// Nodes have an extractor in common only where nothing is normalised.
    fn extractor(&self) -> Option<Extractor<'_>> {
        if !self.parts[OWN].net.parameters().is_empty() {
            return None;
        }
        Some(Extractor::front(self.net.split(Cut::Head).0, &self.whole()))
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        Output {
            logits: self.net.forward(&self.whole(), inputs),
            chosen: None,
            n_experts: 0,
        }
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        self.net.emit(&self.whole(), graph, inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{Driven, batch, build, numbers};

    /// The `mlp` has no normalisation.
    #[test]
    fn is_fedavg_where_nothing_is_normalised() {
        let (mut own, mut average) = (build("fedbn", &[]), build("fedavg", &[]));
        assert_eq!(own.train(0, batch()), average.train(0, batch()));
        assert_eq!(numbers(own.as_ref(), ""), numbers(average.as_ref(), ""));
        assert!(own.parts()[OWN].params().is_empty());
    }
}
