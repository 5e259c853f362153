//! The blob store under crashes, spoilt files, quotas, full disks, liars and many threads.

mod proof;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use fednode_core::{Partial, SEGMENT_BYTES, SegmentList};
use proptest::prelude::*;

use super::*;

const SEG: usize = SEGMENT_BYTES as usize;

fn lock_file(folder: &Path) -> Option<Lock> {
    Some(Arc::new(File::create(folder.join("lock")).unwrap()))
}

fn open_with(folder: &Path, disk: Disk, quota: u64) -> Blobs {
    Blobs::open(folder, disk, quota, lock_file(folder)).unwrap()
}

fn open(folder: &Path) -> Blobs {
    open_with(folder, Disk::default(), DEFAULT_QUOTA_BYTES)
}

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new()
        .update(&[seed])
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

fn segments(bytes: &[u8]) -> Vec<&[u8]> {
    if bytes.is_empty() {
        vec![bytes]
    } else {
        bytes.chunks(SEG).collect()
    }
}

fn receive(blobs: &Blobs, bytes: &[u8]) -> BlobRef {
    let list = SegmentList::of(bytes);
    blobs.begin(list.blob()).unwrap();
    blobs.keep_list(&list).unwrap();
    for (index, segment) in (0..).zip(segments(bytes)) {
        blobs.write_segment(list.blob(), index, segment).unwrap();
    }
    blobs.finish(list.blob()).unwrap();
    list.blob()
}

fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
    result.unwrap_err().kind()
}

fn files_in(folder: PathBuf) -> usize {
    crate::disk::list_folder(&folder).unwrap().len()
}

#[test]
fn put_and_received_blobs_come_back_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let all: Vec<_> = [0, 1, 1000, SEG, SEG + 1, 3 * SEG + 77]
        .map(|len| bytes(1, len))
        .into();
    for (n, bytes) in all.iter().enumerate() {
        let blobs = open(home.path());
        let blob = if n % 2 == 0 {
            receive(&blobs, bytes)
        } else {
            blobs.put(bytes).unwrap()
        };
        assert_eq!(blob, BlobRef::of(bytes));
    }
    let blobs = open(home.path());
    for bytes in &all {
        let blob = BlobRef::of(bytes);
        assert_eq!(
            (blobs.held(&blob.id), &blobs.get(&blob.id).unwrap()),
            (Some(blob.size), bytes)
        );
        assert_eq!(
            blobs.segment_list(&blob.id).unwrap(),
            SegmentList::of(bytes)
        );
        for (index, segment) in (0..).zip(segments(bytes)) {
            assert_eq!(blobs.read_segment(&blob.id, index).unwrap(), segment);
        }
        assert_eq!(
            kind(blobs.read_segment(&blob.id, blob.n_segments())),
            io::ErrorKind::InvalidInput
        );
        let complete = blobs.begin(blob).unwrap();
        assert!(
            complete.list.is_some() && complete.have.iter().all(|have| *have),
            "nothing to receive"
        );
        blobs.write_segment(blob, 0, segments(bytes)[0]).unwrap();
        blobs.finish(blob).unwrap();
    }
    assert_eq!(
        blobs.used_bytes(),
        all.iter().map(|bytes| bytes.len() as u64).sum::<u64>()
    );
    assert_eq!(files_in(blobs.files.partial_folder()), 0);
}

