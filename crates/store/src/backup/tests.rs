//! Backups of real stores, damaged in every way that a disk or a person can.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fednode_core::{BlobRef, FederationId, Round};

use super::*;
use crate::{Checkpoint, Options, Store};

fn federation() -> FederationId {
    FederationId::from_bytes([1; 32])
}

fn open(state: &Path) -> Store {
    let options = Options {
        reserve_bytes: 1000,
        ..Options::default()
    };
    Store::open(state, federation(), &options).unwrap()
}

/// Makes a store with something in each of its parts, and returns it as it runs.
fn running(state: &Path) -> Store {
    let store = open(state);
    store.blobs.put(b"an expert").unwrap();
    store.ledger.start_round(Round(7), Timestamp(5)).unwrap();
    let checkpoint = Checkpoint::new("p", &7).unwrap();
    let checkpoint = checkpoint.with_section("gate", vec![1, 2, 3]);
    store.checkpoints.save("node", &checkpoint).unwrap();
    fs::write(state.join("key"), b"secret").unwrap();
    fs::write(state.join("control.json"), b"{}").unwrap();
    store
}

fn about_it() -> About {
    About::new("0.1.0".into(), Timestamp(9), "n".into(), "state".into())
}

fn back_up(home: &Path) -> PathBuf {
    let to = home.join("backup.tar");
    let items = items_of_state(&home.join("state"), &["control.json"]).unwrap();
    write(&to, &about_it(), &items).unwrap();
    to
}

fn places(home: &Path) -> Vec<Place> {
    vec![Place {
        part: "state".into(),
        path: home.join("again/state"),
    }]
}

#[test]
fn backup_of_a_running_node_opens_as_its_state() {
    let home = tempfile::tempdir().unwrap();
    let store = running(&home.path().join("state"));
    let to = back_up(home.path());
    let mode = fs::metadata(&to).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(about(&to).unwrap(), about_it());
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2, "no draft");
    let started = store.folder.incarnation();
    let blob = BlobRef::of(b"an expert").id;
    drop(store);
    let places = places(home.path());
    let manifest = restore(&to, &places).unwrap();
    let names: Vec<&str> = manifest.files.keys().map(String::as_str).collect();
    assert!(names.contains(&"state/key"), "{names:?}");
    let made_again = ["control", "lock", "reserve", "-wal", "-shm"];
    assert!(
        !names
            .iter()
            .any(|name| made_again.iter().any(|part| name.contains(part))),
        "{names:?}"
    );
    let state = &places[0].path;
    let mode = fs::metadata(state.join("key"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = open(state);
    assert!(again.warnings.is_empty(), "{:?}", again.warnings);
    assert!(again.folder.incarnation() > started);
    assert_eq!(again.blobs.get(&blob).unwrap(), b"an expert");
    assert_eq!(again.ledger.last_round().unwrap().unwrap().round, Round(7));
    let loaded = again.checkpoints.load("node", "p").unwrap().unwrap();
    assert_eq!(loaded.checkpoint.section("gate"), Some(&[1, 2, 3][..]));
}

#[test]
fn a_damaged_ledger_costs_the_backup_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("state");
    drop(running(&state));
    fs::write(state.join("ledger.sqlite"), b"spoilt".repeat(1000)).unwrap();
    let manifest = restore(&back_up(home.path()), &places(home.path())).unwrap();
    assert!(!manifest.files.contains_key("state/ledger.sqlite"));
    assert!(manifest.files.contains_key("state/key"));
    assert_eq!(
        fs::read_dir(home.path()).unwrap().count(),
        3,
        "no copy is left"
    );
}

#[test]
fn neither_a_backup_nor_a_place_is_overwritten() {
    let home = tempfile::tempdir().unwrap();
    drop(running(&home.path().join("state")));
    let to = back_up(home.path());
    let twice = write(&to, &about_it(), &[]).unwrap_err();
    assert!(matches!(twice, BackupError::Exists(path) if path == to));
    let places = places(home.path());
    fs::create_dir_all(&places[0].path).unwrap();
    // As on a disk of its own.
    fs::create_dir(places[0].path.join("lost+found")).unwrap();
    restore(&to, &places).expect("an empty folder is no obstacle");
    assert!(places[0].path.join("key").is_file());
    assert!(!places[0].path.join(".restoring").exists());
    let twice = restore(&to, &places).unwrap_err();
    assert!(matches!(twice, BackupError::Exists(path) if path == places[0].path));
}

/// A name that is a folder already cannot become a file. What was put in its place before goes away again.
#[test]
fn all_parts_are_put_in_their_places_or_none() {
    let home = tempfile::tempdir().unwrap();
    drop(running(&home.path().join("state")));
    let mut items = items_of_state(&home.path().join("state"), &[]).unwrap();
    items.push(Item {
        name: "node.toml".into(),
        path: home.path().join("state/key"),
    });
    let to = home.path().join("backup.tar");
    write(&to, &about_it(), &items).unwrap();
    let mut places = places(home.path());
    places.push(Place {
        part: "node.toml".into(),
        path: home.path().join("again/node.toml"),
    });
    fs::create_dir_all(&places[1].path).unwrap();
    let error = restore(&to, &places).unwrap_err();
    assert!(matches!(error, BackupError::Exists(path) if path == places[1].path));
    assert!(!places[0].path.exists());
}

#[test]
fn cut_or_changed_backup_restores_nothing() {
    let home = tempfile::tempdir().unwrap();
    drop(running(&home.path().join("state")));
    let to = back_up(home.path());
    let whole = fs::read(&to).unwrap();
    let places = places(home.path());
    let mut changed = whole.clone();
    let at = changed.windows(6).position(|it| it == b"secret").unwrap();
    changed[at] ^= 1;
    // Cut between two entries, within one, and right before the manifest.
    let manifest = whole.windows(13).rposition(|it| it == b"manifest.json");
    let cuts = [1024, 5000, manifest.unwrap()].map(|n| whole[..n].to_vec());
    for bytes in cuts.into_iter().chain([changed]) {
        fs::write(&to, bytes).unwrap();
        let error = restore(&to, &places).unwrap_err();
        assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
        let left = fs::read_dir(home.path().join("again")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{error}");
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let home = tempfile::tempdir().unwrap();
    for (name, kind) in [
        ("../key", tar::EntryType::Regular),
        ("state//tmp/key", tar::EntryType::Regular),
        ("state/./key", tar::EntryType::Regular),
        ("/key", tar::EntryType::Regular),
        ("state/link", tar::EntryType::Symlink),
    ] {
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_cksum();
        let mut archive = tar::Builder::new(Vec::new());
        archive.append(&header, &[][..]).unwrap();
        let from = home.path().join("hostile.tar");
        fs::write(&from, archive.into_inner().unwrap()).unwrap();
        let error = restore(&from, &places(home.path())).unwrap_err();
        assert!(error.to_string().contains("no plain file"), "{error}");
        assert!(!home.path().join("key").exists());
    }
}

#[test]
fn what_is_no_backup_is_said() {
    let home = tempfile::tempdir().unwrap();
    let from = home.path().join("other");
    for content in [&b""[..], b"PK\x03\x04", &[7; 4096]] {
        fs::write(&from, content).unwrap();
        let error = about(&from).unwrap_err();
        assert!(matches!(error, BackupError::Foreign { .. }), "{error}");
    }
    let newer = About {
        version: 2,
        ..about_it()
    };
    let to = home.path().join("newer.tar");
    write(&to, &newer, &[]).unwrap();
    assert!(matches!(about(&to), Err(BackupError::Version(2))));
}
