//! What is wrong with a node's state folder and its keys, as far as that shows without a start.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use fednode_net::{Identity, NetworkKey, SecretFileError};
use fednode_runtime::exit::ExitCode;

use super::{Finding, Verdict};
use fednode_cli::config::Config;
use fednode_cli::failure::one_line;
use fednode_cli::state::refuse_closed;

/// The name of a key in its folder.
const KEY: &str = "key";

/// Tells whether a node can have its state in this folder.
pub(super) fn look(config: &Config) -> Finding {
    let state = config.state();
    let shown = state.display();
    let failed = |detail: String| Finding::failed("state", ExitCode::State, detail);
    if let Err(error) = refuse_closed(state) {
        return failed(one_line(&error));
    }
    let detail = match fs::metadata(state) {
        Ok(found) if found.is_dir() => format!("`{shown}` is there"),
        Ok(_) => return failed(format!("`{shown}` is no folder: name another with --state")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            format!("`{shown}` is not there yet: `fednode start` makes it")
        }
        Err(error) => {
            return failed(format!(
                "cannot use `{shown}`: {error}; name another with --state"
            ));
        }
    };
    Finding::new(Verdict::Ok, "state", detail)
}

/// Tells of each key that is there whether it can be used, and is nobody else's to read.
pub(super) fn keys(config: &Config) -> Vec<Finding> {
    let own = config.state().join(KEY);
    let organiser = config.network.organiser.as_ref();
    let organiser = organiser.map(|folder| folder.join(KEY));
    let identities = [Some(own), organiser].into_iter().flatten();
    let identities = identities.filter(|path| path.exists()).map(|path| {
        let read = Identity::load(&path).map(drop);
        finding(&path, ExitCode::State, read)
    });
    let network = config.network.key.as_ref().map(|path| {
        let read = NetworkKey::load(path).map(drop);
        finding(path, ExitCode::Network, read)
    });
    identities.chain(network).collect()
}

fn finding(path: &Path, code: ExitCode, read: Result<(), SecretFileError>) -> Finding {
    match read {
        Ok(()) => {
            let detail = format!("`{}` is read by its owner alone", path.display());
            Finding::new(Verdict::Ok, "key", detail)
        }
        Err(error) => Finding::failed("key", code, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn of(state: &Path) -> Config {
        let mut config = Config::default();
        config.storage.state = state.to_owned();
        config
    }

    #[test]
    fn what_is_no_folder_is_found_and_one_that_is_not_there_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for wrong in [file.clone(), file.join("state")] {
            let found = look(&of(&wrong));
            assert_eq!(found.verdict, Verdict::Fail, "{found:?}");
            assert!(found.detail.contains("name another with --state"));
        }
        let missing = look(&of(&folder.path().join("missing")));
        assert_eq!(missing.verdict, Verdict::Ok);
        assert!(missing.detail.contains("is not there yet"), "{missing:?}");
        assert_eq!(look(&of(folder.path())).verdict, Verdict::Ok);
    }

    #[test]
    fn a_key_that_others_may_read_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let config = of(folder.path());
        assert!(keys(&config).is_empty());
        let key = folder.path().join(KEY);
        Identity::create(&key).unwrap();
        assert_eq!(keys(&config)[0].verdict, Verdict::Ok);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o666)).unwrap();
        let found = &keys(&config)[0];
        let advice = format!("run `chmod 600 {}`", key.display());
        assert_eq!(found.verdict, Verdict::Fail);
        assert!(found.detail.contains(&advice), "{found:?}");
    }
}
