//! What a machine tells the user.

use fednode_core::{ExpertId, NodeId, Round};
use serde::{Deserialize, Serialize};

/// Something a user should know; the daemon logs it and shows it in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Note {
    /// A round begins.
    RoundStarted(Round),
    /// This node is not drawn to train in this round.
    SitsOut(Round),
    /// A round's exchange is complete.
    RoundClosed {
        /// The round.
        round: Round,
        /// Who closed it; `None` if nobody did and the node went on alone.
        by: Option<NodeId>,
        /// How many members were averaged.
        members: u32,
    },
    /// Experts that the plan names did not arrive in time.
    MissingExperts {
        /// The round.
        round: Round,
        /// Which.
        experts: Vec<ExpertId>,
    },
    /// The aggregator is silent and this node acts in its place.
    Acting(Round),
    /// Too few members are reachable; the node trains on alone.
    Isolated(Round),
    /// The federation went on without this node, or a larger part of it was found: the node follows.
    Rejoined {
        /// The round it left.
        from: Round,
        /// The round it goes on with.
        to: Round,
    },
    /// A node signed two different adverts under one number.
    Equivocated(NodeId),
    /// The organiser has revoked this node's membership: nothing that it says from now on counts.
    Revoked(NodeId),
    /// A node signed a false mean.
    CheatFound {
        /// The node.
        node: NodeId,
        /// The round.
        round: Round,
    },
    /// A node lied about its masks.
    LiedAboutMasks {
        /// The node.
        node: NodeId,
        /// The round of the sum.
        round: Round,
        /// What it did.
        reason: String,
    },
    /// A peer seems to have the classes under other names.
    Renamed {
        /// The peer.
        node: NodeId,
        /// Pairs of a class of this node and the peer's class that is like it.
        classes: Vec<(u32, u32)>,
    },
    /// The statistics of a member are left out of the mean.
    Disbelieved {
        /// The round.
        round: Round,
        /// Whose.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// The private modules that can be had are known.
    PoolGathered {
        /// Who shared the last round but has offered none.
        missing: Vec<NodeId>,
        /// Whose module belongs to another shared part, or is of another size.
        strangers: Vec<NodeId>,
    },
    /// All rounds are done.
    Finished,
}
