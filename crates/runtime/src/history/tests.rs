//! A history of real signatures, and each way of changing it.

use fednode_core::membership::{Certificate, Ruling};
use fednode_core::{
    ADVERT_LIFE, Advert, AdvertId, Averaging, BlobRef, Body, Fault, FederationSpec, Global,
    Lineage, Local, Member, Removal, Removed, Role, Round, Rule, Sequence, SignedAdvert, Timestamp,
    Weighting, Withdraw,
};
use fednode_net::{Identity, MemberBook};
use fednode_store::ledger::KeptRound;
use fednode_store::{Ledger, Options, Store};
use tempfile::TempDir;

use super::*;
use crate::joining::SPEC_FILE;

const NOW: Timestamp = Timestamp(1_700_000_000_000);

/// A federation of two members with an organiser, and the state folder of one of them.
struct World {
    folder: TempDir,
    spec: FederationSpec,
    organiser: Identity,
    members: Vec<Identity>,
}

impl World {
    fn new() -> Self {
        let organiser = Identity::generate();
        let mut spec = FederationSpec {
            nodes: 2,
            organiser: Some(organiser.node_id()),
            ..FederationSpec::default()
        };
        spec.exchange.averaging = Some(Averaging {
            weighting: Weighting::Samples,
            rule: Rule::default(),
        });
        let mut members = vec![Identity::generate(), Identity::generate()];
        members.sort_by_key(Identity::node_id);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(SPEC_FILE), spec.to_toml()).unwrap();
        let book = MemberBook::new(organiser.node_id());
        for (member, name) in members.iter().zip(["ward-a", "ward-b"]) {
            let certificate = Certificate {
                node: member.node_id(),
                name: name.parse().unwrap(),
                role: Role::Node,
                not_after: Timestamp(NOW.0 + 1000),
            };
            book.say(&organiser, NOW, Ruling::Admit(certificate))
                .unwrap();
        }
        book.save(&folder.path().join("members")).unwrap();
        Self {
            folder,
            spec,
            organiser,
            members,
        }
    }

    fn store(&self) -> Store {
        let options = Options {
            reserve_bytes: 0,
            ..Options::default()
        };
        Store::open(self.folder.path(), self.spec.id(), &options).unwrap()
    }

    fn advert(&self, author: &Identity, round: u32, body: Body) -> (Advert, SignedAdvert) {
        let advert = Advert {
            federation: self.spec.id(),
            author: author.node_id(),
            sequence: Sequence {
                incarnation: 1,
                counter: 2 * u64::from(round) + u64::from(matches!(body, Body::Global(_))),
            },
            round: Round(round),
            issued_at: NOW,
            expires_at: NOW + ADVERT_LIFE,
            body,
        };
        let signed = author.seal(&advert);
        (advert, signed)
    }

    /// Returns what both members say of a round that follows this one, with 100 and 300 samples, and its closing.
    fn round(
        &self,
        round: u32,
        previous: Option<&Global>,
    ) -> ([(Advert, SignedAdvert); 2], Global) {
        let follows = previous.map(|global| global.id(Round(round - 1)));
        let parent = previous.map_or(Lineage::from_bytes([0; 32]), |global| global.mean.id);
        let said = [(0, 100), (1, 300)].map(|(member, n_samples)| {
            let local = Local {
                shared: Some(BlobRef::of(&[member as u8, round as u8])),
                follows,
                ..Local::new(parent, n_samples)
            };
            self.advert(&self.members[member], round, Body::Local(local))
        });
        let counted = said
            .iter()
            .zip([100.0, 300.0])
            .map(|((advert, signed), weight)| {
                let Body::Local(local) = &advert.body else {
                    unreachable!("both are updates")
                };
                Member {
                    node: advert.author,
                    shared: local.shared.unwrap(),
                    weight,
                    advert: signed.id(),
                }
            });
        let global = Global {
            members: counted.collect(),
            mean: BlobRef::of(&[9, round as u8]),
            parent,
            previous: follows,
            unmasked: Vec::new(),
            slices: Vec::new(),
        };
        (said, global)
    }

    /// Plays rounds into the ledger as a running node does, and returns their closings.
    fn play(&self, ledger: &Ledger, rounds: u32) -> Vec<Global> {
        let mut historian = Historian::default();
        let mut closings: Vec<Global> = Vec::new();
        for round in 1..=rounds {
            let (said, global) = self.round(round, closings.last());
            for (advert, signed) in &said {
                ledger.remember_advert(advert, signed).unwrap();
            }
            let id = global.id(Round(round));
            let (advert, signed) = self.advert(&self.members[0], round, Body::from(global.clone()));
            // Every other round is closed by the node itself: its announcement comes after the note.
            if round.is_multiple_of(2) {
                historian.follows(ledger, &[id]).unwrap();
            }
            ledger.remember_advert(&advert, &signed).unwrap();
            historian.heard(ledger, &advert, &signed).unwrap();
            if !round.is_multiple_of(2) {
                historian.follows(ledger, &[id]).unwrap();
            }
            closings.push(global);
        }
        closings
    }

    /// Returns the verdict on a closing of round 1 that is kept with these updates.
    fn verdict(&self, closing: SignedAdvert, counted: &[SignedAdvert]) -> Verdict {
        let store = self.store();
        let nodes = self.members.iter().map(Identity::node_id);
        let kept = KeptRound {
            round: Round(1),
            closing: Some(closing),
            updates: nodes.zip(counted.iter().cloned()).collect(),
            words: Vec::new(),
        };
        store.ledger.keep_round(&kept).unwrap();
        drop(store);
        self.only_round().verdict
    }

    /// Returns what is found of the only round that is kept.
    fn only_round(&self) -> AuditedRound {
        let mut rounds = audit(self.folder.path()).unwrap().rounds;
        assert_eq!(rounds.len(), 1);
        rounds.remove(0)
    }

    fn closing(&self, global: Global) -> SignedAdvert {
        self.advert(&self.members[0], 1, Body::from(global)).1
    }
}

