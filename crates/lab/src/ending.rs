//! What a federation on one machine must be to come to a result.

use fednode_cli::failure::fail;
use fednode_core::FederationSpec;
use fednode_runtime::exit::ExitCode;

/// Refuses a federation that never comes to an end.
///
/// # Errors
/// Names the key.
pub(crate) fn check(spec: &FederationSpec) -> anyhow::Result<()> {
    if !spec.endless {
        return Ok(());
    }
    let text = "`endless` is for nodes that live on, and an experiment has an end: leave it out here, and make a federation with it \
                by `fednode init`";
    Err(fail(ExitCode::Configuration, text))
}