#[test]
fn a_spoilt_blob_is_not_held_and_can_be_had_again() {
    let home = tempfile::tempdir().unwrap();
    let blobs = open(home.path());
    let content = bytes(2, 2 * SEG + 5);
    let blob = blobs.put(&content).unwrap();
    let path = blobs.files.held(&blob.id);
    let mut flipped = content.clone();
    flipped[SEG + 3] ^= 1;
    let reads: [fn(&Blobs, &BlobId) -> io::ErrorKind; 3] = [
        |blobs, id| kind(blobs.get(id)),
        |blobs, id| kind(blobs.read_segment(id, 1)),
        |blobs, id| kind(blobs.segment_list(id)),
    ];
    for spoilt in [
        flipped,
        content[..SEG + 9].to_vec(),
        content[..1].to_vec(),
        Vec::new(),
    ] {
        for read in reads {
            fs::write(&path, &spoilt).unwrap();
            let blobs = open(home.path());
            assert_eq!(read(&blobs, &blob.id), io::ErrorKind::NotFound);
            assert_eq!(
                (blobs.held(&blob.id), path.exists(), blobs.used_bytes()),
                (None, false, 0)
            );
        }
        // The same store may hold a list of the bytes as they were.
        let blobs = open(home.path());
        blobs.put(&content).unwrap();
        blobs.segment_list(&blob.id).unwrap();
        fs::write(&path, &spoilt).unwrap();
        assert_eq!(
            kind(blobs.read_segment(&blob.id, 1)),
            io::ErrorKind::NotFound
        );
        // Neither who puts nor who receives is fooled by the spoilt file.
        blobs.put(&content).unwrap();
        fs::write(&path, &spoilt).unwrap();
        blobs.put(&content).unwrap();
        assert_eq!(blobs.get(&blob.id).unwrap(), content);
        fs::write(&path, &spoilt).unwrap();
        assert_eq!(receive(&open(home.path()), &content), blob);
        assert_eq!(open(home.path()).get(&blob.id).unwrap(), content);
    }
    fs::remove_file(&path).unwrap();
    let blobs = open(home.path());
    blobs.put(&content).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(
        kind(blobs.get(&blob.id)),
        io::ErrorKind::NotFound,
        "tidied up by hand"
    );
    assert_eq!(blobs.used_bytes(), 0);
}

#[test]
fn resumes_with_what_was_written_whatever_became_of_the_map() {
    let home = tempfile::tempdir().unwrap();
    let content = bytes(3, 20 * SEG + 11);
    let list = SegmentList::of(&content);
    let blob = list.blob();
    let write = |blobs: &Blobs, range: std::ops::Range<usize>| {
        for index in range {
            blobs
                .write_segment(
                    blob,
                    u32::try_from(index).unwrap(),
                    segments(&content)[index],
                )
                .unwrap();
        }
    };
    let blobs = open(home.path());
    assert_eq!(
        blobs.begin(blob).unwrap(),
        Partial {
            list: None,
            have: vec![false; 21]
        }
    );
    blobs.keep_list(&list).unwrap();
    write(&blobs, 0..18);
    let files = blobs.files.partial(&blob);
    let map = fs::read(&files.map).expect("16 MiB were written, so there is a map");
    assert_eq!(
        map.iter().take(21).filter(|bit| **bit == 1).count(),
        16,
        "it vouches for what was synced only"
    );
    let here: Vec<bool> = (0..21).map(|index| index < 18).collect();
    let torn = [&map[..5], &[1; 30]].concat();
    for map in [Some(map.clone()), Some(torn), Some(Vec::new()), None] {
        match map {
            Some(map) => fs::write(&files.map, map).unwrap(),
            None => fs::remove_file(&files.map).unwrap(),
        }
        let partial = open(home.path()).begin(blob).unwrap();
        assert_eq!(
            partial,
            Partial {
                list: Some(list.values().to_vec()),
                have: here.clone()
            }
        );
    }
    // A map that was torn in the middle has the right length; what it says of segments that never came is not believed.
    let data = || File::options().write(true).open(&files.data).unwrap();
    data().set_len(blob.size).unwrap();
    fs::write(&files.map, [&[1; 21], &map[21..]].concat()).unwrap();
    assert_eq!(open(home.path()).begin(blob).unwrap().have, here);
    // A power cut may lose what the map does not vouch for; the map must not be believed beyond the data.
    fs::write(&files.map, &map).unwrap();
    data().set_len(15 * SEGMENT_BYTES + 9).unwrap();
    let partial = open(home.path()).begin(blob).unwrap();
    assert_eq!(partial.have.iter().filter(|have| **have).count(), 15);
    // A spoilt list is fetched again; what the map vouches for stays.
    fs::write(&files.list, bytes(4, list.values().len() * 32)).unwrap();
    let blobs = open(home.path());
    let partial = blobs.begin(blob).unwrap();
    assert_eq!(
        (
            partial.list,
            partial.have.iter().filter(|have| **have).count()
        ),
        (None, 15)
    );
    blobs.keep_list(&list).unwrap();
    assert_eq!(
        kind(blobs.finish(blob)),
        io::ErrorKind::InvalidData,
        "segments are missing"
    );
    write(&blobs, 15..21);
    blobs.finish(blob).unwrap();
    assert_eq!(blobs.get(&blob.id).unwrap(), content);
    assert_eq!(files_in(blobs.files.partial_folder()), 0);
}

