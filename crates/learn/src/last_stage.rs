//! What comes after the training, checked before it: whether an algorithm has what the statistics expert and the pool
//! need, so that nobody finds out in the last round.

use burn::tensor::{Device, Tensor};
use fednode_core::spec::StatisticsFeatures;
use fednode_core::{ConfigError, FederationSpec};

use fednode_mix::rule::{self, Takes};

use crate::agreement::Agreement;
use crate::algorithm::{self, Algorithm, Stage};
use crate::class_statistics::Features;
use crate::error::LearnError;
use crate::maps::RandomMaps;

/// Checks that the algorithm of a spec has what its last stages need.
///
/// # Errors
/// Says what it lacks, besides the causes of [`crate::Learner::new`] that lie in the spec.
pub fn check(spec: &FederationSpec) -> Result<(), LearnError> {
    if !spec.pool.is_enabled() && !spec.statistics.enabled {
        return Ok(());
    }
    let device = Device::flex();
    let algorithm = algorithm::build(spec, &device)?;
    if spec.pool.is_enabled() && algorithm.modular().is_none() {
        let name = &spec.algorithm;
        let text = format!(
            "algorithm `{name}` has no private module that could be pooled: leave out `--pool`"
        );
        return Err(ConfigError(text).into());
    }
    if spec.statistics.enabled {
        check_dimensions(
            statistics_features(algorithm.as_ref(), spec, &device)?.1,
            spec,
        )
    } else {
        Ok(())
    }
}

/// Checks that features of a width can be projected as the spec says.
pub(crate) fn check_dimensions(width: usize, spec: &FederationSpec) -> Result<(), LearnError> {
    let dimensions = spec.statistics.dimensions;
    if dimensions < width {
        return Ok(());
    }
    let text = format!(
        "`statistics.dimensions` is {dimensions}, and the features are {width} numbers: give less, or 0"
    );
    Err(ConfigError(text).into())
}

/// Tells whether the nodes of a federation could have the statistics expert.
///
/// # Errors
/// As [`crate::Learner::new`], if the cause lies in the spec.
pub fn suits_statistics(spec: &FederationSpec) -> Result<bool, LearnError> {
    let device = Device::flex();
    let algorithm = algorithm::build(spec, &device)?;
    Ok(statistics_features(algorithm.as_ref(), spec, &device).is_ok())
}

/// Returns the fewest training samples of which every stage after the last round gets one.
///
/// # Errors
/// As [`crate::Learner::new`], if the cause lies in the spec.
pub fn fewest_samples(spec: &FederationSpec) -> Result<usize, LearnError> {
    let algorithm = algorithm::build(spec, &Device::flex())?;
    let passes = (0..)
        .zip(algorithm.fine_tuning_passes())
        .filter(|(_, epochs)| *epochs > 0);
    let stages: Vec<_> = passes
        .map(|(pass, _)| algorithm.selection(Stage::FineTuning(pass)))
        .collect();
    let suffices = |samples: &usize| {
        stages
            .iter()
            .all(|stage| !stage.fraction.of(*samples).is_empty())
    };
    // Of twenty, every twentieth is one.
    Ok((1..20).find(suffices).unwrap_or(20))
}

