//! Images: the whole state of a machine at one moment, to be written to a file and read back.
//!
//! A checkpoint ([`crate::State`]) keeps what a node goes on from after a restart, and leaves out all that it can find
//! out again. An image leaves out nothing: a machine that is made of it answers all later inputs exactly as the
//! original does. The spec, and what follows from it, is given apart, since whoever reads an image has it already.
//!
//! ```text
//! machine ── image() ──► NodeImage, AggregatorImage ──► file ──► from_image(spec, image) ──► the same machine
//! ```
//!
//! An image is taken between two inputs. It shares with the machine what that shares with others, so taking one costs
//! little; whoever writes it pays. What an image holds may change with any version: it is no format to keep.
//!
//! ```
//! use std::sync::Arc;
//! use fednode_core::{FederationSpec, NodeId, Timestamp};
//! use fednode_engine::{Input, Node};
//!
//! let spec = Arc::new(FederationSpec { nodes: 1, ..FederationSpec::default() });
//! let mut node = Node::new(Arc::clone(&spec), NodeId::from_bytes([7; 32]), None);
//! let mut same = Node::from_image(spec, node.image()).expect("an image of this federation");
//! let [one, other] = [&mut node, &mut same].map(|node| node.handle(Timestamp(0), Input::Start));
//! assert_eq!(format!("{one:?}"), format!("{other:?}"));
//! ```

use fednode_core::{FederationId, FederationSpec};

pub use crate::aggregator::AggregatorImage;
pub use crate::node::NodeImage;

/// Tells that an image is of another federation than the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a machine of federation {}, not {}", .found.short(), .expected.short())]
pub struct ForeignImage {
    /// The federation of the image.
    pub found: FederationId,
    /// The federation of the spec.
    pub expected: FederationId,
}

/// Compares the federation of an image with that of a spec.
pub(crate) fn check(found: FederationId, spec: &FederationSpec) -> Result<(), ForeignImage> {
    let expected = spec.id();
    if found == expected {
        Ok(())
    } else {
        Err(ForeignImage { found, expected })
    }
}
