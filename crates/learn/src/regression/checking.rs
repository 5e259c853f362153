//! Which federations can add up rows whose number is predicted, and hide them.

use fednode_core::spec::{Scaling, Sums, TableColumn};
use fednode_core::{ConfigError, FederationSpec};

/// Most features: lines are solved for with matrices of their square, some dozens of times.
const MOST_FEATURES: usize = 512;

/// Checks that the rows of a federation can be added up.
///
/// # Errors
/// Names what to change.
pub(crate) fn check(spec: &FederationSpec) -> Result<(), ConfigError> {
    let width: usize = spec.fingerprints.input.iter().product();
    if width <= MOST_FEATURES {
        return Ok(());
    }
    Err(ConfigError(format!(
        "profile `agreement` predicts numbers of {MOST_FEATURES} features at most, and a sample has {width}: choose fewer columns, \
         or another algorithm"
    )))
}

/// Checks that the rows of a federation can be hidden, if they are to be.
///
/// # Errors
/// Names the key to change.
pub(crate) fn check_privacy(spec: &FederationSpec) -> Result<(), ConfigError> {
    let is_masked = spec.privacy.sums == Sums::Masked;
    let refuse = |text: &str| Err(ConfigError(format!("`data.target` is a number: {text}")));
    if spec.privacy.epsilon.is_some() && !is_masked {
        return refuse(
            "`privacy.epsilon` takes `privacy.sums=masked`, as in `--privacy masked+dp:4`",
        );
    }
    if is_masked && spec.privacy.group.is_some() {
        return refuse("`privacy.group` is for classes, leave it out");
    }
    let is_plain = |column: &TableColumn| column.scaling == Scaling::Plain;
    if is_masked && (spec.data.columns.is_empty() || spec.data.columns.iter().any(is_plain)) {
        return refuse(
            "`privacy.sums=masked` takes raw tables (`data.columns`), and no column with `scaling = \"plain\"`",
        );
    }
    Ok(())
}
