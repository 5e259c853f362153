//! The one call of the daemon: on the embedded digits, and on Fashion-MNIST where it is installed.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use fednode_data::{
    Beginning, DataError, DataSource, Shard, ShardParams, divide, load_first_shard,
    load_grown_shard, load_shard, load_shards,
};

const PARAMS: ShardParams = ShardParams {
    nodes: 5,
    seed: 1,
    samples_per_node: 0,
    validation_share: 0.1,
};

fn digits(partition: &str, params: &ShardParams, shard: usize) -> Result<Shard, DataError> {
    load_shard(&"digits".parse().unwrap(), partition, params, shard)
}

#[test]
fn shards_of_all_nodes_make_up_the_data_set() {
    let mut total = 0;
    let mut hashes = BTreeSet::new();
    for index in 0..5 {
        let shard = digits("dirichlet:0.5", &PARAMS, index).unwrap();
        let split = &shard.split;
        total += split.train.len() + split.validation.len() + split.test.len();
        assert_eq!(shard.counts.train, split.train.class_counts());
        let n_train = split.train.len() + split.validation.len();
        assert!(
            split
                .validation
                .len()
                .abs_diff((n_train as f64 * 0.1).round() as usize)
                <= 1
        );
        assert!(n_train.abs_diff(split.test.len() * 3) <= 3);
        hashes.insert(shard.partition_hash);
    }
    assert_eq!((total, hashes.len()), (1797, 1));
}

#[test]
fn validation_has_the_label_shares_of_the_training_samples() {
    let shard = digits("iid", &PARAMS, 0).unwrap();
    assert!(
        shard
            .counts
            .validation
            .iter()
            .all(|count| (2..=4).contains(count)),
        "{:?}",
        shard.counts
    );
    assert_eq!(shard.classes_present, (0..10).collect::<Vec<u16>>());
    let none = digits(
        "iid",
        &ShardParams {
            validation_share: 0.0,
            ..PARAMS
        },
        0,
    )
    .unwrap();
    assert!(none.split.validation.is_empty());
    assert_eq!(
        none.split.train.len(),
        shard.split.train.len() + shard.split.validation.len()
    );
}

#[test]
fn the_same_seed_gives_the_same_shard_and_another_does_not() {
    let once = digits("dirichlet:0.5", &PARAMS, 2).unwrap();
    assert_eq!(once, digits("dirichlet:0.5", &PARAMS, 2).unwrap());
    let other = digits("dirichlet:0.5", &ShardParams { seed: 2, ..PARAMS }, 2).unwrap();
    assert_ne!(once.partition_hash, other.partition_hash);
    // Pinned: a change here would give every running federation another partition.
    assert_eq!(
        once.partition_hash,
        "a793aa7160e25aba597124c81af423446e27e7c116f653a66ec310fe1c0d1669"
    );
}

#[test]
fn own_data_is_kept_whole_whatever_the_index() {
    let shard = digits(
        "own",
        &ShardParams {
            nodes: 100,
            ..PARAMS
        },
        42,
    )
    .unwrap();
    assert_eq!(shard.split.train.len() + shard.split.validation.len(), 1347);
    assert_eq!(shard.split.test.len(), 450);
}

#[test]
fn a_listed_shard_holds_the_listed_samples() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.json");
    std::fs::write(
        &path,
        r#"{"nodes":[{"train":[0,10,20],"test":[5]},{"train":[],"test":[1]}]}"#,
    )
    .unwrap();
    let partition = format!("file:{}", path.display());
    let params = ShardParams {
        nodes: 2,
        validation_share: 0.0,
        ..PARAMS
    };
    let shard = digits(&partition, &params, 0).unwrap();
    assert_eq!(
        (
            shard.split.train.labels.as_slice(),
            shard.split.test.labels.as_slice()
        ),
        ([0; 3].as_slice(), [5].as_slice())
    );
    let error = digits(&partition, &params, 1).unwrap_err().to_string();
    assert_eq!(error, "shard 1 has no training samples");
}

