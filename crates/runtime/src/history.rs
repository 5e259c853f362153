//! The signed history of a federation: kept by every member as rounds close, and checked by whoever has the state folder.
//!
//! ```text
//!   running      a round closes ─► Historian ─► ledger: the closing, and the update of every member that it counts
//!   any time     state folder ─► audit ─► a verdict on each round: signed, linked, counted as its members said
//! ```
//!
//! An audit believes nothing but signatures. It needs no network, no data, and neither the node nor its key.

use std::collections::BTreeMap;
use std::path::Path;

use fednode_core::{
    Accepted, Advert, AdvertId, BlobId, Body, ClosingId, FederationId, FederationSpec, Global,
    Member, NodeId, Round, Schedule, SignedAdvert, Timestamp,
};
use fednode_engine::certificate::{self, Confirmation};
use fednode_net::{MemberBook, MembershipError};
use fednode_store::ledger::KeptRound;
use fednode_store::{Ledger, LedgerError, OpenError, Store};
use serde::Serialize;

use crate::joining::SPEC_FILE;
use crate::membership;

/// Rounds of which an advert may still be on its way to the ledger.
const AWAITED: usize = 8;

/// Copies rounds that are over into the history.
///
/// A node that closes a round itself notes that before its announcement is signed. So the announcement is waited for. Where no
/// mean is common to all, nobody waits for the updates of others, and they come late.
#[derive(Debug, Default)]
pub(crate) struct Historian {
    /// The closing that is waited for; nothing where updates are.
    awaited: BTreeMap<Round, Option<ClosingId>>,
}

impl Historian {
    /// A round was closed.
    pub(crate) fn closed(
        &mut self,
        ledger: &Ledger,
        round: Round,
        closing: ClosingId,
    ) -> Result<(), LedgerError> {
        // A node that went on alone may follow a closing of that round after all. Then its updates are those that count.
        self.awaited.remove(&round);
        for said in ledger.adverts_of("global", Some(round))? {
            // The disk is believed no more than a peer.
            let Ok(advert) = fednode_net::verify(&said) else {
                continue;
            };
            if let Some(global) = announces(&advert, closing) {
                return keep(ledger, round, &said, global);
            }
        }
        self.wait_for(round, Some(closing));
        Ok(())
    }

    /// A round is over without a mean in common.
    pub(crate) fn ended(&mut self, ledger: &Ledger, round: Round) -> Result<(), LedgerError> {
        let mut updates = BTreeMap::new();
        for said in ledger.adverts_of("local", Some(round))? {
            if let Ok(advert) = fednode_net::verify(&said) {
                updates.insert(advert.author, said);
            }
        }
        ledger.keep_round(&KeptRound {
            round,
            closing: None,
            updates: updates.into_iter().collect(),
        })?;
        self.wait_for(round, None);
        Ok(())
    }

    fn wait_for(&mut self, round: Round, closing: Option<ClosingId>) {
        self.awaited.insert(round, closing);
        if self.awaited.len() > AWAITED {
            self.awaited.pop_first();
        }
    }

    /// An advert was accepted, or said by this node.
    pub(crate) fn heard(
        &mut self,
        ledger: &Ledger,
        advert: &Advert,
        said: &SignedAdvert,
    ) -> Result<(), LedgerError> {
        match self.awaited.get(&advert.round) {
            None => Ok(()),
            Some(None) if matches!(advert.body, Body::Local(_)) => {
                ledger.keep_update(advert.round, advert.author, said)
            }
            Some(None) => Ok(()),
            Some(Some(closing)) => {
                let Some(global) = announces(advert, *closing) else {
                    return Ok(());
                };
                keep(ledger, advert.round, said, global)?;
                self.awaited.remove(&advert.round);
                Ok(())
            }
        }
    }
}

/// Returns what an advert says if it announces this closing.
fn announces(advert: &Advert, closing: ClosingId) -> Option<&Global> {
    match &advert.body {
        Body::Global(global) if global.id(advert.round) == closing => Some(global),
        _ => None,
    }
}

fn keep(
    ledger: &Ledger,
    round: Round,
    closing: &SignedAdvert,
    global: &Global,
) -> Result<(), LedgerError> {
    let mut updates = Vec::new();
    for member in &global.members {
        if let Some(advert) = ledger.advert(member.node, member.advert)? {
            updates.push((member.node, advert));
        }
    }
    ledger.keep_round(&KeptRound {
        round,
        closing: Some(closing.clone()),
        updates,
    })
}

