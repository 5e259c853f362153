//! What the kept rounds prove.

mod signatures;
mod withdrawals;

use std::collections::BTreeMap;
use std::path::Path;

use fednode_core::limits::MOST_ROUNDS;
use fednode_core::{
    Accepted, AdvertId, BlobId, Body, ClosingId, FederationId, FederationSpec, Global, Local,
    Member, NodeId, Round, Schedule, SignedAdvert, Timestamp,
};
use fednode_engine::certificate::{self, Confirmation};
use fednode_engine::masks::{Sum, Sums};
use fednode_net::{MemberBook, MembershipError};
use fednode_store::ledger::KeptRound;
use fednode_store::{Ledger, LedgerError, OpenError, Store};
use serde::Serialize;

use self::signatures::Signatures;
pub use self::withdrawals::{AuditedWithdrawal, RemovalAnswer};
use crate::joining::SPEC_FILE;
use crate::membership;
use crate::organiser::MEMBERS_FILE;

/// Tells why a history cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The state folder.
    #[error(
        "{0}; what an audit needs is the whole folder but `key`, `blobs` and `checkpoints`, in a place that can be written to"
    )]
    Open(#[from] OpenError),
    /// Its ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Its book of members.
    #[error(transparent)]
    Members(#[from] MembershipError),
    /// There is no book of members, and the federation has an organiser.
    #[error(
        "the state folder has no `{MEMBERS_FILE}`, which says who was a member: copy the whole folder again"
    )]
    NoMembers,
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
    /// What members have taken back, oldest first.
    pub withdrawals: Vec<AuditedWithdrawal>,
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
    /// How many members it counts; of how many an update is kept, where there is no mean.
    pub members: usize,
    /// The mean that it names.
    pub mean: Option<BlobId>,
    /// What its members published, as far as it is kept.
    pub updates: Vec<AuditedUpdate>,
    /// Whether it goes on from the kept round before.
    pub link: Link,
    /// What its members' signatures say.
    pub verdict: Verdict,
}

/// What a member published in a round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditedUpdate {
    /// Which member.
    pub node: NodeId,
    /// How many samples it says that it trained on.
    pub samples: u32,
    /// What it weighs in the mean; nothing where there is none.
    pub weight: Option<f64>,
    /// What it published, by hash.
    pub blobs: Vec<BlobId>,
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
    /// Every member that it counts signed what it is counted with.
    Confirmed,
    /// There is no mean, and whatever is kept is signed.
    Signed,
    /// Nothing contradicts it, and not all of it is proven.
    Unproven(String),
    /// What is signed contradicts it, or it is not signed.
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
            Verdict::Confirmed | Verdict::Signed | Verdict::Unproven(_) => None,
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
    let book = spec.organiser.map(|organiser| book_of(state, organiser));
    let book = book.transpose()?;
    let kept = store.ledger.kept_rounds()?;
    // Of an endless federation as many rounds are known as there are.
    let done = match spec.endless {
        true => kept.iter().copied().max().unwrap_or(Round::ZERO),
        false => Round(MOST_ROUNDS),
    };
    let spec = match &book {
        Some(book) => book.extended(&spec, done).spec,
        None => spec.extended_by([], done).spec,
    };
    let mut auditor = Auditor {
        schedule: Schedule::of(&spec),
        signatures: Signatures {
            spec: &spec,
            federation,
            book: book.as_ref(),
            checked: 0,
        },
        before: None,
        sum: None,
        spec: &spec,
    };
    let mut rounds = Vec::new();
    for round in kept {
        // A running node may have dropped it since.
        if let Some(kept) = store.ledger.kept_round(round)? {
            rounds.push(auditor.look_at(&kept));
        }
    }
    let faults = auditor.faults(&store.ledger)?;
    let withdrawals = auditor.withdrawals(&store.ledger, &rounds)?;
    Ok(History {
        federation,
        organiser: spec.organiser,
        statements: book.as_ref().map_or(0, |book| book.after(0).len() as u64),
        signatures: auditor.signatures.checked,
        rounds,
        faults,
        withdrawals,
    })
}

/// Reads the spec. Its hash is the federation's name, so a changed one is found out.
fn spec_of(state: &Path, federation: FederationId) -> Result<FederationSpec, HistoryError> {
    let text = std::fs::read_to_string(state.join(SPEC_FILE))
        .map_err(|error| HistoryError::Spec(error.to_string()))?;
    let spec =
        FederationSpec::from_toml(&text).map_err(|error| HistoryError::Spec(error.to_string()))?;
    if spec.id() != federation {
        let text = "it is of another federation than the rounds: copy the whole folder again";
        return Err(HistoryError::Spec(text.to_owned()));
    }
    Ok(spec)
}