#[test]
fn blob_spoilt_while_received_is_found_at_the_end() {
    let home = tempfile::tempdir().unwrap();
    let blobs = open(home.path());
    let content = bytes(5, 3 * SEG);
    let list = SegmentList::of(&content);
    let blob = list.blob();
    blobs.begin(blob).unwrap();
    blobs.keep_list(&list).unwrap();
    for (index, segment) in (0..).zip(segments(&content)) {
        blobs.write_segment(blob, index, segment).unwrap();
    }
    let data = File::options()
        .write(true)
        .open(blobs.files.partial(&blob).data)
        .unwrap();
    data.write_all_at(b"spoilt", SEGMENT_BYTES + 100).unwrap();
    assert_eq!(kind(blobs.finish(blob)), io::ErrorKind::InvalidData);
    assert_eq!(blobs.held(&blob.id), None);
    assert_eq!(
        blobs.begin(blob).unwrap().have,
        [true, false, true],
        "only that segment is fetched again"
    );
    blobs.write_segment(blob, 1, segments(&content)[1]).unwrap();
    blobs.finish(blob).unwrap();
    assert_eq!(blobs.get(&blob.id).unwrap(), content);
}

#[test]
fn a_wrong_announced_size_does_not_stop_the_honest_one() {
    let home = tempfile::tempdir().unwrap();
    let blobs = open(home.path());
    let content = bytes(6, 500);
    let honest = BlobRef::of(&content);
    let lie = BlobRef {
        size: 600,
        ..honest
    };
    blobs.begin(lie).unwrap();
    blobs.write_segment(lie, 0, &bytes(6, 600)).unwrap();
    assert_eq!(kind(blobs.finish(lie)), io::ErrorKind::InvalidData);
    assert_eq!(blobs.used_bytes(), 600);
    assert_eq!(receive(&blobs, &content), honest);
    assert_eq!(blobs.used_bytes(), 500, "the lie went with it");
    assert_eq!(kind(blobs.begin(lie)), io::ErrorKind::InvalidInput);
    let huge = BlobRef {
        id: BlobId::of(b"huge"),
        size: MAX_BLOB_BYTES + 1,
    };
    assert_eq!(kind(blobs.begin(huge)), io::ErrorKind::InvalidInput);
    let unknown = BlobRef::of(b"unknown");
    assert_eq!(
        kind(blobs.write_segment(unknown, 0, b"unknown")),
        io::ErrorKind::NotFound
    );
    assert_eq!(kind(blobs.finish(unknown)), io::ErrorKind::NotFound);
    blobs.begin(unknown).unwrap();
    for (index, bytes) in [(0, b"short".as_slice()), (1, b"unknown")] {
        assert_eq!(
            kind(blobs.write_segment(unknown, index, bytes)),
            io::ErrorKind::InvalidInput
        );
    }
}

#[test]
fn a_crash_leaves_nothing_that_a_restart_does_not_sweep() {
    let home = tempfile::tempdir().unwrap();
    let blobs = open(home.path());
    let blob = blobs.put(b"held").unwrap();
    let staged = blobs
        .disk
        .stage(&blobs.files.held_folder(&blob.id), &[b"half"])
        .unwrap();
    let partial = blobs.files.partial_folder();
    let orphan = blobs.files.partial(&BlobRef::of(b"gone")).map;
    fs::write(&orphan, b"map without data").unwrap();
    fs::write(partial.join("nonsense"), b"?").unwrap();
    blobs.begin(BlobRef::of(b"begun")).unwrap();
    let looking = Blobs::open(home.path(), Disk::default(), 0, None).unwrap();
    assert_eq!(looking.list().unwrap(), [blob]);
    assert!(staged.exists(), "who only looks sweeps nothing");
    drop(blobs);
    let blobs = open(home.path());
    assert!(!staged.exists() && !orphan.exists());
    assert_eq!((blobs.list().unwrap(), files_in(partial)), (vec![blob], 1));
    assert_eq!(blobs.used_bytes(), 4 + 5, "the begun one keeps its space");
}

