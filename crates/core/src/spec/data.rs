//! The data as far as all members agree on it, and what data and models are recognised by.

use super::{TableColumn, Target};
use crate::BlobId;

crate::config! {
    /// The data, as far as all must agree on it.
    pub struct DataSpec {
        /// What the data is called; nodes that bring other data must not use the same name.
        name: String = "fashion-mnist".into(),
        /// How one data set is divided among nodes: `iid`, `dirichlet:ALPHA`, `pathological:CLASSES`, `own` (each node
        /// brings its own) and more. `+rotated:4:2` and other changes may follow; see `fednode init --help`.
        partition: String = "dirichlet:0.1".into(),
        /// Samples per node, training and test together; 0 divides everything.
        samples_per_node: usize = 0,
        /// Share of a node's training samples that it keeps for validation (0 to 0.5).
        validation_share: f64 = 0.1,
        /// The columns of a raw table: what each is called and holds, as `fednode data` proposes it. In the first round nodes
        /// agree on means, deviations and shares, and then all make the same features. With `privacy.epsilon` ranges and levels
        /// make them. Empty takes numbers as they are.
        columns: Vec<TableColumn> = Vec::new(),
        /// The number that is predicted, instead of a class: the name of its column and about its smallest and largest value, as
        /// `,target=COLUMN` of a table proposes it. Absent, models predict classes.
        target: Option<Target> = None,
    }
}

crate::config! {
    /// What a federation's data and models are recognised by. `fednode init` writes it; nothing here is for people.
    pub struct Fingerprints {
        /// Channels, height and width of one sample (1 to 4096 each).
        input: [usize; 3] = [1, 28, 28],
        /// Number of classes (2 to 100000; 1 where `data.target` is a number).
        classes: usize = 10,
        /// Entries of the vocabulary of models of texts, 0 for other models (0 to 1000000).
        vocabulary_size: usize = 0,
        /// Tells this run from others of the same settings, whose adverts must not be heard here (1 to 64 letters and digits). `fednode
        /// init` draws it, and `fednode init --again` draws another; absent in files that were written without one.
        run: Option<String> = None,
        /// The partition; absent while each node brings its own data. A node whose shard comes from another division is refused.
        partition: Option<String> = None,
        /// The parameters that all nodes start from (BLAKE3 of their canonical bytes), those of the same name and shape;
        /// absent where they are drawn from the seed. `--initial FILE` enters it, and every node needs the file.
        initial: Option<BlobId> = None,
        /// The vocabulary of models of texts; a node whose texts are numbered by another is refused.
        vocabulary: Option<String> = None,
        /// What the classes are called, in the order of their numbers; a node whose data call them otherwise is refused. Empty
        /// takes any names.
        class_names: Vec<String> = Vec::new(),
        /// What the columns of a table are called, in the order of the model's inputs: a node's own table is read by these names,
        /// whatever the order of its columns. Empty takes all columns as they come.
        columns: Vec<String> = Vec::new(),
    }
}