/// Reads what the organiser of this federation has said; the word of another counts nothing.
fn book_of(state: &Path, organiser: NodeId) -> Result<MemberBook, HistoryError> {
    let book = MemberBook::load(&state.join(MEMBERS_FILE), organiser)?;
    if book.reached() == 0 {
        return Err(HistoryError::NoMembers);
    }
    membership::call_by_name(&book);
    Ok(book)
}

/// Why a round is not confirmed.
enum Flaw {
    Unproven(String),
    False(String),
}

impl From<Flaw> for Verdict {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::Unproven(why) => Self::Unproven(why),
            Flaw::False(why) => Self::False(why),
        }
    }
}

impl Flaw {
    /// Says of what it is a flaw.
    fn of(self, what: &str) -> Self {
        match self {
            Self::Unproven(why) => Self::Unproven(format!("{what} {why}")),
            Self::False(why) => Self::False(format!("{what} {why}")),
        }
    }
}

/// Checks one round after the other.
struct Auditor<'a> {
    spec: &'a FederationSpec,
    schedule: Schedule,
    signatures: Signatures<'a>,
    /// The closing before, and its mean.
    before: Option<(ClosingId, BlobId)>,
    /// The masked sum of the round after it, where sums are masked and its members are known.
    sum: Option<Sum>,
}