#[test]
fn quota_counts_announced_bytes_and_takes_only_what_nobody_needs() {
    let home = tempfile::tempdir().unwrap();
    let blobs = open_with(home.path(), Disk::default(), 1000);
    let needed = blobs.put(&bytes(1, 300)).unwrap();
    let pinned = blobs.put(&bytes(2, 300)).unwrap();
    let old = blobs.put(&bytes(3, 200)).unwrap();
    blobs.protect([needed.id].into());
    let pin = blobs.pin(pinned.id);
    let announced = BlobRef {
        id: BlobId::of(b"announced"),
        size: 350,
    };
    blobs.begin(announced).unwrap();
    assert_eq!(
        (blobs.held(&old.id), blobs.used_bytes()),
        (None, 950),
        "the oldest unneeded made room"
    );
    let too_much = BlobRef {
        id: BlobId::of(b"too much"),
        size: 51,
    };
    assert_eq!(kind(blobs.begin(too_much)), io::ErrorKind::QuotaExceeded);
    assert_eq!(kind(blobs.put(&bytes(4, 51))), io::ErrorKind::QuotaExceeded);
    let small = blobs.put(&bytes(5, 50)).unwrap();
    assert_eq!(
        kind(blobs.put(&bytes(6, 101))),
        io::ErrorKind::QuotaExceeded
    );
    assert!(
        blobs.held(&small.id).is_some(),
        "nothing is collected in vain"
    );
    blobs.abandon(announced).unwrap();
    assert_eq!(blobs.used_bytes(), 650);
    drop(pin);
    let collected = blobs.collect(&[small.id].into(), 0).unwrap();
    assert_eq!(
        collected,
        Collected {
            blobs: 2,
            bytes: 600
        }
    );
    assert_eq!(blobs.list().unwrap(), [small]);
    assert!(
        blobs.remove(&small.id).unwrap() && !blobs.remove(&small.id).unwrap(),
        "its owner took it back"
    );
    assert_eq!(
        (
            blobs.used_bytes(),
            files_in(blobs.files.held_folder(&small.id))
        ),
        (0, 0)
    );
}

#[test]
fn the_order_of_use_survives_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let blobs = open(home.path());
    let three: Vec<_> = (0..3)
        .map(|seed| blobs.put(&bytes(seed, 100)).unwrap())
        .collect();
    let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
    for (blob, minutes) in three.iter().zip([0, 1, 2]) {
        let file = File::open(blobs.files.held(&blob.id)).unwrap();
        file.set_modified(an_hour_ago + Duration::from_secs(60 * minutes))
            .unwrap();
    }
    open(home.path()).get(&three[0].id).unwrap();
    let blobs = open(home.path());
    blobs.collect(&BTreeSet::new(), 200).unwrap();
    assert_eq!(
        three
            .iter()
            .map(|blob| blobs.held(&blob.id).is_some())
            .collect::<Vec<_>>(),
        [true, false, true]
    );
}

#[test]
fn a_full_disk_is_an_error_that_leaves_the_store_sound() {
    let home = tempfile::tempdir().unwrap();
    let capacity = Arc::new(AtomicU64::new(3000));
    let blobs = open_with(
        home.path(),
        Disk::with_capacity(Arc::clone(&capacity)),
        DEFAULT_QUOTA_BYTES,
    );
    let first = blobs.put(&bytes(1, 1000)).unwrap();
    let second = blobs.put(&bytes(2, 1900)).unwrap();
    blobs.protect([second.id].into());
    assert_eq!(kind(blobs.put(&bytes(3, 1200))), io::ErrorKind::StorageFull);
    assert!(
        blobs.held(&first.id).is_some(),
        "nothing is collected in vain"
    );
    let third = blobs.put(&bytes(3, 1050)).unwrap();
    assert_eq!(
        (blobs.held(&first.id), blobs.held(&third.id)),
        (None, Some(1050))
    );
    // The space was there when the blob was announced, and gone when it arrived.
    capacity.store(500, Ordering::SeqCst);
    let late = BlobRef::of(&bytes(4, 400));
    blobs.begin(late).unwrap();
    capacity.store(10, Ordering::SeqCst);
    assert_eq!(
        kind(blobs.write_segment(late, 0, &bytes(4, 400))),
        io::ErrorKind::StorageFull
    );
    assert_eq!(kind(blobs.finish(late)), io::ErrorKind::InvalidData);
    assert_eq!(blobs.used_bytes(), 1900 + 1050 + 400);
    capacity.store(500, Ordering::SeqCst);
    blobs.write_segment(late, 0, &bytes(4, 400)).unwrap();
    blobs.finish(late).unwrap();
    assert_eq!(blobs.get(&late.id).unwrap(), bytes(4, 400));
}

