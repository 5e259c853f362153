//! Checkpoints under power cuts, liars of disks and full disks.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::*;

const PARTITION: &str = "p1";

fn federation(byte: u8) -> FederationId {
    FederationId::from_bytes([byte; 32])
}

fn lock(folder: &Path) -> Option<Lock> {
    Some(Arc::new(File::create(folder.join("lock")).unwrap()))
}

fn open(folder: &Path, disk: Disk, reserve_bytes: u64) -> Checkpoints {
    Checkpoints::open(folder, federation(1), disk, reserve_bytes, lock(folder)).unwrap()
}

fn checkpoint(round: u32) -> Checkpoint {
    let weights = vec![u8::try_from(round).unwrap(); 1000];
    Checkpoint::new(PARTITION, &round)
        .unwrap()
        .with_section("weights", weights)
        .with_section("empty", Vec::new())
}

fn round(loaded: &Loaded) -> u32 {
    loaded.checkpoint.meta().unwrap()
}

#[test]
fn comes_back_whole_and_keeps_two_generations() {
    let home = tempfile::tempdir().unwrap();
    let checkpoints = open(home.path(), Disk::default(), 0);
    assert_eq!(checkpoints.load("node", PARTITION).unwrap(), None);
    for round in 1..=5 {
        assert_eq!(
            checkpoints
                .save("node", &checkpoint(round))
                .unwrap()
                .generation,
            u64::from(round)
        );
    }
    checkpoints.save("node-2", &checkpoint(77)).unwrap();
    drop(checkpoints);
    let checkpoints = open(home.path(), Disk::default(), 0);
    let loaded = checkpoints.load("node", PARTITION).unwrap().unwrap();
    assert_eq!(
        loaded,
        Loaded {
            checkpoint: checkpoint(5),
            generation: 5,
            warning: None
        }
    );
    assert_eq!(
        loaded.checkpoint.section("weights"),
        Some(vec![5; 1000].as_slice())
    );
    assert_eq!(checkpoints.generations("node").unwrap().len(), GENERATIONS);
}

#[test]
fn any_damage_is_found_and_the_one_before_is_used() {
    let home = tempfile::tempdir().unwrap();
    let checkpoints = open(home.path(), Disk::default(), 0);
    checkpoints.save("node", &checkpoint(1)).unwrap();
    let saved = checkpoints.save("node", &checkpoint(2)).unwrap();
    let newest = checkpoints.path("node", saved.generation);
    let intact = fs::read(&newest).unwrap();
    let flips = (0..intact.len())
        .step_by(7)
        .chain(0..40)
        .chain([intact.len() - 1]);
    let damages = flips.map(|at| {
        let mut bytes = intact.clone();
        bytes[at] ^= 0x10;
        bytes
    });
    let cuts = (0..intact.len())
        .step_by(101)
        .map(|len| intact[..len].to_vec());
    for (case, bytes) in damages
        .chain(cuts)
        .chain([[intact.as_slice(), &[0]].concat()])
        .enumerate()
    {
        fs::write(&newest, bytes).unwrap();
        let loaded = checkpoints.load("node", PARTITION).unwrap().unwrap();
        let warning = loaded.warning.clone().unwrap();
        assert_eq!((round(&loaded), loaded.generation), (1, 1), "case {case}");
        assert!(
            warning.contains("goes back to generation 1: ") && warning.contains("corrupt, it"),
            "{warning}"
        );
        assert!(!newest.exists(), "set aside");
    }
    assert_eq!(
        checkpoints.save("node", &checkpoint(3)).unwrap().generation,
        2
    );
    assert_eq!(
        checkpoints.generations("node").unwrap().len(),
        2,
        "the good one was not pushed out by the damaged one"
    );
}

#[test]
fn says_so_when_nothing_is_left() {
    let home = tempfile::tempdir().unwrap();
    let checkpoints = open(home.path(), Disk::default(), 0);
    for round in 1..=2 {
        checkpoints.save("node", &checkpoint(round)).unwrap();
        fs::write(checkpoints.path("node", u64::from(round)), b"short").unwrap();
    }
    let error = checkpoints.load("node", PARTITION).unwrap_err().to_string();
    assert!(
        error.contains("node.00000002: corrupt, it is cut off; "),
        "{error}"
    );
    assert!(
        checkpoints.load("node", PARTITION).is_err(),
        "and says so again"
    );
    checkpoints.save("node", &checkpoint(3)).unwrap();
    assert_eq!(
        round(&checkpoints.load("node", PARTITION).unwrap().unwrap()),
        3
    );
}