#[test]
fn an_honest_history_is_confirmed_and_linked_from_the_first_round_on() {
    let world = World::new();
    let store = world.store();
    world.play(&store.ledger, 5);
    drop(store);
    let history = audit(world.folder.path()).unwrap();
    let links: Vec<Link> = history.rounds.iter().map(|row| row.link).collect();
    assert_eq!(links[0], Link::First);
    assert_eq!(links[1..], [Link::Linked; 4]);
    assert!(
        history
            .rounds
            .iter()
            .all(|row| row.verdict == Verdict::Confirmed)
    );
    // An announcement and two updates a round.
    assert_eq!((history.signatures, history.statements), (15, 2));
    assert_eq!(history.organiser, Some(world.organiser.node_id()));
}

#[test]
fn what_is_not_kept_is_said_and_convicts_nobody() {
    let world = World::new();
    let store = world.store();
    let closings = world.play(&store.ledger, 2);
    let (said, late) = world.round(4, closings.last());
    let announced = world.advert(&world.members[0], 4, Body::from(late)).1;
    let kept = KeptRound {
        round: Round(4),
        closing: Some(announced),
        updates: vec![(world.members[0].node_id(), said[0].1.clone())],
        words: Vec::new(),
    };
    store.ledger.keep_round(&kept).unwrap();
    drop(store);
    let history = audit(world.folder.path()).unwrap();
    let last = history.rounds.last().unwrap();
    assert_eq!(
        (last.link, &last.verdict),
        (
            Link::Gap,
            &Verdict::Unproven("1 of its updates are not here".to_owned())
        )
    );
    assert_eq!(history.false_rounds().count(), 0);
}