#[test]
fn read_only_store_follows_changes_and_makes_none() {
    let home = tempfile::tempdir().unwrap();
    let owner = open(home.path());
    let looking = Blobs::open(home.path(), Disk::default(), 0, None).unwrap();
    let blob = owner.put(b"new").unwrap();
    assert_eq!(
        (looking.held(&blob.id), looking.get(&blob.id).unwrap()),
        (Some(3), b"new".to_vec())
    );
    let read_only = io::ErrorKind::ReadOnlyFilesystem;
    assert_eq!(kind(looking.put(b"x")), read_only);
    assert_eq!(kind(looking.begin(blob)), read_only);
    assert_eq!(kind(looking.remove(&blob.id)), read_only);
    fs::write(owner.files.held(&blob.id), b"bad").unwrap();
    assert_eq!(kind(looking.get(&blob.id)), io::ErrorKind::NotFound);
    assert!(owner.files.held(&blob.id).exists());
    owner.remove(&blob.id).unwrap();
    assert_eq!(looking.held(&blob.id), None);
}

#[test]
fn many_threads_agree() {
    let home = tempfile::tempdir().unwrap();
    let blobs = open_with(home.path(), Disk::new(crate::Durability::Relaxed), 64 << 10);
    let big = bytes(99, 4 * SEG + 3);
    let other_home = tempfile::tempdir().unwrap();
    let roomy = open_with(
        other_home.path(),
        Disk::new(crate::Durability::Relaxed),
        DEFAULT_QUOTA_BYTES,
    );
    let list = SegmentList::of(&big);
    roomy.begin(list.blob()).unwrap();
    roomy.keep_list(&list).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let (blobs, roomy, big, list) = (&blobs, &roomy, &big, &list);
            scope.spawn(move || {
                for n in 0..60 {
                    let content = bytes(u8::try_from((n * 7 + thread) % 20).unwrap(), 4 << 10);
                    let pin = blobs.pin(BlobId::of(&content));
                    // Eight pinned blobs and eight reservations always fit, whoever else is collected.
                    let blob = blobs.put(&content).unwrap();
                    assert_eq!(
                        blobs.get(&blob.id).unwrap(),
                        content,
                        "pinned, so it is there"
                    );
                    drop(pin);
                    match n % 8 {
                        0 => drop(blobs.collect(&BTreeSet::new(), 8 << 10).unwrap()),
                        1 => drop(blobs.read_segment(&blob.id, 0)),
                        _ => {}
                    }
                }
                for index in 0..5u32 {
                    let index = (index + thread) % 5;
                    roomy
                        .write_segment(list.blob(), index, segments(big)[index as usize])
                        .unwrap();
                }
                roomy.finish(list.blob()).unwrap();
            });
        }
    });
    assert_eq!(roomy.get(&list.blob().id).unwrap(), big);
    let held: u64 = blobs.list().unwrap().iter().map(|blob| blob.size).sum();
    assert_eq!(blobs.used_bytes(), held, "every reservation was settled");
    assert!(held <= 64 << 10);
}