/// Tells why a history cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The state folder.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Its book of members.
    #[error(transparent)]
    Members(#[from] MembershipError),
    /// Its spec.
    #[error("`{SPEC_FILE}` of the state folder cannot be used: {0}")]
    Spec(String),
}

/// What an audit found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct History {
    /// Which federation.
    pub federation: FederationId,
    /// Whose word makes members; nobody's in an open federation.
    pub organiser: Option<NodeId>,
    /// Signed statements of the organiser that were checked.
    pub statements: u64,
    /// Signatures of adverts that were checked and are good.
    pub signatures: u64,
    /// The rounds that are over, in order.
    pub rounds: Vec<AuditedRound>,
    /// The newest faults that members have told of others.
    pub faults: Vec<ToldFault>,
}

/// A round that is over, and what its signatures prove.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditedRound {
    /// Which round.
    pub round: Round,
    /// Who closed it; nobody where no mean is common to all, or if the announcement is no advert.
    pub closed_by: Option<NodeId>,
    /// When, by the clock of whoever announced it.
    pub at: Option<Timestamp>,
    /// How many members it counts; of how many an update was heard, where there is no mean.
    pub members: usize,
    /// The mean that it names.
    pub mean: Option<BlobId>,
    /// Whether it goes on from the kept round before.
    pub link: Link,
    /// What its members' signatures say.
    pub verdict: Verdict,
}

/// How a closed round stands to the one before it in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// It is the first of the federation.
    First,
    /// It names the kept round before it.
    Linked,
    /// The round that it names is not kept here: this node was away, went over from another chain, or kept less.
    Gap,
    /// No mean is common to all, so it is not part of the chain.
    NoMean,
}

/// What is proven of a closed round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "is", content = "detail")]
pub enum Verdict {
    /// Every member that it counts signed what it is counted with; where there is no mean, what it published.
    Confirmed,
    /// The adverts of so many members are not kept here, so nothing contradicts it and not all of it is proven.
    Incomplete(usize),
    /// A signature contradicts it, or is missing where one must be.
    False(String),
}

/// What a member has told of another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ToldFault {
    /// In which round.
    pub round: Round,
    /// Who told it.
    pub by: NodeId,
    /// Of whom.
    pub accused: NodeId,
    /// The advert that is said to be false.
    pub evidence: AdvertId,
}

impl History {
    /// Returns the rounds that a signature contradicts, and why.
    pub fn false_rounds(&self) -> impl Iterator<Item = (Round, &str)> {
        self.rounds.iter().filter_map(|row| match &row.verdict {
            Verdict::False(why) => Some((row.round, why.as_str())),
            Verdict::Confirmed | Verdict::Incomplete(_) => None,
        })
    }
}

/// Checks the history in a state folder. Nothing in it is changed, and the node may be running. Blocks.
///
/// # Errors
/// Fails if the folder, its ledger, its spec or its book of members cannot be read.
pub fn audit(state: &Path) -> Result<History, HistoryError> {
    let store = Store::open_read_only(state)?;
    let federation = store.folder.federation();
    let spec = spec_of(state, federation)?;
    let book = membership::look(state)?;
    let mut auditor = Auditor {
        schedule: Schedule::of(&spec),
        federation,
        book: book.as_ref().filter(|_| spec.organiser.is_some()),
        signatures: 0,
        before: None,
        spec: &spec,
    };
    let mut rounds = Vec::new();
    for round in store.ledger.kept_rounds()? {
        // A running node may have dropped it since.
        if let Some(kept) = store.ledger.kept_round(round)? {
            rounds.push(auditor.look_at(&kept));
        }
    }
    let faults = auditor.faults(&store.ledger)?;
    Ok(History {
        federation: auditor.federation,
        organiser: spec.organiser,
        statements: auditor.book.map_or(0, |book| book.after(0).len() as u64),
        signatures: auditor.signatures,
        rounds,
        faults,
    })
}

/// Reads the spec. Its hash is the federation's name, so a changed one is found out.
fn spec_of(state: &Path, federation: FederationId) -> Result<FederationSpec, HistoryError> {
    let unusable = |error: String| HistoryError::Spec(error);
    let text = std::fs::read_to_string(state.join(SPEC_FILE))
        .map_err(|error| unusable(error.to_string()))?;
    let spec = FederationSpec::from_toml(&text).map_err(|error| unusable(error.to_string()))?;
    if spec.id() != federation {
        let text = "it is of another federation than the rounds: copy the whole folder again";
        return Err(unusable(text.to_owned()));
    }
    Ok(spec)
}