#[test]
fn without_a_mean_the_updates_are_kept_also_those_that_come_late() {
    let world = World::new();
    let store = world.store();
    let mut historian = Historian::default();
    let (said, _) = world.round(1, None);
    let [(first, first_signed), (late, late_signed)] = &said;
    store.ledger.remember_advert(first, first_signed).unwrap();
    historian.ended(&store.ledger, Round(1)).unwrap();
    historian.heard(&store.ledger, late, late_signed).unwrap();
    drop(store);
    let row = world.only_round();
    assert_eq!((row.link, row.members), (Link::NoMean, 2));
    assert_eq!(row.verdict, Verdict::Signed);
    let samples: Vec<u32> = row.updates.iter().map(|update| update.samples).collect();
    assert_eq!(samples.iter().sum::<u32>(), 400);
}

#[test]
fn a_round_that_gets_its_closing_late_keeps_the_updates_that_it_counts() {
    let world = World::new();
    let store = world.store();
    let mut historian = Historian::default();
    let (said, global) = world.round(1, None);
    historian.ended(&store.ledger, Round(1)).unwrap();
    let (announced, signed) = world.advert(&world.members[0], 1, Body::from(global.clone()));
    for (advert, signed) in said.iter().chain([&(announced, signed)]) {
        store.ledger.remember_advert(advert, signed).unwrap();
    }
    let id = global.id(Round(1));
    historian.follows(&store.ledger, &[id]).unwrap();
    // The same member speaks of the round once more.
    let again = Body::Local(Local::new(global.parent, 100));
    let (advert, signed) = world.advert(&world.members[0], 1, again);
    historian.heard(&store.ledger, &advert, &signed).unwrap();
    drop(store);
    let row = world.only_round();
    assert_eq!((row.link, row.verdict), (Link::First, Verdict::Confirmed));
}

#[test]
fn a_changed_history_is_false_and_says_where() {
    let world = World::new();
    let (said, global) = world.round(1, None);
    let updates = said.each_ref().map(|(_, signed)| signed.clone());
    let honest = world.closing(global.clone());
    assert_eq!(world.verdict(honest.clone(), &updates), Verdict::Confirmed);
    let is_false = |closing: SignedAdvert, updates: &[SignedAdvert], words: &str| match world
        .verdict(closing, updates)
    {
        Verdict::False(why) => assert!(why.contains(words), "{why}"),
        other => panic!("{words}: {other:?}"),
    };

    let mut torn = honest.clone();
    torn.payload[40] ^= 1;
    is_false(torn, &updates, "announcement is not signed");

    let mut heavier = global.clone();
    (heavier.members[0].weight, heavier.members[1].weight) = (200.0, 200.0);
    is_false(world.closing(heavier), &updates, "weighs its members");

    let mut exchanged = global.clone();
    exchanged.members[1].shared = BlobRef::of(b"another part");
    is_false(
        world.closing(exchanged),
        &updates,
        "otherwise than that node signed",
    );

    let mut forged = updates.clone();
    forged[1].signature = world.members[0].sign_advert(&forged[1].payload);
    is_false(honest.clone(), &forged, "is not signed");

    is_false(updates[0].clone(), &updates, "closes no round");

    let mut alone = global.clone();
    alone.members.pop();
    is_false(world.closing(alone), &updates, "fewer members");

    let mut twice = global.clone();
    twice.members.push(twice.members[1]);
    is_false(world.closing(twice), &updates, "counted twice");

    is_false(honest.clone(), &[updates[1].clone()], "of another member");

    let stranger = Identity::generate();
    let body = Body::from(global);
    is_false(
        world.advert(&stranger, 1, body).1,
        &updates,
        "was no member",
    );
}

#[test]
fn a_round_that_goes_on_from_another_mean_than_it_follows_is_false() {
    let world = World::new();
    let store = world.store();
    let closings = world.play(&store.ledger, 1);
    let mut other = closings[0].clone();
    let id = other.id(Round(1));
    other.mean = BlobRef::of(b"another mean");
    let (said, mut next) = world.round(2, Some(&other));
    let updates = said.map(|(mut advert, _)| {
        let Body::Local(local) = &mut advert.body else {
            unreachable!("both are updates")
        };
        local.follows = Some(id);
        let author = world
            .members
            .iter()
            .find(|one| one.node_id() == advert.author);
        (advert.author, author.unwrap().seal(&advert))
    });
    next.previous = Some(id);
    for (member, (_, signed)) in next.members.iter_mut().zip(&updates) {
        member.advert = signed.id();
    }
    let kept = KeptRound {
        round: Round(2),
        closing: Some(world.advert(&world.members[0], 2, Body::from(next)).1),
        updates: updates.into(),
        words: Vec::new(),
    };
    store.ledger.keep_round(&kept).unwrap();
    drop(store);
    let history = audit(world.folder.path()).unwrap();
    let why = history.false_rounds().next();
    assert_eq!(why.map(|(round, _)| round), Some(Round(2)));
    assert!(why.unwrap().1.contains("another mean"), "{why:?}");
}

