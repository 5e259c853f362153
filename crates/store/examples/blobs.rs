//! Measures what the blob store costs per GB (10^9 bytes): received as from a peer, read whole, served to a peer.
//!
//! ```text
//! cargo run --release -p fednode-store --example blobs -- [KIB of a blob] [MIB in all] [full|relaxed] [FOLDER]
//! ```
//!
//! CPU time is user plus system time of this process; what the kernel writes back later is not in it.
#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use fednode_core::{BlobStore, FederationId, SEGMENT_BYTES, SegmentList};
use fednode_store::{Blobs, Durability, Options, Store};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (bytes_each, bytes_in_all) = (number(0, 4096)? << 10, number(1, 256)? << 20);
    let relaxed = arguments.get(2).is_some_and(|word| word == "relaxed");
    let home = tempfile::tempdir_in(
        arguments
            .get(3)
            .map_or_else(std::env::temp_dir, PathBuf::from),
    )?;
    let durability = if relaxed {
        Durability::Relaxed
    } else {
        Durability::Full
    };
    let store = Store::open(
        home.path(),
        FederationId::from_bytes([1; 32]),
        &Options {
            durability,
            ..Options::default()
        },
    )?;
    let contents: Vec<Vec<u8>> = (0..bytes_in_all / bytes_each)
        .map(|n| content(n, bytes_each))
        .collect();
    let lists: Vec<SegmentList> = contents
        .iter()
        .map(|bytes| SegmentList::of(bytes))
        .collect();
    let gb = (contents.len() * bytes_each) as f64 / 1e9;
    measure("receive", gb, || {
        lists
            .iter()
            .zip(&contents)
            .try_for_each(|(list, bytes)| receive(&store.blobs, list, bytes))
    })?;
    measure("get", gb, || {
        lists
            .iter()
            .try_for_each(|list| store.blobs.get(&list.blob().id).map(drop))
    })?;
    measure("serve", gb, || {
        lists.iter().try_for_each(|list| serve(&store.blobs, list))
    })?;
    measure("serve again", gb, || {
        lists.iter().try_for_each(|list| serve(&store.blobs, list))
    })
}

/// Bytes that differ from blob to blob and repeat nowhere within one.
fn content(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new()
        .update(&number.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// What a fetch does with the store, the check of each segment included.
fn receive(blobs: &Blobs, list: &SegmentList, bytes: &[u8]) -> std::io::Result<()> {
    let blob = list.blob();
    blobs.begin(blob)?;
    if blob.n_segments() > 1 {
        blobs.keep_list(list)?;
    }
    for (index, segment) in (0..).zip(bytes.chunks(SEGMENT_BYTES as usize)) {
        blobs.write_verified(
            list.verified(index, segment)
                .map_err(std::io::Error::other)?,
        )?;
    }
    blobs.finish(blob)
}

fn serve(blobs: &Blobs, list: &SegmentList) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    (0..list.blob().n_segments())
        .try_for_each(|index| blobs.read_segment_into(&list.blob().id, index, &mut bytes))
}

fn measure(name: &str, gb: f64, work: impl FnOnce() -> std::io::Result<()>) -> Outcome {
    let (started, before) = (Instant::now(), cpu_seconds()?);
    work()?;
    let (user, system) = cpu_seconds()?;
    let (user, system) = ((user - before.0) / gb, (system - before.1) / gb);
    println!(
        "{name:12} {user:6.2} user + {system:5.2} system CPU s/GB, {:6.2} s/GB",
        started.elapsed().as_secs_f64() / gb
    );
    Ok(())
}

/// User and system CPU seconds of this process so far, in steps of 10 ms (Linux).
fn cpu_seconds() -> Outcome<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name of the program, in brackets, may contain anything; the fields after it are numbered from 3.
    let fields = stat.rsplit(')').next().ok_or("no fields")?;
    let ticks: Vec<f64> = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok((ticks[0] / 100.0, ticks[1] / 100.0))
}
