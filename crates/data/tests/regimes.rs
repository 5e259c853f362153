//! Transforms of divisions, on small images made by hand and on the embedded digits.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use fednode_data::partition::{Request, Rule};
use fednode_data::{
    DataSource, Partition, Pixels, Samples, Shard, ShardParams, load_shard, load_shards,
};

const PARAMS: ShardParams = ShardParams {
    nodes: 8,
    seed: 1,
    samples_per_node: 60,
    validation_share: 0.1,
};

/// Side of the images made by hand.
const SIDE: usize = 3;

/// Writes images of nine pixels as IDX files: pixel `p` of image `i` is `i + p * 20`, so that a turned image still tells
/// its number. Its class is `i mod 10`.
fn write_images(folder: &Path, shape: [usize; 2]) -> DataSource {
    let write = |stem: &str, numbers: std::ops::Range<usize>| {
        let count = (numbers.len() as u32).to_be_bytes();
        let sides = shape.map(|side| (side as u32).to_be_bytes()).concat();
        let pixels = shape[0] * shape[1];
        let image = |number: usize| (0..pixels).map(move |pixel| (number + pixel * 20) as u8);
        let images = numbers.clone().flat_map(image);
        let images = [
            [0, 0, 8, 3].as_slice(),
            &count,
            &sides,
            &images.collect::<Vec<_>>(),
        ];
        std::fs::write(
            folder.join(format!("{stem}-images-idx3-ubyte")),
            images.concat(),
        )
        .unwrap();
        let labels = numbers.map(|number| (number % 10) as u8);
        let labels = [[0, 0, 8, 1].as_slice(), &count, &labels.collect::<Vec<_>>()];
        std::fs::write(
            folder.join(format!("{stem}-labels-idx1-ubyte")),
            labels.concat(),
        )
        .unwrap();
    };
    write("train", 0..70);
    write("t10k", 70..80);
    format!("mnist:{}", folder.display()).parse().unwrap()
}

/// Returns image `number` turned so often, as `numpy.rot90` would.
fn turned(number: u8, quarters: u16) -> Vec<u8> {
    let mut image: Vec<u8> = (0..9).map(|pixel| number + pixel * 20).collect();
    for _ in 0..quarters {
        image = (0..9)
            .map(|at| image[(at % SIDE) * SIDE + SIDE - 1 - at / SIDE])
            .collect();
    }
    image
}

fn bytes(samples: &Samples) -> &[u8] {
    match &samples.pixels {
        Pixels::Bytes { values, .. } => values,
        other => panic!("images are bytes, not {other:?}"),
    }
}

/// The samples of a shard: training, validation, test.
fn parts(shard: &Shard) -> [&Samples; 3] {
    let split = &shard.split;
    [&split.train, &split.validation, &split.test]
}

fn count(samples: &Samples, domain: u16) -> usize {
    let domains = samples.domains.as_ref().unwrap();
    domains.iter().filter(|found| **found == domain).count()
}

fn digits(partition: &str) -> Vec<Shard> {
    load_shards(&"digits".parse().unwrap(), partition, &PARAMS).unwrap()
}

fn refused(source: &DataSource, partition: &str) -> String {
    load_shard(source, partition, &PARAMS, 0)
        .unwrap_err()
        .to_string()
}

/// As in the study: half of a node's images have turn i mod 4, half turn (i + 1) mod 4, and each is turned as its domain
/// says.
#[test]
fn two_of_four_rotations_are_half_and_half() {
    let folder = tempfile::tempdir().unwrap();
    let source = write_images(folder.path(), [SIDE, SIDE]);
    let params = ShardParams {
        nodes: 4,
        samples_per_node: 20,
        ..PARAMS
    };
    for (node, shard) in (0..).zip(load_shards(&source, "iid+rotated:4:2", &params).unwrap()) {
        let [first, second] = [node % 4, (node + 1) % 4];
        let [train, validation, test] = parts(&shard);
        for domain in [first, second] {
            let learned = count(train, domain) + count(validation, domain);
            assert!((7..=8).contains(&learned), "{learned} of 15");
            assert!((2..=3).contains(&count(test, domain)));
        }
        for samples in [train, validation, test] {
            let domains = samples.domains.as_ref().unwrap();
            for (image, domain) in bytes(samples).chunks(9).zip(domains) {
                assert_eq!(image, turned(image.iter().min().copied().unwrap(), *domain));
            }
        }
    }
}

