//! Where what is computed once is kept changes nothing but time and memory.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use fednode_core::spec::Preset;
use fednode_core::{FederationSpec, NodeId, ParamSet, PoolOutcome, Round};
use fednode_data::{DataSource, ShardParams, load_shard};
use fednode_learn::{CacheBudget, ComputeDevice, Learner, PoolSettings, algorithm};

const NODES: usize = 4;

fn go_on(_: fednode_core::work::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Trains a node for a round, alone.
fn trained(spec: &FederationSpec, index: usize) -> Learner {
    let params = ShardParams {
        nodes: NODES,
        seed: 1,
        samples_per_node: 100,
        validation_share: 0.2,
    };
    let digits: DataSource = "digits".parse().unwrap();
    let data = Arc::new(
        load_shard(&digits, "dirichlet:0.5", &params, index)
            .unwrap()
            .split,
    );
    let mut learner =
        Learner::new(spec, index as u64, data, &ComputeDevice::cpu(1).unwrap()).unwrap();
    learner.local_update(Round(1), &mut go_on).unwrap();
    learner
}

/// Assembles a pool of all nodes' modules, in memory of so many bytes and perhaps a folder.
fn assemble(nodes: &mut [Learner], memory_bytes: u64, folder: Option<&Path>) -> PoolOutcome {
    let module = |learner: &Learner| learner.module().unwrap().params;
    let others = nodes.iter().enumerate().skip(1);
    let members: Vec<(NodeId, Arc<ParamSet>)> = others
        .map(|(index, learner)| (NodeId::from_bytes([index as u8; 32]), module(learner)))
        .collect();
    nodes[0].keep_in(CacheBudget {
        memory_bytes,
        folder: folder.map(Path::to_owned),
        disk_bytes: 1 << 20,
    });
    let pool = PoolSettings {
        epochs: 6,
        batch_size: 16,
        learning_rates: vec![0.1, 0.5],
        ..PoolSettings::preset(Preset::Fixed)
    };
    nodes[0].assemble_pool(&pool, members, &mut go_on).unwrap()
}

#[test]
fn a_pool_that_spills_to_disk_is_the_same_pool() {
    // Memory in which all of it fits as 16-bit numbers, of the training samples and of the fewer validation samples, and
    // neither as 32-bit ones.
    for (name, enough) in [
        ("fedper", 40_000),
        ("lg-fedavg", 120_000),
        ("fedcp", 40_000),
        ("dbe", 60_000),
    ] {
        let mut spec = FederationSpec {
            algorithm: name.into(),
            ..FederationSpec::default()
        };
        spec.model.name = "mlp".into();
        spec.fingerprints.input = [1, 8, 8];
        (spec.training.learning_rate, spec.training.batch_size) = (0.1, 10);
        algorithm::fill_exchange(&mut spec).unwrap();
        let mut nodes: Vec<Learner> = (0..NODES).map(|index| trained(&spec, index)).collect();
        let folder = tempfile::tempdir().unwrap();
        let (plenty, little) = (1 << 30, 3_000);
        let single = assemble(&mut nodes, plenty, None);
        let half = assemble(&mut nodes, enough, None);
        let spilled = assemble(&mut nodes, little, Some(folder.path()));
        assert_eq!(half, spilled, "{name}");
        assert_eq!((single.unseen, half.unseen), (0, 0), "{name}");
        assert_ne!(single, half, "{name}: they were kept as 32-bit numbers");
        let without = assemble(&mut nodes, little, None);
        assert!(without.unseen > 0, "{name}");
        let nowhere = folder.path().join("nowhere");
        assert_eq!(
            assemble(&mut nodes, little, Some(&nowhere)),
            without,
            "{name}: a folder that is not there"
        );
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{name}");
    }
}