#[test]
fn who_was_revoked_before_it_signed_is_unproven_and_convicts_nobody() {
    let world = World::new();
    world.play(&world.store().ledger, 1);
    let file = world.folder.path().join("members");
    let organiser = world.organiser.node_id();
    let book = MemberBook::load(&file, organiser).unwrap();
    let long_before = Timestamp(NOW.0 - 3_600_000);
    let gone = world.members[1].node_id();
    book.say(&world.organiser, long_before, Ruling::Revoke(gone))
        .unwrap();
    book.save(&file).unwrap();
    let row = world.only_round();
    match &row.verdict {
        Verdict::Unproven(why) => assert!(why.contains("revoked"), "{why}"),
        other => panic!("{other:?}"),
    }
    // The chain is what members signed, so it goes on.
    assert_eq!((row.link, row.updates.len()), (Link::First, 2));

    // What is unproven hides nothing that is false.
    let (said, mut heavier) = world.round(1, None);
    heavier.members[0].weight = 200.0;
    let verdict = world.verdict(world.closing(heavier), &said.map(|(_, signed)| signed));
    assert!(matches!(verdict, Verdict::False(_)), "{verdict:?}");
}

#[test]
fn only_the_organiser_of_the_federation_says_who_was_a_member() {
    let world = World::new();
    world.play(&world.store().ledger, 1);
    let file = world.folder.path().join("members");
    let usurper = Identity::generate();
    let book = MemberBook::new(usurper.node_id());
    let revoked = Identity::generate().node_id();
    book.say(&usurper, NOW, Ruling::Revoke(revoked)).unwrap();
    std::fs::remove_file(&file).unwrap();
    let refused = audit(world.folder.path()).unwrap_err().to_string();
    assert!(refused.contains("has no `members`"), "{refused}");
    book.save(&file).unwrap();
    let refused = audit(world.folder.path()).unwrap_err();
    assert!(matches!(refused, HistoryError::Members(_)), "{refused}");
}

#[test]
fn a_complete_round_is_not_replaced_when_it_is_looked_at_again() {
    let world = World::new();
    let store = world.store();
    let closings = world.play(&store.ledger, 1);
    // After a restart, and after so many adverts that the updates of the round are no longer among the newest.
    for round in 50..90 {
        let (said, _) = world.round(round, None);
        for (advert, signed) in &said[..1] {
            store.ledger.remember_advert(advert, signed).unwrap();
        }
    }
    let id = closings[0].id(Round(1));
    Historian::default().follows(&store.ledger, &[id]).unwrap();
    Historian::default().ended(&store.ledger, Round(1)).unwrap();
    drop(store);
    assert_eq!(world.only_round().verdict, Verdict::Confirmed);
}

#[test]
fn closed_rounds_that_were_followed_at_once_are_all_kept() {
    let world = World::new();
    let store = world.store();
    let mut closings: Vec<Global> = Vec::new();
    let mut chain = Vec::new();
    for round in 1..=3 {
        let (said, global) = world.round(round, closings.last());
        let announced = world.advert(&world.members[0], round, Body::from(global.clone()));
        for (advert, signed) in said.iter().chain([&announced]) {
            store.ledger.remember_advert(advert, signed).unwrap();
        }
        chain.insert(0, global.id(Round(round)));
        closings.push(global);
    }
    Historian::default().follows(&store.ledger, &chain).unwrap();
    drop(store);
    let history = audit(world.folder.path()).unwrap();
    let links: Vec<Link> = history.rounds.iter().map(|row| row.link).collect();
    assert_eq!(links, [Link::First, Link::Linked, Link::Linked]);
}