/// As in the study: labels of odd nodes are three further.
#[test]
fn two_clusters_call_classes_differently() {
    let (plain, renamed) = (digits("iid"), digits("iid+renamed:2:3"));
    for (node, (plain, renamed)) in plain.iter().zip(&renamed).enumerate() {
        let step = if node % 2 == 1 { 3 } else { 0 };
        for (before, after) in parts(plain).into_iter().zip(parts(renamed)) {
            assert_eq!(before.pixels, after.pixels);
            let moved = before.labels.iter().map(|label| (label + step) % 10);
            assert_eq!(after.labels, moved.collect::<Vec<_>>());
            assert_eq!(before.domains, None);
            assert_eq!(count(after, (node % 2) as u16), after.len());
        }
        assert_eq!(renamed.counts.train, renamed.split.train.class_counts());
    }
    assert_ne!(plain[0].partition_hash, renamed[0].partition_hash);
}

/// Domain 1 of two rotations and domain 1 of two clusters are domain 1 * 2 + 1 of both.
#[test]
fn transforms_compose_from_left_to_right() {
    let shards = digits("dirichlet:0.5+rotated:2:2+renamed:2:3");
    let turned = digits("dirichlet:0.5+rotated:2:2");
    for (node, (both, turned)) in (0..).zip(shards.iter().zip(&turned)) {
        for (both, turned) in parts(both).into_iter().zip(parts(turned)) {
            assert_eq!(both.pixels, turned.pixels);
            let cluster = node % 2;
            let expected = turned.domains.as_ref().unwrap();
            let expected = expected.iter().map(|turn| turn * 2 + cluster);
            assert_eq!(both.domains, Some(expected.collect()));
        }
    }
}

#[test]
fn one_shard_and_another_run_are_the_same() {
    for partition in [
        "iid+rotated:4:2",
        "dirichlet:0.5+contrast:4:2+blur:3+sizes:4",
        "iid+cut:2:1+drift:1",
    ] {
        let all = digits(partition);
        assert_eq!(all, digits(partition));
        for (node, shard) in all.iter().enumerate() {
            let source = "digits".parse().unwrap();
            assert_eq!(
                *shard,
                load_shard(&source, partition, &PARAMS, node).unwrap()
            );
        }
    }
    let seed = |seed| {
        let params = ShardParams { seed, ..PARAMS };
        load_shard(&"digits".parse().unwrap(), "iid+rotated:4:2", &params, 0).unwrap()
    };
    assert_ne!(seed(1).partition_hash, seed(2).partition_hash);
}

#[test]
fn faint_and_blurred_images_belong_to_levels() {
    let plain = digits("iid");
    let spread = |samples: &Samples| {
        let bytes = bytes(samples);
        let brightest = bytes.iter().max().unwrap();
        brightest - bytes.iter().min().unwrap()
    };
    let faint = digits("iid+contrast:4");
    for node in 0..8 {
        let domain = (node % 4) as u16;
        let [train, ..] = parts(&faint[node]);
        assert_eq!(count(train, domain), train.len());
        // Digits go from 0 to 16: what is left of that is 16, 12, 8 and 4.
        assert_eq!(spread(train), [16, 12, 8, 4][node % 4]);
        assert_eq!(train.labels, plain[node].split.train.labels);
    }
    let blurred = digits("iid+blur:2:2");
    for (blurred, plain) in blurred.iter().zip(&plain) {
        let (blurred, plain) = (&blurred.split.test, &plain.split.test);
        assert_eq!(count(blurred, 0) + count(blurred, 1), blurred.len());
        let domains = blurred.domains.as_ref().unwrap();
        let images = bytes(blurred).chunks(64).zip(bytes(plain).chunks(64));
        for (domain, (after, before)) in domains.iter().zip(images) {
            assert_eq!(*domain == 0, after == before);
        }
    }
}

fn divided(partition: &str, nodes: usize, per_node: usize) -> Partition {
    let labels: Vec<u16> = (0..20_000).map(|at| at % 10).collect();
    let request = Request {
        labels: &labels,
        classes: 10,
        nodes,
        samples_per_node: per_node,
        known: fednode_data::partition::Known::default(),
    };
    let rule: Rule = partition.parse().unwrap();
    rule.divide(&request, 1).unwrap()
}

