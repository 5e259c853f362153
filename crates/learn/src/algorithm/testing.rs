//! Algorithms as the tests of several modules need them.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::spec::{ModelSpec, TrainingSpec};

use super::{Algorithm, Row, Setup, TABLE};
use crate::batch::Batch;
use crate::gate::one_hot;
use crate::random::{Draws, Purpose, stream, uniform};

/// Draws inputs `[rows, 64]`.
pub(crate) fn random(rows: usize, seed: u64) -> Tensor<2> {
    let numbers = uniform(&mut stream(Purpose::Noise, [seed, 0, 0]), 1.0, rows * 64);
    Tensor::from_data(TensorData::new(numbers, [rows, 64]), &Device::flex())
}

/// Builds every algorithm that has a module, and moves its parts away from where they start.
pub(crate) fn trained() -> Vec<(&'static str, Box<dyn Algorithm>)> {
    let model = ModelSpec { name: "cnn".into(), input: [1, 8, 8], classes: 3, experts: 2 };
    let (training, device) = (TrainingSpec { learning_rate: 0.05, ..TrainingSpec::default() }, Device::flex());
    let build = |row: &'static Row| {
        let hyper = row.values(&BTreeMap::new()).unwrap();
        let setup = Setup { model: &model, training: &training, hyper: &hyper, seed: 1, device: &device };
        let mut algorithm = (row.build)(&setup).unwrap();
        algorithm.meet(&[2, 1, 1]);
        for round in 1..=3 {
            algorithm.begin_round(Draws::new(1, 0, round));
            let targets = one_hot(&[0, 1, 2, 0], 3, &device);
            algorithm.step(0, Batch { inputs: random(4, round), targets });
            algorithm.end_round();
        }
        (row.name, algorithm)
    };
    TABLE.iter().map(build).filter(|(_, algorithm)| algorithm.modular().is_some()).collect()
}