#[test]
fn another_spec_than_the_rounds_were_played_by_is_refused() {
    let world = World::new();
    world.play(&world.store().ledger, 1);
    let mut other = world.spec.clone();
    other.organiser = None;
    std::fs::write(world.folder.path().join(SPEC_FILE), other.to_toml()).unwrap();
    let refused = audit(world.folder.path()).unwrap_err().to_string();
    assert!(refused.contains("another federation"), "{refused}");
}

#[test]
fn faults_that_members_tell_are_listed() {
    let world = World::new();
    let store = world.store();
    let fault = Fault {
        accused: world.members[1].node_id(),
        evidence: AdvertId::of(b"its closing"),
        actual: BlobRef::of(b"the true mean").id,
        slice: None,
    };
    let (advert, signed) = world.advert(&world.members[0], 3, Body::Fault(fault.clone()));
    store.ledger.remember_advert(&advert, &signed).unwrap();
    drop(store);
    let told = ToldFault {
        round: Round(3),
        by: world.members[0].node_id(),
        accused: fault.accused,
        evidence: fault.evidence,
    };
    assert_eq!(audit(world.folder.path()).unwrap().faults, [told]);
}

#[test]
fn a_withdrawal_says_who_has_deleted_it_who_keeps_some_and_who_is_silent() {
    let world = World::new();
    let store = world.store();
    let closings = world.play(&store.ledger, 2);
    let [owner, other] = [0, 1].map(|member| &world.members[member]);
    let taken: Vec<_> = closings
        .iter()
        .map(|global| global.members[0].shared.id)
        .collect();
    let remember = |author: &Identity, counter: u64, body: Body| {
        let (mut advert, _) = world.advert(author, 2, body);
        advert.sequence.counter = counter;
        let signed = author.seal(&advert);
        store.ledger.remember_advert(&advert, &signed).unwrap();
        signed.id()
    };
    let blobs = taken.clone();
    let withdrawn = remember(owner, 90, Body::Withdraw(Withdraw { blobs }));
    let answer = |author: &Identity, counter: u64, kept: u32| {
        let removals = vec![Removal {
            owner: owner.node_id(),
            withdrawn,
            kept,
        }];
        remember(author, counter, Body::Removed(Removed { removals }));
    };
    let found = || {
        let mut all = audit(world.folder.path()).unwrap().withdrawals;
        assert_eq!(all.len(), 1);
        all.remove(0)
    };
    let silent = found();
    assert_eq!((silent.owner, silent.round), (owner.node_id(), Round(2)));
    assert_eq!(silent.blobs, taken);
    assert_eq!(silent.silent, [other.node_id()]);

    answer(other, 91, 2);
    // The word of a stranger is none.
    answer(&Identity::generate(), 92, 0);
    let partly = found();
    assert_eq!((partly.answers.len(), partly.answers[0].kept), (1, 2));
    assert!(partly.silent.is_empty());

    answer(other, 93, 0);
    let gone = found();
    assert_eq!(
        (gone.answers[0].by, gone.answers[0].kept),
        (other.node_id(), 0)
    );
    assert!(gone.counted_in.is_empty());
}

#[test]
fn a_later_round_that_counts_what_was_taken_back_is_said() {
    let world = World::new();
    let store = world.store();
    let closings = world.play(&store.ledger, 3);
    let owner = &world.members[0];
    let blobs = vec![closings[2].members[0].shared.id];
    let (mut advert, _) = world.advert(owner, 2, Body::Withdraw(Withdraw { blobs }));
    advert.sequence.counter = 90;
    let signed = owner.seal(&advert);
    store.ledger.remember_advert(&advert, &signed).unwrap();
    drop(store);
    let history = audit(world.folder.path()).unwrap();
    assert_eq!(history.withdrawals[0].counted_in, [Round(3)]);
}