/// Twenty nodes of 750 training samples: the ladder goes from 75 to 750, each step the factor 10^(1/19).
#[test]
fn sizes_are_a_geometric_ladder() {
    let partition = divided("iid+cut:5:1+sizes:10", 20, 900);
    let drawn: Vec<usize> = partition
        .nodes()
        .iter()
        .map(|node| node.train.len())
        .collect();
    let mut sizes = drawn.clone();
    sizes.sort_unstable();
    let step = 10_f64.powf(1.0 / 19.0);
    for (rank, size) in (0..).zip(&sizes) {
        assert!((*size as f64 - 75.0 * step.powi(rank)).abs() <= 0.5);
    }
    assert_eq!((sizes[0], sizes[19]), (75, 750));
    assert_ne!(sizes, drawn, "ranks are drawn");
    assert!(partition.nodes().iter().all(|node| node.test.len() == 150));
    let alone = divided("iid+sizes:10", 1, 900);
    assert_eq!(alone.nodes()[0].train.len(), 675);
}

#[test]
fn a_cut_has_the_sizes_of_the_study() {
    let partition = divided("iid+cut:2:1", 8, 450);
    let sizes = |node: &fednode_data::NodeIndices| (node.train.len(), node.test.len());
    assert!(
        partition
            .nodes()
            .iter()
            .all(|node| sizes(node) == (300, 150))
    );
    let plain = divided("iid", 8, 450);
    for (cut, plain) in partition.nodes().iter().zip(plain.nodes()) {
        let all = |node: &fednode_data::NodeIndices| {
            let mut all: Vec<u32> = node.all().collect();
            all.sort_unstable();
            all
        };
        assert_eq!(all(cut), all(plain), "a node keeps its samples");
    }
}

#[test]
fn drift_moves_training_samples_from_turn_to_turn() {
    let folder = tempfile::tempdir().unwrap();
    let source = write_images(folder.path(), [SIDE, SIDE]);
    let params = ShardParams {
        nodes: 4,
        samples_per_node: 20,
        validation_share: 0.0,
        ..PARAMS
    };
    let shards = load_shards(&source, "iid+rotated:4+drift:1", &params).unwrap();
    for (node, shard) in (0..).zip(&shards) {
        let Shard { split, .. } = shard;
        let mut late_before = 0;
        for round in 1..=4 {
            let now = split.train.in_round(round, 4);
            let domains = now.domains.as_ref().unwrap();
            let late = domains.iter().filter(|domain| **domain % 2 == 1).count();
            assert_eq!(late, [0, 5, 10, 15][round as usize - 1]);
            for (image, domain) in bytes(&now).chunks(9).zip(domains) {
                assert_eq!(domain / 2, node);
                let number = image.iter().min().copied().unwrap();
                assert_eq!(image, turned(number, (node + domain % 2) % 4));
            }
            assert!(late >= late_before);
            late_before = late;
        }
        assert_eq!(count(&split.test, node * 2 + 1), split.test.len());
        assert_eq!(split.test.in_round(1, 4).as_ref(), &split.test);
    }
}

#[test]
fn what_cannot_be_changed_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let wide = write_images(folder.path(), [2, 3]);
    assert_eq!(
        refused(&wide, "iid+rotated:4:2"),
        "`+rotated:4:2` cannot change these data: quarter turns need square images, and these have 2x3 pixels"
    );
    let rows: String = (0..500)
        .map(|at| format!("{at},{},{}\n", at % 7, at % 2))
        .collect();
    let path = folder.path().join("table.csv");
    std::fs::write(&path, format!("age,bmi,label\n{rows}")).unwrap();
    let table: DataSource = format!("csv:{},label=label", path.display())
        .parse()
        .unwrap();
    for (transform, what) in [
        ("rotated:4", "turns"),
        ("contrast:3", "fades"),
        ("blur:3", "blurs"),
        ("drift:1", "turns"),
    ] {
        assert_eq!(
            refused(&table, &format!("iid+{transform}")),
            format!(
                "`+{transform}` cannot change these data: it {what} images, and the data are a table"
            )
        );
    }
    assert!(load_shard(&table, "iid+renamed:2:1+sizes:2+cut:1:1", &PARAMS, 1).is_ok());
    assert_eq!(
        refused(&"digits".parse().unwrap(), "iid+renamed:4:5"),
        "`+renamed:4:5` cannot change these data: with 10 classes clusters 0 and 2 would call all of them alike"
    );
    assert!(
        refused(&table, "own+renamed:2:1").ends_with("are taken as they are, without transforms")
    );
}