/// Checks one round after the other.
struct Auditor<'a> {
    spec: &'a FederationSpec,
    schedule: Schedule,
    federation: FederationId,
    book: Option<&'a MemberBook>,
    signatures: u64,
    /// The closing before.
    before: Option<ClosingId>,
}

impl Auditor<'_> {
    fn look_at(&mut self, kept: &KeptRound) -> AuditedRound {
        let mut row = AuditedRound {
            round: kept.round,
            closed_by: None,
            at: None,
            members: kept.updates.len(),
            mean: None,
            link: Link::NoMean,
            verdict: Verdict::Confirmed,
        };
        let verdict = match &kept.closing {
            None => self.accept_all(kept).map(|_| Verdict::Confirmed),
            Some(closing) => self.look_at_closing(kept, closing, &mut row),
        };
        row.verdict = verdict.unwrap_or_else(Verdict::False);
        row
    }

    /// Looks at the announcement of a closing, and holds its members against what they signed.
    fn look_at_closing(
        &mut self,
        kept: &KeptRound,
        closing: &SignedAdvert,
        row: &mut AuditedRound,
    ) -> Result<Verdict, String> {
        row.link = Link::Gap;
        let before = self.before.take();
        let announced = self
            .accept(closing)
            .map_err(|why| format!("its announcement {why}"))?;
        (row.closed_by, row.at) = (Some(announced.author), Some(announced.issued_at));
        let Body::Global(global) = &announced.body else {
            return Err("its announcement closes no round".to_owned());
        };
        (row.members, row.mean) = (global.members.len(), Some(global.mean.id));
        row.link = match (global.previous, before) {
            (None, None) => Link::First,
            (Some(named), Some(before)) if named == before => Link::Linked,
            _ => Link::Gap,
        };
        self.before = Some(global.id(announced.round));
        if announced.round != kept.round {
            return Err(format!("its announcement closes round {}", announced.round));
        }
        let signed = self.accept_all(kept)?;
        let of = |member: &Member| signed.get(&member.advert);
        match certificate::confirm(self.spec, &self.schedule, (kept.round, global), of) {
            Confirmation::Full => Ok(Verdict::Confirmed),
            Confirmation::Lacking(members) if members.is_empty() => {
                Err("most of its members signed for an earlier round".to_owned())
            }
            Confirmation::Lacking(members) => Ok(Verdict::Incomplete(members.len())),
            Confirmation::False(why) => Err(why),
        }
    }

    /// Checks the updates of a round.
    fn accept_all(&mut self, kept: &KeptRound) -> Result<BTreeMap<AdvertId, Accepted>, String> {
        let accept = |(author, said): &(NodeId, SignedAdvert)| {
            let accepted = self.accept(said);
            let accepted =
                accepted.map_err(|why| format!("the update of {} {why}", author.short()))?;
            Ok((accepted.id, accepted))
        };
        kept.updates.iter().map(accept).collect()
    }

    /// Checks the signature of an advert, and that its author might say it in this federation.
    fn accept(&mut self, said: &SignedAdvert) -> Result<Accepted, String> {
        let advert =
            fednode_net::verify(said).map_err(|error| format!("is not signed: {error}"))?;
        self.signatures += 1;
        if advert.federation != self.federation {
            return Err(format!("is of another federation ({})", advert.federation));
        }
        let is_member = self
            .book
            .is_none_or(|book| book.may_have_said(&advert.author, advert.issued_at));
        if !is_member {
            let author = advert.author.short();
            return Err(format!("is of {author}, who was no member then"));
        }
        Ok(Accepted {
            id: said.id(),
            advert,
        })
    }

    /// Returns the faults of which a signed advert is remembered.
    fn faults(&mut self, ledger: &Ledger) -> Result<Vec<ToldFault>, LedgerError> {
        let mut faults = Vec::new();
        for said in ledger.adverts_of("fault", None)? {
            let Ok(advert) = self.accept(&said) else {
                continue;
            };
            if let Body::Fault(fault) = &advert.body {
                faults.push(ToldFault {
                    round: advert.round,
                    by: advert.author,
                    accused: fault.accused,
                    evidence: fault.evidence,
                });
            }
        }
        faults.sort_unstable();
        Ok(faults)
    }
}

#[cfg(test)]
mod tests;