impl Auditor<'_> {
    fn look_at(&mut self, kept: &KeptRound) -> AuditedRound {
        let mut row = AuditedRound {
            round: kept.round,
            closed_by: None,
            at: None,
            members: kept.updates.len(),
            mean: None,
            updates: Vec::new(),
            link: Link::NoMean,
            verdict: Verdict::Signed,
        };
        let judged = match &kept.closing {
            None => self.look_at_updates(kept, &mut row),
            Some(closing) => self.look_at_closing(kept, closing, &mut row),
        };
        row.verdict = judged.unwrap_or_else(Verdict::from);
        row
    }

    /// Looks at the updates of a round without a mean.
    fn look_at_updates(
        &mut self,
        kept: &KeptRound,
        row: &mut AuditedRound,
    ) -> Result<Verdict, Flaw> {
        let signed = self.verify_updates(kept)?;
        for update in signed.values() {
            let Body::Local(local) = &update.body else {
                return Err(Flaw::False("one of its updates is none".to_owned()));
            };
            if update.round != kept.round {
                let text = format!("one of its updates is of round {}", update.round);
                return Err(Flaw::False(text));
            }
            row.updates.push(published(update, local, None));
        }
        self.signatures.were_members(signed.values())?;
        if row.updates.is_empty() {
            return Err(Flaw::Unproven("no update is here".to_owned()));
        }
        Ok(Verdict::Signed)
    }

    /// Looks at the announcement of a closing, and holds its members against what they signed.
    ///
    /// What is false is looked for first: what is only unproven must not hide it.
    fn look_at_closing(
        &mut self,
        kept: &KeptRound,
        closing: &SignedAdvert,
        row: &mut AuditedRound,
    ) -> Result<Verdict, Flaw> {
        row.link = Link::Gap;
        let (before, sum) = (self.before.take(), self.sum.take());
        let announced = self
            .signatures
            .verify(closing)
            .map_err(|flaw| flaw.of("its announcement"))?;
        (row.closed_by, row.at) = (Some(announced.author), Some(announced.issued_at));
        let Body::Global(global) = &announced.body else {
            return Err(Flaw::False("its announcement closes no round".to_owned()));
        };
        (row.members, row.mean) = (global.members.len(), Some(global.mean.id));
        row.link = match before {
            None if global.previous.is_none() => Link::First,
            Some((id, _)) if global.previous == Some(id) => Link::Linked,
            _ => Link::Gap,
        };
        self.before = Some((global.id(announced.round), global.mean.id));
        if announced.round != kept.round {
            let text = format!("its announcement closes round {}", announced.round);
            return Err(Flaw::False(text));
        }
        let mean_before = before
            .map(|(_, mean)| mean)
            .filter(|_| row.link == Link::Linked);
        if let Some(falsehood) = self.bounds_broken(global, mean_before) {
            return Err(Flaw::False(falsehood.to_owned()));
        }
        let signed = self.verify_updates(kept)?;
        row.updates = counted(global, &signed);
        let of = |member: &Member| signed.get(&member.advert);
        let round = (kept.round, global.as_ref());
        let confirmation = certificate::confirm(self.spec, &self.schedule, round, of);
        if let Confirmation::False(why) = confirmation {
            return Err(Flaw::False(why));
        }
        let words = self.verify_words(kept)?;
        let all = signed.values().chain(words.values());
        self.signatures
            .were_members([&announced].into_iter().chain(all))?;
        if let Confirmation::Lacking(members) = confirmation {
            return Err(lacks(members.len()));
        }
        self.look_at_slices(round, &words)?;
        if let Some(sums) = Sums::of(self.spec, &self.schedule) {
            self.sum = Sum::after(&sums, round, of);
            let sum = sum.filter(|_| row.link == Link::Linked);
            self.look_at_masks((sums, sum), round, &words)?;
        }
        Ok(Verdict::Confirmed)
    }

    /// Holds a closing against the words that name the slices of its mean, if it was averaged in slices.
    fn look_at_slices(
        &self,
        round: (Round, &Global),
        words: &BTreeMap<AdvertId, Accepted>,
    ) -> Result<(), Flaw> {
        let said = |_, word| words.get(&word);
        match certificate::confirm_slices(self.spec, &self.schedule, round, said) {
            Confirmation::Full => Ok(()),
            Confirmation::False(why) => Err(Flaw::False(why)),
            Confirmation::Lacking(words) => {
                let text = format!("{} words that name slices are not here", words.len());
                Err(Flaw::Unproven(text))
            }
        }
    }

    /// Holds a closing of a masked sum against the roster that the closing before fixed, and the words that took masks off.
    fn look_at_masks(
        &self,
        (sums, sum): (Sums, Option<Sum>),
        (round, global): (Round, &Global),
        words: &BTreeMap<AdvertId, Accepted>,
    ) -> Result<(), Flaw> {
        let of_nobody = || Sum::of_nobody(sums.clone(), round);
        let sum = match sum {
            // Masks are for the very next round.
            Some(sum) if sum.round() == round => sum,
            Some(_) => of_nobody(),
            None if global.previous.is_none() => of_nobody(),
            None => {
                let text = "the round before, which says who was in its sum, is not here";
                return Err(Flaw::Unproven(text.to_owned()));
            }
        };
        let said = |_, word| words.get(&word);
        match certificate::confirm_masks(&sum, (round, global), said) {
            Confirmation::Full => Ok(()),
            Confirmation::False(why) => Err(Flaw::False(why)),
            Confirmation::Lacking(words) => {
                let text = format!("{} words that took masks off are not here", words.len());
                Err(Flaw::Unproven(text))
            }
        }
    }

    /// Says which bound a closing breaks that goes on from this mean.
    fn bounds_broken(&self, global: &Global, mean: Option<BlobId>) -> Option<&'static str> {
        if mean.is_some_and(|mean| mean != global.parent) {
            return Some("it goes on from another mean than that of the round before");
        }
        let is_too_small = (global.members.len() as u64) < u64::from(self.spec.fewest_members());
        is_too_small.then_some("it counts fewer members than are needed")
    }

    /// Checks the signatures of the updates of a round.
    fn verify_updates(&mut self, kept: &KeptRound) -> Result<BTreeMap<AdvertId, Accepted>, Flaw> {
        self.signatures.verify_all(&kept.updates, "the update")
    }

    /// Checks the signatures of the words on which a round's mean rests.
    fn verify_words(&mut self, kept: &KeptRound) -> Result<BTreeMap<AdvertId, Accepted>, Flaw> {
        self.signatures
            .verify_all(&kept.words, "the word behind its mean")
    }

    /// Returns the remembered adverts of this kind that are signed by members, by author and in the order of their numbers.
    fn signed(&mut self, ledger: &Ledger, kind: &str) -> Result<Vec<Accepted>, LedgerError> {
        let mut signed = Vec::new();
        for (_, said) in ledger.adverts_of(kind, None)? {
            let Ok(advert) = self.signatures.verify(&said) else {
                continue;
            };
            if self.signatures.were_members([&advert].into_iter()).is_ok() {
                signed.push(advert);
            }
        }
        Ok(signed)
    }

    /// Returns the faults of which a signed advert is remembered.
    fn faults(&mut self, ledger: &Ledger) -> Result<Vec<ToldFault>, LedgerError> {
        let mut faults = Vec::new();
        for advert in self.signed(ledger, "fault")? {
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

/// Says what is not proven of a closing of which so many updates are not here.
fn lacks(updates: usize) -> Flaw {
    Flaw::Unproven(match updates {
        0 => "most of its members signed for an earlier round".to_owned(),
        some => format!("{some} of its updates are not here"),
    })
}

fn published(update: &Accepted, local: &Local, weight: Option<f64>) -> AuditedUpdate {
    AuditedUpdate {
        node: update.author,
        samples: local.n_samples,
        weight,
        blobs: update.body.blobs().iter().map(|blob| blob.id).collect(),
    }
}

/// Returns what the members of a closing published.
fn counted(global: &Global, signed: &BTreeMap<AdvertId, Accepted>) -> Vec<AuditedUpdate> {
    let published = |member: &Member| {
        let update = signed.get(&member.advert)?;
        match &update.body {
            Body::Local(local) => Some(published(update, local, Some(member.weight))),
            _ => None,
        }
    };
    global.members.iter().filter_map(published).collect()
}
