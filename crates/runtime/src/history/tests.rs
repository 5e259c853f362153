//! A history of real signatures, and each way of changing it.

use fednode_core::membership::{Certificate, Ruling};
use fednode_core::{Averaging, BlobRef, Fault, Lineage, Local, Role, Rule, Sequence, Weighting};
use fednode_net::Identity;
use fednode_store::Options;
use tempfile::TempDir;

use super::*;

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
            expires_at: Timestamp(NOW.0 + 1000),
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
            let (advert, signed) =
                self.advert(&self.members[0], round, Body::Global(global.clone()));
            // Every other round is closed by the node itself: its announcement comes after the note.
            if round.is_multiple_of(2) {
                historian.closed(ledger, Round(round), id).unwrap();
            }
            ledger.remember_advert(&advert, &signed).unwrap();
            historian.heard(ledger, &advert, &signed).unwrap();
            if !round.is_multiple_of(2) {
                historian.closed(ledger, Round(round), id).unwrap();
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
        };
        store.ledger.keep_round(&kept).unwrap();
        drop(store);
        audit(self.folder.path()).unwrap().rounds.remove(0).verdict
    }

    fn closing(&self, global: Global) -> SignedAdvert {
        self.advert(&self.members[0], 1, Body::Global(global)).1
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
    let announced = world.advert(&world.members[0], 4, Body::Global(late)).1;
    let kept = KeptRound {
        round: Round(4),
        closing: Some(announced),
        updates: vec![(world.members[0].node_id(), said[0].1.clone())],
    };
    store.ledger.keep_round(&kept).unwrap();
    drop(store);
    let history = audit(world.folder.path()).unwrap();
    let last = history.rounds.last().unwrap();
    assert_eq!(
        (last.link, &last.verdict),
        (Link::Gap, &Verdict::Incomplete(1))
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
    let history = audit(world.folder.path()).unwrap();
    let row = &history.rounds[0];
    assert_eq!((row.link, row.members), (Link::NoMean, 2));
    assert_eq!((&row.verdict, history.signatures), (&Verdict::Confirmed, 2));
}

#[test]
fn a_round_that_gets_its_closing_late_keeps_the_updates_that_it_counts() {
    let world = World::new();
    let store = world.store();
    let mut historian = Historian::default();
    let (said, global) = world.round(1, None);
    historian.ended(&store.ledger, Round(1)).unwrap();
    let (announced, signed) = world.advert(&world.members[0], 1, Body::Global(global.clone()));
    for (advert, signed) in said.iter().chain([&(announced, signed)]) {
        store.ledger.remember_advert(advert, signed).unwrap();
    }
    let id = global.id(Round(1));
    historian.closed(&store.ledger, Round(1), id).unwrap();
    // The same member speaks of the round once more.
    let again = Body::Local(Local::new(global.parent, 100));
    let (advert, signed) = world.advert(&world.members[0], 1, again);
    historian.heard(&store.ledger, &advert, &signed).unwrap();
    drop(store);
    let history = audit(world.folder.path()).unwrap();
    assert_eq!(history.rounds.len(), 1);
    let row = &history.rounds[0];
    assert_eq!((row.link, &row.verdict), (Link::First, &Verdict::Confirmed));
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

    let stranger = Identity::generate();
    let body = Body::Global(global);
    is_false(
        world.advert(&stranger, 1, body).1,
        &updates,
        "was no member",
    );
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