#[test]
fn a_newer_format_is_refused_not_skipped() {
    let home = tempfile::tempdir().unwrap();
    let checkpoints = open(home.path(), Disk::default(), 0);
    checkpoints.save("node", &checkpoint(1)).unwrap();
    let path = checkpoints.path("node", 1);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    let end = bytes.len() - blake3::OUT_LEN;
    let checksum = *blake3::hash(&bytes[..end]).as_bytes();
    bytes[end..].copy_from_slice(&checksum);
    fs::write(&path, bytes).unwrap();
    let error = checkpoints.load("node", PARTITION).unwrap_err();
    assert!(
        matches!(
            error,
            LoadError::Version {
                found: 2,
                supported: 1
            }
        ),
        "{error}"
    );
}

#[test]
fn refuses_what_belongs_elsewhere() {
    let home = tempfile::tempdir().unwrap();
    open(home.path(), Disk::default(), 0)
        .save("node", &checkpoint(1))
        .unwrap();
    let ours = open(home.path(), Disk::default(), 0);
    let error = ours.load("node", "p2").unwrap_err().to_string();
    assert!(
        error.contains("has partition hash `p1`, expected `p2`"),
        "{error}"
    );
    let theirs = Checkpoints::open(home.path(), federation(2), Disk::default(), 0, None).unwrap();
    let error = theirs.load("node", PARTITION).unwrap_err().to_string();
    assert!(
        error.contains("has federation `0101010101010101`, expected `0202020202020202`"),
        "{error}"
    );
    assert!(matches!(
        theirs.save("node", &checkpoint(1)),
        Err(SaveError::ReadOnly)
    ));
    for name in ["", "Node", "a/b", "..", "a.b", &"x".repeat(65)] {
        assert!(
            matches!(ours.save(name, &checkpoint(1)), Err(SaveError::Name(_))),
            "{name}"
        );
    }
}

#[test]
fn a_full_disk_stops_blobs_never_checkpoints() {
    let home = tempfile::tempdir().unwrap();
    let capacity = Arc::new(AtomicU64::new(100_000));
    let disk = Disk::with_capacity(Arc::clone(&capacity));
    let checkpoints = open(home.path(), disk, 500);
    checkpoints.save("node", &checkpoint(1)).unwrap();
    let size = checkpoints.save("node", &checkpoint(2)).unwrap().bytes;
    let reserve = || fs::metadata(checkpoints.reserve_path()).unwrap().len();
    assert!(reserve() > size, "the reserve has grown");
    // Somebody else fills the disk, and it stays full for many rounds.
    capacity.store(0, std::sync::atomic::Ordering::SeqCst);
    for round in 3..20 {
        let saved = checkpoints.save("node", &checkpoint(round)).unwrap();
        assert!(saved.disk_was_full, "round {round}");
    }
    // Now the reserve is gone too: saving fails, what was saved stays.
    fs::remove_file(checkpoints.reserve_path()).unwrap();
    capacity.store(0, std::sync::atomic::Ordering::SeqCst);
    let error = checkpoints.save("node", &checkpoint(20)).unwrap_err();
    assert!(matches!(error, SaveError::Full { .. }), "{error}");
    assert_eq!(
        round(&checkpoints.load("node", PARTITION).unwrap().unwrap()),
        19
    );
    // Space is back: the next one is ordinary and reserves again.
    capacity.store(100_000, std::sync::atomic::Ordering::SeqCst);
    assert!(
        !checkpoints
            .save("node", &checkpoint(21))
            .unwrap()
            .disk_was_full
    );
    assert!(reserve() > size);
}

#[test]
fn a_restart_sweeps_and_remembers_the_size() {
    let home = tempfile::tempdir().unwrap();
    let checkpoints = open(home.path(), Disk::default(), 10);
    let size = checkpoints.save("node", &checkpoint(1)).unwrap().bytes;
    let rubbish = Disk::default()
        .stage(&checkpoints.folder, &[b"half a checkpoint"])
        .unwrap();
    fs::remove_file(checkpoints.reserve_path()).unwrap();
    drop(checkpoints);
    let checkpoints = open(home.path(), Disk::default(), 10);
    assert!(!rubbish.exists());
    assert!(fs::metadata(checkpoints.reserve_path()).unwrap().len() > size);
}
