//! Segments that come with proof: what is read again at the end, and what is not.

use super::*;

#[test]
fn proven_blob_is_read_again_only_if_its_file_changed() {
    let home = tempfile::tempdir().unwrap();
    let content = bytes(8, 20 * SEG);
    let list = SegmentList::of(&content);
    let blob = list.blob();
    let write = |blobs: &Blobs, index: usize| {
        let segment = list
            .verified(u32::try_from(index).unwrap(), segments(&content)[index])
            .unwrap();
        blobs.write_verified(segment).unwrap();
    };
    // Spoils a byte of segment 3; a clock of coarse ticks must not hide it.
    let spoil = |blobs: &Blobs, time: SystemTime| {
        let data = File::options()
            .write(true)
            .open(blobs.files.partial(&blob).data)
            .unwrap();
        data.write_all_at(b"spoilt", 3 * SEGMENT_BYTES + 7).unwrap();
        data.set_modified(time).unwrap();
    };
    let only_3_is_missing: Vec<bool> = (0..20).map(|index| index != 3).collect();
    let later = SystemTime::now() + Duration::from_secs(9);
    // An earlier process vouched for the first 16 by its map, which says nothing about what the disk did since.
    let blobs = open(home.path());
    blobs.begin(blob).unwrap();
    blobs.keep_list(&list).unwrap();
    (0..18).for_each(|index| write(&blobs, index));
    spoil(&blobs, later);
    drop(blobs);
    let blobs = open(home.path());
    assert_eq!(
        blobs
            .begin(blob)
            .unwrap()
            .have
            .iter()
            .filter(|have| **have)
            .count(),
        18
    );
    (18..20).for_each(|index| write(&blobs, index));
    assert_eq!(kind(blobs.finish(blob)), io::ErrorKind::InvalidData);
    assert_eq!(blobs.begin(blob).unwrap().have, only_3_is_missing);
    // Whoever writes behind our back between two segments, or after the last, takes all proofs away.
    for n_written_after in [1, 0] {
        let blobs = open(home.path());
        blobs.abandon(blob).unwrap();
        blobs.begin(blob).unwrap();
        blobs.keep_list(&list).unwrap();
        (0..20 - n_written_after).for_each(|index| write(&blobs, index));
        spoil(&blobs, later);
        (20 - n_written_after..20).for_each(|index| write(&blobs, index));
        assert_eq!(
            kind(blobs.finish(blob)),
            io::ErrorKind::InvalidData,
            "{n_written_after}"
        );
        assert_eq!(blobs.begin(blob).unwrap().have, only_3_is_missing);
        write(&blobs, 3);
        blobs.finish(blob).unwrap();
        assert_eq!(blobs.get(&blob.id).unwrap(), content);
        blobs.remove(&blob.id).unwrap();
    }
}

#[test]
fn proof_and_no_proof_may_be_mixed() {
    let home = tempfile::tempdir().unwrap();
    let blobs = open(home.path());
    let content = bytes(9, 2 * SEG + 1);
    let list = SegmentList::of(&content);
    let blob = list.blob();
    blobs.begin(blob).unwrap();
    blobs.keep_list(&list).unwrap();
    let wrong = vec![0; SEG];
    blobs.write_segment(blob, 0, &wrong).unwrap();
    for index in 0..3 {
        blobs
            .write_verified(
                list.verified(index, segments(&content)[index as usize])
                    .unwrap(),
            )
            .unwrap();
    }
    assert_eq!(
        kind(blobs.finish(blob)),
        io::ErrorKind::InvalidData,
        "the first copy of segment 0 came without proof"
    );
    assert_eq!(blobs.begin(blob).unwrap().have, [false, true, true]);
    blobs
        .write_verified(list.verified(0, segments(&content)[0]).unwrap())
        .unwrap();
    blobs.finish(blob).unwrap();
    assert_eq!(blobs.get(&blob.id).unwrap(), content);
}
