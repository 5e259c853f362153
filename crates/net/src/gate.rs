//! The advert gate: every check of an advert that needs no memory of earlier adverts, off the swarm task.
//!
//! ```text
//!   bytes ─ size ─ decode ─ signature ─ author allowed ─ federation, time, bounds ─► book (duplicate? flood?) ─► accept
//!            │        │          │              │                   │                     in the swarm task
//!          reject   reject     reject         ignore         reject, or ignore if an honest node may have sent it
//! ```
//!
//! One task judges one candidate at a time, in order, on a thread for blocking work. A signature over 64 KiB takes longer
//! than the swarm task may be held up.

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::{
    Advert, AdvertError, FederationId, FederationSpec, MAX_ADVERT_BYTES, NodeId, SignedAdvert,
    Timestamp,
};
use libp2p::PeerId;
use libp2p::gossipsub::{MessageId, TopicHash};
use tokio::sync::mpsc;

use crate::codec::{self, CodecError};
use crate::identity::{self, VerifyError};
use crate::membership::MemberBook;

/// Largest signed advert on the wire: the advert, its signature and the names of both fields.
pub(crate) const MAX_SIGNED_BYTES: usize = MAX_ADVERT_BYTES + 128;
/// Candidates that may wait. A full queue means "ignore", and sync repairs that.
pub(crate) const GATE_QUEUE: usize = 64;

/// The message of gossip that an advert came in. It waits for a verdict.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) id: MessageId,
    /// The peer that passed it on, who need not be its author.
    pub(crate) source: PeerId,
    pub(crate) topic: TopicHash,
}

/// Adverts to be checked.
#[derive(Debug)]
pub(crate) enum Candidate {
    /// An advert from gossip.
    Gossip { origin: Origin, bytes: Vec<u8> },
    /// The adverts of a sync reply.
    Sync {
        peer: NodeId,
        adverts: Vec<SignedAdvert>,
        more: bool,
    },
}

/// Adverts that were checked.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the largest, one from gossip, is the commonest"
)]
pub(crate) enum Checked {
    /// An advert from gossip.
    Gossip {
        origin: Origin,
        outcome: Result<(SignedAdvert, Advert), Objection>,
    },
    /// The adverts of a sync reply, in order.
    Sync {
        peer: NodeId,
        outcomes: Vec<Result<(SignedAdvert, Advert), Objection>>,
        more: bool,
    },
}

/// Tells why an advert is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Objection {
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error(transparent)]
    Verify(#[from] VerifyError),
    #[error("its author {0} is not on the allow-list")]
    NotAllowed(NodeId),
    #[error("its author {0} was no member when it was said")]
    NoMember(NodeId),
    #[error("{0}: {1}")]
    Stamped(NodeId, AdvertError),
    #[error(transparent)]
    Check(AdvertError),
    /// Its day is over. Who asked for it by name takes it all the same.
    #[error("an advert of {author} that expired", author = .0.1.author)]
    Late(Box<(SignedAdvert, Advert)>),
}

impl Objection {
    /// Tells whether an honest node might have forwarded the advert. Then it must not lower that node's standing.
    pub(crate) fn is_innocent(&self) -> bool {
        match self {
            Self::Codec(_) | Self::Verify(_) => false,
            // Allow-lists may differ between nodes, so an honest peer may have let the author in.
            Self::NotAllowed(_) => true,
            // Word of a new member and of a revoked one takes its time.
            Self::NoMember(_) => true,
            Self::Late(_) => true,
            Self::Stamped(_, error) | Self::Check(error) => error.is_innocent(),
        }
    }
}

/// The rules by which an advert is judged.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) spec: Arc<FederationSpec>,
    pub(crate) federation: FederationId,
    pub(crate) own: NodeId,
    pub(crate) allow: Option<BTreeSet<NodeId>>,
    pub(crate) members: Option<Arc<MemberBook>>,
}

impl Rules {
    /// Judges one signed advert.
    pub(crate) fn judge(
        &self,
        signed: SignedAdvert,
        now: Timestamp,
    ) -> Result<(SignedAdvert, Advert), Objection> {
        // The signature first: before it, nothing in the advert is known to be its author's word.
        let advert = identity::verify(&signed)?;
        let allowed = |node: &NodeId| self.allow.as_ref().is_none_or(|allow| allow.contains(node));
        if advert.author != self.own && !allowed(&advert.author) {
            return Err(Objection::NotAllowed(advert.author));
        }
        // A member at the time of the advert, not now: closed rounds count what was said before a revocation.
        let is_member =
            |members: &Arc<MemberBook>| members.may_have_said(&advert.author, advert.issued_at);
        if !self.members.as_ref().is_none_or(is_member) {
            return Err(Objection::NoMember(advert.author));
        }
        match advert.check(&self.spec, self.federation, now) {
            Ok(()) => Ok((signed, advert)),
            // Whose clock is wrong is worth a word, and so is who has got further than this member.
            Err(error @ (AdvertError::ClockSkew(_) | AdvertError::Beyond(_))) => {
                Err(Objection::Stamped(advert.author, error))
            }
            Err(AdvertError::Expired) => Err(Objection::Late(Box::new((signed, advert)))),
            Err(error) => Err(Objection::Check(error)),
        }
    }

