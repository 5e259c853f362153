//! The test samples of all nodes, where one data set is divided among them: what a model is worth beyond its own node.

use std::path::Path;

use fednode_core::FederationSpec;
use fednode_data::{DataSource, Samples};
use fednode_learn::ClassCount;
use fednode_runtime::exit::ExitCode;

use crate::data;
use crate::failure::{OrFail, fail};
use crate::model::Model;
use serde::{Deserialize, Serialize};

/// A node's result on the test samples of all nodes, whatever classes it knows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EveryonesTest {
    /// Accuracy on all of them: the global test of PFL-MoE.
    pub accuracy: f64,
    /// Accuracy by class, each class weighted by its share of the node's own training samples: PFL-MoE's local test, with
    /// less noise than the node's few test samples have.
    pub accuracy_on_own_classes: f64,
}

impl EveryonesTest {
    /// Reckons both of what was recognised of each class, and of how many samples of each the node has to learn from,
    /// as PFL-MoE does.
    pub fn new(classes: &[ClassCount], own: &[usize]) -> Self {
        let total: u32 = classes.iter().map(|class| class.total).sum();
        let correct: u32 = classes.iter().map(|class| class.correct).sum();
        let share = |count: usize| count as f64 / own.iter().sum::<usize>().max(1) as f64;
        let accuracy =
            |class: &ClassCount| f64::from(class.correct) / f64::from(class.total.max(1));
        Self {
            accuracy: f64::from(correct) / f64::from(total.max(1)),
            accuracy_on_own_classes: classes
                .iter()
                .zip(own)
                .map(|(class, own)| share(*own) * accuracy(class))
                .sum(),
        }
    }
}

/// Everyone's test samples.
#[derive(Debug)]
pub struct Everyone {
    /// All of them, node by node.
    pub samples: Samples,
    /// For each node how many samples of each class it learned from or held back for validation.
    own: Vec<Vec<usize>>,
}

impl Everyone {
    /// Divides the data as the spec says, and reads the test samples.
    ///
    /// # Errors
    /// Fails if the nodes have data of their own, if the data cannot be read, or if they divide otherwise than the
    /// federation's.
    pub fn load(
        source: &DataSource,
        spec: &FederationSpec,
        file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        Self::check(spec)?;
        let divided = data::divided(source, spec, file)?;
        data::check_hash(spec, &divided.partition().hash())?;
        let own = (0..divided.partition().nodes().len()).map(|node| {
            let [train, _] = divided.class_counts(node);
            train
        });
        Ok(Self {
            samples: divided.tests().or_fail(ExitCode::Data)?,
            own: own.collect(),
        })
    }

    /// Refuses federations that have no such test: nodes with data of their own, and numbers.
    ///
    /// # Errors
    /// Says why.
    pub fn check(spec: &FederationSpec) -> anyhow::Result<()> {
        data::refuse_own(spec, "judge each node by its own test samples")?;
        Self::refuse_a_number(spec)
    }

    /// Refuses federations that predict a number.
    ///
    /// # Errors
    /// Says why.
    pub fn refuse_a_number(spec: &FederationSpec) -> anyhow::Result<()> {
        if let Some(target) = &spec.data.target {
            let text = format!(
                "everyone's test weighs classes, and `{}` is a number: leave it out, the summary's R² is over all nodes",
                target.name
            );
            return Err(fail(ExitCode::Configuration, text));
        }
        Ok(())
    }

    /// Tests the model of a node, whose shard counts from 0.
    ///
    /// # Errors
    /// Fails if the samples do not fit the model, or the device cannot be used.
    pub fn test(&self, model: &Model, device: &str, shard: usize) -> anyhow::Result<EveryonesTest> {
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

    /// By hand: accuracies 0.9, 0.8 and 0.5 by class, training shares 0.5, 0.3 and 0.2 give 0.79.
    #[test]
    fn the_local_test_weighs_classes_as_the_node_has_them() {
        let class = |correct| ClassCount { correct, total: 10 };
        let test = EveryonesTest::new(&[class(9), class(8), class(5)], &[5, 3, 2]);
        assert!((test.accuracy_on_own_classes - 0.79).abs() < 1e-12);
        assert!((test.accuracy - 22.0 / 30.0).abs() < 1e-12);
    }

    /// Node 1 of two clusters calls classes otherwise: so do its test samples, and so are its classes counted.
    #[test]
    fn everyones_samples_are_as_each_node_has_them() {
        let mut spec = FederationSpec {
            nodes: 3,
            ..FederationSpec::default()
        };
        spec.data.partition = "dirichlet:0.5+renamed:2:3+rotated:4:2".into();
        let digits = data::source("digits").unwrap();
        let everyone = Everyone::load(&digits, &spec, None).unwrap();
        let mut from = 0;
        for node in 0..3 {
            let config = crate::config::Config {
                shard: Some(format!("{}/3", node + 1).parse().unwrap()),
                ..crate::config::Config::default()
            };
            let mine = data::Mine::load(&config, &spec).unwrap();
            let (learned, validated) = (&mine.split.train, &mine.split.validation);
            let counts = learned.class_counts().into_iter();
            let counts = counts.zip(validated.class_counts());
            let own: Vec<usize> = counts.map(|(train, kept)| train + kept).collect();
            assert_eq!(everyone.own[node], own);
            let test = &mine.split.test;
            let range: Vec<u32> = (from..from + test.len() as u32).collect();
            assert_eq!(everyone.samples.subset(&range), *test);
            from += test.len() as u32;
        }
        assert_eq!(from as usize, everyone.samples.len());
    }

    #[test]
    fn everyones_samples_are_those_of_the_division() {
        let mut spec = FederationSpec {
            nodes: 3,
            ..FederationSpec::default()
        };
        spec.data.partition = "dirichlet:0.5".into();
        let digits = data::source("digits").unwrap();
        let everyone = Everyone::load(&digits, &spec, None).unwrap();
        let all = data::everything(digits.clone(), &FederationSpec::default()).unwrap();
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