#[test]
fn says_what_is_wrong_in_one_line() {
    let error = digits("iid", &PARAMS, 5).unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no shard 5: the data is divided among 5 nodes, counted from 0"
    );
    let error = digits("iid", &ShardParams { nodes: 0, ..PARAMS }, 0)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("0 nodes need"), "{error}");
    let error = digits(
        "iid",
        &ShardParams {
            samples_per_node: 500,
            ..PARAMS
        },
        0,
    )
    .unwrap_err()
    .to_string();
    assert_eq!(
        error,
        "5 nodes need at least 2500 samples, but the data set has 1797"
    );
    assert!(
        digits("file:/nowhere.json", &PARAMS, 0)
            .unwrap_err()
            .to_string()
            .starts_with("cannot read `/nowhere.json`")
    );
}

/// The lists that the reference results were measured on, on the real data set.
#[test]
fn reads_fashion_mnist_as_debian_installs_it() {
    let source: DataSource = "fashion-mnist".parse().unwrap();
    if let Err(error) = source.open() {
        eprintln!("skipped: {error}");
        return;
    }
    let lists = concat!(
        "file:",
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/fm20-dir01-12k.json"
    );
    let params = ShardParams {
        nodes: 20,
        ..PARAMS
    };
    let shard = load_shard(&source, lists, &params, 3).unwrap();
    assert_eq!(
        (
            shard.split.train.shape,
            shard.split.train.class_names[9].as_str()
        ),
        ([1, 28, 28], "Ankle boot")
    );
    assert_eq!(shard.split.train.len() + shard.split.validation.len(), 66);
    assert_eq!(shard.split.test.len(), 22);

    let opened = source.open().unwrap();
    let pool = opened.pool().unwrap();
    assert_eq!(
        divide(&lists.parse().unwrap(), &pool, &params)
            .unwrap()
            .hash(),
        shard.partition_hash
    );
    assert_eq!(
        (pool.labels.len(), &pool.labels[..4], pool.labels[60_000]),
        (70_000, [9, 0, 0, 3].as_slice(), 9)
    );
    let first = opened.read(&pool, &[69_999, 0]).unwrap();
    assert_eq!(first.labels, [5, 9]);
}

#[test]
fn all_shards_at_once_are_the_shards_one_by_one() {
    let params = ShardParams {
        nodes: 4,
        seed: 9,
        samples_per_node: 0,
        validation_share: 0.1,
    };
    let all = load_shards(&"digits".parse().unwrap(), "dirichlet:0.5", &params).unwrap();
    assert_eq!(all.len(), 4);
    for (shard, loaded) in all.iter().enumerate() {
        assert_eq!(
            *loaded,
            load_shard(&"digits".parse().unwrap(), "dirichlet:0.5", &params, shard).unwrap()
        );
    }
}

/// Each node gets small and large numbers alike, and each part of a shard has its own.
#[test]
fn numbers_are_divided_evenly_by_their_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    let rows = (0..200).map(|row| format!("{row},{}\n", row * 37 % 200));
    std::fs::write(&path, format!("x,y\n{}", rows.collect::<String>())).unwrap();
    let source: DataSource = format!("csv:{},target=y", path.display()).parse().unwrap();
    let params = ShardParams {
        nodes: 4,
        seed: 1,
        samples_per_node: 0,
        validation_share: 0.2,
    };
    let refused = load_shards(&source, "iid+flipped:2", &params).unwrap_err();
    assert!(
        refused.to_string().contains("numbers have none"),
        "{refused}"
    );
    for shard in load_shards(&source, "iid", &params).unwrap() {
        let split = &shard.split;
        let mut all = Vec::new();
        for part in [&split.train, &split.validation, &split.test] {
            let numbers = part.targets.as_ref().unwrap();
            let mut values = Vec::new();
            part.write_batch(&[0], &mut values);
            assert_eq!((values[0] as u32 * 37 % 200) as f32, numbers[0], "its own");
            assert_eq!(numbers.len(), part.len());
            all.extend(numbers);
        }
        // Of 50 numbers drawn without regard to their size the mean is off by 8.
        let mean = all.iter().sum::<f32>() / all.len() as f32;
        assert!((mean - 99.5).abs() < 3.0, "{mean} of {}", all.len());
    }
}

