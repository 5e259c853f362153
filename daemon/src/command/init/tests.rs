//! Folders that are prepared once, and once more.

use super::*;
use clap::Parser;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(dir: &Path) -> Args {
    Args {
        dir: dir.to_owned(),
        federation: federation::Args::default(),
        data: None,
        shard: None,
        peers: vec![],
        open: false,
        name: None,
        network_key: true,
        again: false,
    }
}

#[test]
fn each_run_has_an_id_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let ids: Vec<Option<String>> = ["a", "b", "b"]
        .iter()
        .enumerate()
        .map(|(time, name)| {
            let dir = folder.path().join(name);
            let args = Args {
                again: time == 2,
                network_key: false,
                ..args(&dir)
            };
            run(&args, Form::Json).unwrap();
            let text = fs::read_to_string(dir.join(SPEC_FILE)).unwrap();
            let spec = FederationSpec::from_toml(&text).unwrap();
            spec.fingerprints.run
        })
        .collect();
    assert!(ids.iter().all(Option::is_some), "{ids:?}");
    assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
}

#[test]
fn prepares_once_and_keeps_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("node");
    run(&args(&dir), Form::Json).unwrap();
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let spec = FederationSpec::from_toml(&read(SPEC_FILE)).unwrap();
    assert!(spec.fingerprints.partition.is_some());
    assert!(
        read(NODE_FILE).contains("shard = \"1/5\""),
        "{}",
        read(NODE_FILE)
    );
    for secret in ["state/key", NETWORK_KEY, "organiser/key"] {
        assert_eq!(
            fs::metadata(dir.join(secret)).unwrap().permissions().mode() & 0o777,
            0o600,
            "{secret}"
        );
    }
    let key = fs::read(dir.join("state/key")).unwrap();
    let error = run(&args(&dir), Form::Json).unwrap_err().to_string();
    assert!(
        error.contains("node.toml` is kept as it is, so nothing would set `network_key`"),
        "{error}"
    );
    let mut more = args(&dir);
    more.federation.rounds = Some(7);
    let error = run(&more, Form::Json).unwrap_err().to_string();
    assert!(
        error.contains("federation.toml` is kept as it is, so nothing would set `rounds`"),
        "{error}"
    );
    run(
        &Args {
            network_key: false,
            ..args(&dir)
        },
        Form::Json,
    )
    .unwrap();
    assert_eq!(fs::read(dir.join("state/key")).unwrap(), key);
}

#[test]
fn a_folder_is_not_made_before_nothing_is_wrong_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("wards/ward");
    let without_rows = Args {
        data: Some("csv:/no/such/table.csv,label=class".into()),
        ..args(&dir)
    };
    let nothing_to_repeat = Args {
        again: true,
        ..args(&dir)
    };
    let mut without_rounds = args(&dir);
    without_rounds.federation.rounds = Some(0);
    for wrong in [without_rows, nothing_to_repeat, without_rounds] {
        run(&wrong, Form::Json).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{wrong:?}");
    }
    run(&args(&dir), Form::Json).unwrap();
    assert!(dir.join(SPEC_FILE).exists());
}

#[test]
fn a_fedboot_is_no_node_that_begins_another_run() {
    let folder = tempfile::tempdir().unwrap();
    let hub = folder.path().join("hub");
    fs::create_dir(&hub).unwrap();
    let spec = FederationSpec::default().to_toml();
    fs::write(hub.join(SPEC_FILE), spec).unwrap();
    fs::write(hub.join("fedboot.toml"), "").unwrap();
    let again = Args {
        again: true,
        network_key: false,
        ..args(&hub)
    };
    let error = run(&again, Form::Json).unwrap_err().to_string();
    for words in ["hub` is the folder of a fedboot", "`key` and `members`"] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(fs::read_dir(&hub).unwrap().count(), 2, "nothing was made");
}

#[test]
fn the_folder_is_not_taken_for_an_address_and_addresses_are_looked_at() {
    let one = "/ip4/192.0.2.7/tcp/4001";
    let two = format!("{one},/dns4/hub.example/tcp/4001");
    for (peers, count) in [(one, 1), (two.as_str(), 2)] {
        let args = Cli::parse_from(["init", "--peers", peers, "ward"]).args;
        assert_eq!(args.dir, Path::new("ward"));
        assert_eq!(args.peers.len(), count);
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("ward");
    let without_form = Args {
        peers: vec![one.into(), "192.0.2.7:4001".into()],
        ..args(&dir)
    };
    let error = run(&without_form, Form::Json).unwrap_err();
    assert_eq!(fednode_cli::failure::code(&error), ExitCode::Network);
    let line = error.to_string();
    assert!(line.contains("`192.0.2.7:4001` is no address"), "{line}");
    assert!(!dir.exists());
}
