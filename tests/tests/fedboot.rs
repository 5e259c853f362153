//! What `fedboot` says to whoever runs it, where something is missing or wrong.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Output;

use fednode_e2e::closed::organise;
use fednode_e2e::{Federation, assert_fails, fedboot, run};

/// Runs a command of `fedboot` in a folder.
fn in_folder(folder: &Path, words: &[&str]) -> Output {
    let mut command = fedboot();
    command.current_dir(folder).args(words);
    run(command)
}

#[test]
fn a_spec_that_is_not_whole_binds_no_state_folder() {
    let federation = Federation::new(2, 1, &[]);
    let whole = std::fs::read_to_string(federation.spec()).unwrap();
    let half = &whole[..whole.rfind("[training]").unwrap()];
    let start = ["start", "--listen", "/ip4/127.0.0.1/tcp/0"];
    for (text, what) in [("", "the file is empty"), (half, "the file ends early")] {
        std::fs::write(federation.spec(), text).unwrap();
        let started = in_folder(federation.path(), &start);
        assert_fails(
            &started,
            3,
            &["federation.toml", what, "fedboot join TICKET"],
        );
        assert!(!federation.path().join("fedboot-state").exists());
    }
}

#[test]
fn a_spec_that_this_fedboot_is_no_member_of_binds_no_state_folder() {
    let folder = tempfile::tempdir().unwrap();
    organise(folder.path(), &["--data", "digits"]);
    let spec = folder.path().join("a/federation.toml");
    std::fs::copy(spec, folder.path().join("federation.toml")).unwrap();
    let started = in_folder(
        folder.path(),
        &["start", "--listen", "/ip4/127.0.0.1/tcp/0"],
    );
    assert_fails(
        &started,
        6,
        &["has no certificate", "ask the organiser for a ticket"],
    );
    assert!(!folder.path().join("fedboot-state").exists());
}

#[test]
fn a_folder_without_a_spec_is_said_how_to_get_one() {
    let folder = tempfile::tempdir().unwrap();
    let started = in_folder(folder.path(), &["start"]);
    let words = [
        "cannot read the federation's spec `federation.toml`",
        "fedboot join TICKET --dir DIR",
        "--config DIR/fedboot.toml",
        "fednode init",
    ];
    assert_fails(&started, 3, &words);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_key_that_is_made_is_told_of_and_does_not_stand_in_the_way_of_the_id() {
    let folder = tempfile::tempdir().unwrap();
    let told = |output: &Output| {
        let (out, said) = (&output.stdout, &output.stderr);
        assert!(output.status.success());
        [out, said].map(|text| String::from_utf8_lossy(text).into_owned())
    };
    let [made, said] = told(&in_folder(folder.path(), &["id"]));
    assert!(said.contains("`fedboot-state/key` was made"), "{said}");
    assert_eq!(made.lines().count(), 1, "{made}");
    let again = told(&in_folder(folder.path(), &["id"]));
    assert_eq!(again, [made, String::new()]);
}
