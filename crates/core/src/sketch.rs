//! Sketches of gating proxies: 1024 bits each, of which the cosine of two proxies can be told nearly.
//!
//! A bit is the side of a random hyperplane on which a proxy lies (SimHash). Two vectors at an angle θ differ in a bit
//! with probability θ/π (Charikar, STOC 2002). So the share of differing bits tells the angle. The standard deviation
//! of the cosine is at most 0.05. Everybody draws the same planes; `fednode-mix` makes the bits.

use serde::{Deserialize, Serialize};

use crate::MAX_EXPERTS;

/// Bytes of one sketch.
pub const SKETCH_BYTES: usize = 128;

/// One proxy's sketch.
pub type Sketch = [u8; SKETCH_BYTES];

/// The sketches of all proxies of one node, in slot order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sketches(#[serde(with = "serde_bytes")] Vec<u8>);

impl Sketches {
    /// Takes one sketch per proxy.
    pub fn new(sketches: &[Sketch]) -> Self {
        Self(sketches.concat())
    }

    /// Tells whether there are as many sketches as experts, and not too many.
    pub(crate) fn fit(&self, experts: usize) -> bool {
        experts <= MAX_EXPERTS && self.0.len() == experts * SKETCH_BYTES
    }

    /// Visits the sketches in slot order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Sketch> {
        self.0.as_chunks().0.iter()
    }
}

/// Counts the bits in which two sketches differ.
pub fn differing_bits(a: &Sketch, b: &Sketch) -> u32 {
    let words = |sketch: &Sketch| -> [u64; SKETCH_BYTES / 8] {
        std::array::from_fn(|word| {
            u64::from_le_bytes(std::array::from_fn(|byte| sketch[8 * word + byte]))
        })
    };
    words(a)
        .iter()
        .zip(words(b))
        .map(|(a, b)| (a ^ b).count_ones())
        .sum()
}