/// A table of rows with a number of their own, of two classes, in groups of two rows.
fn table(rows: &[usize]) -> (tempfile::TempDir, [DataSource; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    let row = |at: &usize| format!("{at},{},{}\n", ["no", "yes"][at % 2], at / 2);
    let rows: String = rows.iter().map(row).collect();
    std::fs::write(&path, format!("x,class,patient\n{rows}")).unwrap();
    let plain = format!("csv:{},label=class", path.display());
    let grouped = format!("{plain},group=patient");
    let sources = [plain.parse().unwrap(), grouped.parse().unwrap()];
    (folder, sources)
}

/// The numbers of the rows in training, validation and test.
fn rows_of(shard: &Shard) -> [Vec<u32>; 3] {
    let split = &shard.split;
    [&split.train, &split.validation, &split.test].map(|samples| {
        let mut values = Vec::new();
        samples.write_batch(&(0..samples.len() as u32).collect::<Vec<_>>(), &mut values);
        let width = values.len() / samples.len().max(1);
        let rows = values.chunks(width.max(1)).map(|row| row[0] as u32);
        let mut rows: Vec<u32> = rows.collect();
        rows.sort_unstable();
        rows
    })
}

fn grown(source: &DataSource, began_with: &Beginning) -> Result<Shard, DataError> {
    load_grown_shard(source, "own", &PARAMS, 0, began_with)
}

#[test]
fn appended_rows_are_trained_on_and_what_was_held_out_stays_so() {
    let at_first: Vec<usize> = (0..40).collect();
    let later: Vec<usize> = (0..50).collect();
    let ((_a, before), (_b, after)) = (table(&at_first), table(&later));
    let began = load_shard(&before[1], "own", &PARAMS, 0).unwrap();
    let known = began.began_with.clone().unwrap();
    assert_eq!(known.rows, 40);
    let now = grown(&after[1], &known).unwrap();
    let ([train, validation, test], now_rows) = (rows_of(&began), rows_of(&now));
    assert_eq!((&now_rows[1], &now_rows[2]), (&validation, &test));
    let appended: Vec<u32> = train.into_iter().chain(40..50).collect();
    assert_eq!(now_rows[0], appended);
    // The checkpoint of before is that of these rows, too, and the next growth begins from the same rows.
    assert_eq!(
        (&now.partition_hash, now.began_with),
        (&began.partition_hash, Some(known.clone()))
    );
    assert_eq!(
        rows_of(&grown(&before[1], &known).unwrap())[2],
        test,
        "nothing has grown"
    );

    let fixed = load_first_shard(&after[1], "own", &PARAMS, 0, &known).unwrap();
    assert_eq!(rows_of(&fixed), rows_of(&began), "where rows are fixed");
    assert_eq!(fixed.began_with, Some(known.clone()));

    // Each row of the same patients as before once more.
    let twice: Vec<usize> = (0..40).chain(0..40).collect();
    let (_c, twice) = table(&twice);
    let [_, validated, tested] = rows_of(&grown(&twice[1], &known).unwrap());
    let doubled = |rows: &[u32]| -> Vec<u32> { rows.iter().flat_map(|row| [*row; 2]).collect() };
    assert_eq!((validated, tested), (doubled(&validation), doubled(&test)));
}

#[test]
fn rows_that_were_put_in_between_are_refused() {
    let at_first: Vec<usize> = (0..40).collect();
    let (_a, before) = table(&at_first);
    let known = load_shard(&before[0], "own", &PARAMS, 0)
        .unwrap()
        .began_with
        .unwrap();
    let later: Vec<usize> = [1, 1, 1].into_iter().chain(0..40).collect();
    let (_b, after) = table(&later);
    let error = grown(&after[0], &known).unwrap_err().to_string();
    assert!(
        error.contains("the first 40 rows") && error.contains("append"),
        "{error}"
    );
    let turned: Vec<usize> = (0..40).rev().collect();
    let (_c, turned) = table(&turned);
    let error = grown(&turned[0], &known).unwrap_err().to_string();
    assert!(error.contains("the first 40 rows"), "{error}");
    let fewer: Vec<usize> = (0..30).collect();
    let (_d, fewer) = table(&fewer);
    let error = grown(&fewer[0], &known).unwrap_err().to_string();
    assert!(error.contains("the table has 30"), "{error}");
}
