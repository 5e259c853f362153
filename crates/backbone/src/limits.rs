//! Every bound on a backbone, with its reason.

use std::ops::RangeInclusive;

/// Most bytes of a file: the largest networks that one runs once per sample on a CPU have 100 million parameters.
pub const FILE_BYTES: u64 = 512 << 20;

/// Versions of ONNX's operators whose meanings are known here.
///
/// Older files write axes and bounds in other ways. Newer ones may give an operator another meaning.
pub const OPSETS: RangeInclusive<i64> = 11..=26;

/// Most nodes: large networks have a few thousand, and the runtime plans them by recursion.
pub const NODES: usize = 8192;

/// Most tensors with weights or constants, for the same networks.
pub const TENSORS: usize = 16_384;

/// Most integers in a list that grows when it is read; large tensors are written as bytes.
pub const INTS: usize = 1 << 20;

/// Most inputs, outputs or attributes of a node, and of the graph.
pub const LIST: usize = 1024;

/// Most dimensions of a value: windowed attention has six.
pub const RANK: usize = 8;

/// Most numbers of one value for one sample, 256 MiB: VGG-16 has 3 million for an image of 224 × 224.
pub const VALUE: usize = 1 << 26;

/// Most numbers of all values for one sample, 1 GiB: ResNet-152 has some 60 million.
pub const VALUES: usize = 1 << 28;

/// Most multiplications for one sample: the base vision transformer has 18 thousand million.
pub const WORK: u64 = 100_000_000_000;

/// Most features of one sample, so that the features of 10,000 samples fit into 3 GB.
pub const FEATURES: usize = 65_536;

/// Most channels of an image.
pub const CHANNELS: usize = 64;

/// Largest height and width that images are brought to.
pub const SIDE: usize = 1024;

/// Height and width where neither the file nor the options say one: that of ImageNet's networks.
pub const USUAL_SIDE: usize = 224;

/// Most threads: more than any machine has that runs a node.
pub const THREADS: usize = 1024;
