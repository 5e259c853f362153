//! The test samples of all nodes, where one data set is divided among them: what a model is worth beyond its own node.

use std::path::Path;

use fednode_core::FederationSpec;
use fednode_data::{DataSource, Samples};
use fednode_runtime::exit::ExitCode;

use crate::data::{self, Divided};
use crate::failure::OrFail;
use crate::model::Model;
use crate::swarm::summary::EveryonesTest;

/// Everyone's test samples.
#[derive(Debug)]
pub(crate) struct Everyone {
    /// All of them, node by node.
    pub(crate) samples: Samples,
    /// For each node how many samples of each class it learned from or held back for validation.
    own: Vec<Vec<usize>>,
}

impl Everyone {
    /// Divides the data as the spec says, and reads the test samples.
    ///
    /// # Errors
    /// Fails if the nodes have data of their own, if the data cannot be read, or if they divide otherwise than the
    /// federation's.
    pub(crate) fn load(
        source: &DataSource,
        spec: &FederationSpec,
        file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        data::refuse_own(spec, "everyone's test")?;
        let divided = Divided::new(source, spec, file)?;
        let Divided {
            opened,
            pool,
            partition,
            ..
        } = &divided;
        data::check_hash(spec, &partition.hash())?;
        let tests: Vec<u32> = partition
            .nodes()
            .iter()
            .flat_map(|node| node.test.iter().copied())
            .collect();
        Ok(Self {
            samples: opened.read(pool, &tests).or_fail(ExitCode::Data)?,
            own: partition
                .nodes()
                .iter()
                .map(|node| divided.count(&node.train))
                .collect(),
        })
    }

    /// Tests the model of a node, whose shard counts from 0.
    ///
    /// # Errors
    /// Fails if the samples do not fit the model, or the device cannot be used.
    pub(crate) fn test(
        &self,
        model: &Model,
        device: &str,
        shard: usize,
    ) -> anyhow::Result<EveryonesTest> {
        let learner = model.learner(&self.samples.subset(&[0]), device)?;
        let evaluation = learner.evaluate_on(&self.samples).or_fail(ExitCode::Data)?;
        Ok(EveryonesTest::new(
            &evaluation.classes,
            self.own.get(shard).map_or(&[], Vec::as_slice),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyones_samples_are_those_of_the_division() {
        let mut spec = FederationSpec {
            nodes: 3,
            ..FederationSpec::default()
        };
        spec.data.partition = "dirichlet:0.5".into();
        let digits = data::source("digits").unwrap();
        let everyone = Everyone::load(&digits, &spec, None).unwrap();
        let all = data::everything("digits", &[]).unwrap();
        let own: usize = everyone.own.iter().flatten().sum();
        assert_eq!(
            own + everyone.samples.len(),
            all.len(),
            "every digit is in one of them"
        );
        spec.fingerprints.partition = Some("0".into());
        assert!(
            Everyone::load(&digits, &spec, None)
                .unwrap_err()
                .to_string()
                .contains("the federation's is 0")
        );
        spec.data.partition = "own".into();
        assert!(
            Everyone::load(&digits, &spec, None)
                .unwrap_err()
                .to_string()
                .contains("partition `own`")
        );
    }
}