/// Returns what statistics are made of, and how many numbers that are.
pub(crate) fn statistics_features(
    algorithm: &dyn Algorithm,
    spec: &FederationSpec,
    device: &Device,
) -> Result<(Features, usize), LearnError> {
    let refuse = |why: &str| {
        let text = format!(
            "`statistics.enabled` is not possible with algorithm `{}`: {why}",
            spec.algorithm
        );
        Err(ConfigError(text).into())
    };
    if Agreement::is_wanted(spec) {
        return refuse("profile `agreement` has a statistics expert already");
    }
    let source = match spec.statistics.features {
        StatisticsFeatures::Random => {
            Features::Random(RandomMaps::new(&spec.architecture(), spec.seed, device)?)
        }
        StatisticsFeatures::Extractor => Features::Extractor,
    };
    let one = Tensor::zeros([1, spec.fingerprints.input.iter().product()], device);
    let Some(features) = source.of(algorithm, one) else {
        return refuse(
            "its nodes have no extractor in common (`statistics.features=random` needs none)",
        );
    };
    if algorithm
        .fine_tuning_passes()
        .iter()
        .any(|epochs| *epochs > 0)
    {
        return refuse(
            "nodes train on after the last round, when the mixture is chosen; set its epochs after the last round to 0 \
                       (`fine_tuning_epochs`, or `personal_epochs` and `gate_epochs`)",
        );
    }
    let rule = spec.exchange.averaging.as_ref();
    let row = rule.and_then(|averaging| rule::find(averaging.rule.name()));
    match row.map(|row| row.takes) {
        // Whichever rule training has: sums have their own.
        Some(Takes::AnyParts) => Ok((source, features.dims()[1])),
        Some(Takes::PartsOfItsAlgorithm) => {
            refuse("its parts are combined by a rule of its own, which sums are no parts for")
        }
        None => refuse("nothing of it is averaged, and sums are added up as means are"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm;

    fn spec(algorithm: &str) -> FederationSpec {
        let mut spec = FederationSpec {
            algorithm: algorithm.into(),
            ..FederationSpec::default()
        };
        spec.fingerprints.input = [1, 8, 8];
        spec.pool.preset = Some(fednode_core::spec::Preset::Fixed);
        algorithm::fill_exchange(&mut spec).unwrap();
        spec
    }

    /// Checks that a page of the book names these algorithms.
    fn assert_names(page: &str, names: &[&str]) {
        let path = format!(
            "{}/../../docs/explanation/{page}",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = std::fs::read_to_string(path).unwrap();
        let unnamed = |name: &&&str| !text.contains(&format!("`{name}`"));
        let unnamed: Vec<&&str> = names.iter().filter(unnamed).collect();
        assert!(unnamed.is_empty(), "{page}: {unnamed:?}");
    }

    #[test]
    fn algorithm_without_private_part_cannot_pool() {
        let poolable: Vec<_> = algorithm::TABLE
            .iter()
            .filter(|row| check(&spec(row.name)).is_ok())
            .collect();
        let names: Vec<_> = poolable.iter().map(|row| row.name).collect();
        let expected = [
            "fedmoe-da",
            "fedper",
            "lg-fedavg",
            "fedrep",
            "fedrod",
            "fedbabu",
            "gpfl",
            "fedcp",
            "dbe",
            "fedgh",
            "fedpac",
        ];
        assert_eq!(names, expected);
        assert_names("pool.md", &names);
        let error = check(&spec("fedavg")).unwrap_err().to_string();
        assert_eq!(
            error,
            "algorithm `fedavg` has no private module that could be pooled: leave out `--pool`"
        );
    }

    #[test]
    fn a_projection_has_fewer_numbers_than_it_is_made_from() {
        let with = |dimensions| {
            let mut spec = spec("fedper");
            spec.statistics = fednode_core::spec::StatisticsSpec {
                enabled: true,
                dimensions,
                ..spec.statistics
            };
            check(&spec)
        };
        assert!(with(0).is_ok() && with(511).is_ok());
        let error = with(512).unwrap_err().to_string();
        assert_eq!(
            error,
            "`statistics.dimensions` is 512, and the features are 512 numbers: give less, or 0"
        );
    }

    #[test]
    fn statistics_need_a_common_extractor_that_stays_as_it_is() {
        let suited: Vec<_> = algorithm::TABLE
            .iter()
            .filter(|row| suits_statistics(&spec(row.name)).unwrap())
            .collect();
        let names: Vec<_> = suited.iter().map(|row| row.name).collect();
        assert_eq!(
            names,
            [
                "fedmoe-da",
                "fedavg",
                "fedper",
                "fedrep",
                "fedrod",
                "gpfl",
                "fedcp",
                "dbe",
                "fedprox",
                "scaffold",
                "moon",
                "fed-syn-moe",
                "pfedmoe",
                "fml",
                "fedkd",
                "fedapen",
                "fedpac",
                "fedbn",
                "ditto"
            ]
        );
        assert_names("statistics-expert.md", &names);
    }

    #[test]
    fn random_features_need_no_extractor_in_common() {
        let with_random = |name: &str| {
            let mut spec = spec(name);
            spec.statistics.features = StatisticsFeatures::Random;
            spec
        };
        let gained = |name: &&str| {
            suits_statistics(&with_random(name)).unwrap() && !suits_statistics(&spec(name)).unwrap()
        };
        let names: Vec<_> = algorithm::TABLE
            .iter()
            .map(|row| row.name)
            .filter(gained)
            .collect();
        assert_eq!(names, ["lg-fedavg", "fedproto", "fd", "fedem"]);
        assert_names("statistics-expert.md", &names);
        let mut spec = with_random("local");
        (spec.statistics.enabled, spec.pool.preset) = (true, None);
        let error = check(&spec).unwrap_err().to_string();
        assert!(error.contains("nothing of it is averaged"), "{error}");
    }

    #[test]
    fn a_gate_that_learns_from_a_quarter_needs_four_samples() {
        for (algorithm, fewest) in [
            ("pfl-mf", 4),
            ("pfl-mfe", 4),
            ("pfl-fb", 1),
            ("fedbabu", 1),
            ("fedavg", 1),
        ] {
            assert_eq!(
                fewest_samples(&spec(algorithm)).unwrap(),
                fewest,
                "{algorithm}"
            );
        }
    }
}