/// What may happen to a store, with small blobs of which some have several segments.
#[derive(Debug, Clone)]
enum Step {
    Put(u8),
    Begin(u8),
    KeepList(u8),
    Write(u8, u32),
    Finish(u8),
    Get(u8),
    Spoil(u8, u32),
    Remove(u8),
    Collect(u8, u64),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let blob = 0..4u8;
    prop_oneof![
        1 => blob.clone().prop_map(Step::Put),
        4 => blob.clone().prop_map(Step::Begin),
        3 => blob.clone().prop_map(Step::KeepList),
        10 => (blob.clone(), 0..3u32).prop_map(|(blob, index)| Step::Write(blob, index)),
        6 => blob.clone().prop_map(Step::Finish),
        2 => blob.clone().prop_map(Step::Get),
        2 => (blob.clone(), 0..3 * 1024 * 1024u32).prop_map(|(blob, at)| Step::Spoil(blob, at)),
        1 => blob.clone().prop_map(Step::Remove),
        1 => (blob, 0..4_000_000u64).prop_map(|(keep, target)| Step::Collect(keep, target)),
        2 => Just(Step::Reopen),
    ]
}

fn content(blob: u8) -> Vec<u8> {
    bytes(blob, [0, 700, SEG + 5, 2 * SEG + 9][usize::from(blob)])
}

const PROPERTY_QUOTA: u64 = 4 << 20;

fn take(blobs: Blobs, home: &Path, step: &Step) -> Blobs {
    match *step {
        Step::Put(blob) => drop(blobs.put(&content(blob))),
        Step::Begin(blob) => drop(blobs.begin(BlobRef::of(&content(blob)))),
        Step::KeepList(blob) => drop(blobs.keep_list(&SegmentList::of(&content(blob)))),
        Step::Write(blob, index) => {
            let content = content(blob);
            if let Some(segment) = segments(&content).get(index as usize) {
                let _ = blobs.write_segment(BlobRef::of(&content), index, segment);
            }
        }
        Step::Finish(blob) => drop(blobs.finish(BlobRef::of(&content(blob)))),
        Step::Get(blob) => drop(blobs.get(&BlobId::of(&content(blob)))),
        Step::Spoil(blob, at) => {
            let blob = BlobRef::of(&content(blob));
            for path in [blobs.files.held(&blob.id), blobs.files.partial(&blob).data] {
                if let Ok(file) = File::options().write(true).open(path) {
                    file.write_all_at(b"spoilt", u64::from(at) % blob.size.max(1))
                        .unwrap();
                }
            }
        }
        Step::Remove(blob) => drop(blobs.remove(&BlobId::of(&content(blob)))),
        Step::Collect(keep, target) => {
            let keep = BlobId::of(&content(keep));
            let before = blobs.held(&keep);
            blobs.collect(&[keep].into(), target).unwrap();
            assert_eq!(blobs.held(&keep), before, "what is needed stays");
        }
        Step::Reopen => {
            drop(blobs);
            return open_with(home, Disk::new(crate::Durability::Relaxed), PROPERTY_QUOTA);
        }
    }
    blobs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn held_blob_hashes_to_its_name(steps in prop::collection::vec(step(), 1..80)) {
        let home = tempfile::tempdir().unwrap();
        let mut blobs = open_with(home.path(), Disk::new(crate::Durability::Relaxed), PROPERTY_QUOTA);
        for step in &steps {
            blobs = take(blobs, home.path(), step);
            prop_assert!(blobs.used_bytes() <= PROPERTY_QUOTA);
        }
        for blob in blobs.list().unwrap() {
            // Only spoiling may make a held blob unreadable, and then it is not held any more.
            match blobs.get(&blob.id) {
                Ok(bytes) => prop_assert_eq!(BlobId::of(&bytes), blob.id),
                Err(error) => {
                    prop_assert_eq!(error.kind(), io::ErrorKind::NotFound);
                    prop_assert_eq!(blobs.held(&blob.id), None);
                    prop_assert!(steps.iter().any(|step| matches!(step, Step::Spoil(..))));
                }
            }
        }
        let counted = blobs.used_bytes();
        drop(blobs);
        let reopened = open_with(home.path(), Disk::default(), PROPERTY_QUOTA);
        prop_assert_eq!(reopened.used_bytes(), counted, "memory and disk agree");
        // Whatever happened, everything can be received in the end.
        let _ = reopened.collect(&BTreeSet::new(), 0);
        let last = content(3);
        prop_assert_eq!(reopened.get(&receive(&reopened, &last).id).unwrap(), last);
    }
}