    fn judge_all(&self, candidate: Candidate, now: Timestamp) -> Checked {
        match candidate {
            Candidate::Gossip { origin, bytes } => {
                let signed = codec::decode(&bytes, MAX_SIGNED_BYTES).map_err(Objection::from);
                Checked::Gossip {
                    origin,
                    outcome: signed.and_then(|signed| self.judge(signed, now)),
                }
            }
            Candidate::Sync {
                peer,
                adverts,
                more,
            } => {
                let outcomes = adverts
                    .into_iter()
                    .map(|signed| self.judge(signed, now))
                    .collect();
                Checked::Sync {
                    peer,
                    outcomes,
                    more,
                }
            }
        }
    }
}

/// Judges candidates until the swarm task ends.
pub(crate) async fn run(
    rules: Arc<Rules>,
    mut candidates: mpsc::Receiver<Candidate>,
    checked: mpsc::Sender<Checked>,
) {
    while let Some(candidate) = candidates.recv().await {
        let (rules, now) = (rules.clone(), crate::clock::now());
        // One at a time: order matters to the book, and hostile adverts cannot take more than one core.
        let judged = tokio::task::spawn_blocking(move || rules.judge_all(candidate, now)).await;
        // A panic in a check ends the gate, and with it the network: adverts must not pass unchecked.
        let Ok(judged) = judged else { return };
        if checked.send(judged).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fednode_core::{ADVERT_LIFE, Body, Round, Sequence};

    use super::*;
    use crate::identity::Identity;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn rules(allow: Option<BTreeSet<NodeId>>) -> Rules {
        let spec = Arc::new(FederationSpec::default());
        Rules {
            federation: spec.id(),
            spec,
            own: NodeId::from_bytes([9; 32]),
            allow,
            members: None,
        }
    }

    fn said(author: &Identity, change: impl FnOnce(&mut Advert)) -> SignedAdvert {
        let mut advert = Advert {
            federation: FederationSpec::default().id(),
            author: author.node_id(),
            sequence: Sequence {
                incarnation: 1,
                counter: 1,
            },
            round: Round(1),
            issued_at: NOW,
            expires_at: NOW + ADVERT_LIFE,
            body: Body::Leave,
        };
        change(&mut advert);
        let payload = codec::encode(&advert);
        SignedAdvert {
            signature: author.sign_advert(&payload),
            payload,
        }
    }

    /// `Some(true)` if refused but innocent, `Some(false)` if refused and guilty.
    fn verdict(rules: &Rules, signed: SignedAdvert) -> Option<bool> {
        rules
            .judge(signed, NOW)
            .err()
            .map(|objection| objection.is_innocent())
    }

    #[test]
    fn only_what_an_honest_node_cannot_send_costs_standing() {
        let (ann, rules) = (Identity::generate(), rules(None));
        assert_eq!(verdict(&rules, said(&ann, |_| ())), None);
        assert_eq!(
            verdict(
                &rules,
                said(&ann, |advert| {
                    advert.expires_at = NOW - Duration::from_millis(1);
                    advert.issued_at = advert.expires_at - ADVERT_LIFE;
                })
            ),
            Some(true),
            "a day old"
        );
        assert_eq!(
            verdict(
                &rules,
                said(&ann, |advert| advert.expires_at =
                    NOW + Duration::from_secs(1))
            ),
            Some(false),
            "a life of its own choice"
        );
        assert_eq!(
            verdict(
                &rules,
                said(&ann, |advert| {
                    advert.issued_at = Timestamp(NOW.0 + 999_000);
                    advert.expires_at = advert.issued_at + ADVERT_LIFE;
                })
            ),
            Some(true)
        );
        assert_eq!(
            verdict(
                &rules,
                said(&ann, |advert| advert.federation =
                    FederationId::from_bytes([1; 32]))
            ),
            Some(false)
        );
        assert_eq!(
            verdict(&rules, said(&ann, |advert| advert.round = Round(9999))),
            Some(false)
        );
        // Where an organiser may have added rounds, who speaks of them may know more than this node; not of any number.
        let extensible = Rules {
            spec: Arc::new(FederationSpec {
                organiser: Some(NodeId::from_bytes([8; 32])),
                ..FederationSpec::default()
            }),
            ..self::rules(None)
        };
        for (round, is_innocent) in [(9999, true), (100_001, false)] {
            assert_eq!(
                verdict(
                    &extensible,
                    said(&ann, |advert| advert.round = Round(round))
                ),
                Some(is_innocent)
            );
        }
        let forged = SignedAdvert {
            signature: vec![1; 64],
            ..said(&ann, |_| ())
        };
        assert_eq!(verdict(&rules, forged), Some(false));
        let garbage = SignedAdvert {
            payload: vec![1; 64],
            signature: vec![1; 64],
        };
        assert_eq!(verdict(&rules, garbage), Some(false));
    }

    #[test]
    fn authors_off_the_allow_list_are_ignored_whoever_relays_them() {
        let (ann, bob) = (Identity::generate(), Identity::generate());
        let rules = rules(Some([ann.node_id()].into()));
        assert_eq!(verdict(&rules, said(&ann, |_| ())), None);
        assert_eq!(verdict(&rules, said(&bob, |_| ())), Some(true));
    }
}
