//! The names of closings are hashes that members sign and checkpoints hold: another form would split every running federation.
#![allow(clippy::unwrap_used)]

use fednode_core::{AdvertId, BlobId, BlobRef, ClosingId, Global, Member, NodeId, Round};

fn blob(n: u8) -> BlobRef {
    BlobRef {
        id: BlobId::from_bytes([n; 32]),
        size: u64::from(n) << 20,
    }
}

fn closing() -> Global {
    let member = |n: u8| Member {
        node: NodeId::from_bytes([n; 32]),
        shared: blob(100 + n),
        weight: f64::from(n) + 0.5,
        advert: AdvertId::from_bytes([200 + n; 32]),
    };
    Global {
        members: (1..=40).map(member).collect(),
        mean: blob(50),
        parent: blob(51).id,
        previous: Some(ClosingId::from_bytes([7; 32])),
        unmasked: Vec::new(),
        slices: Vec::new(),
    }
}

/// The name as it was defined first: field by field.
fn name(global: &Global, round: u32) -> ClosingId {
    let mut hasher = blake3::Hasher::new_derive_key("fednode closing 1");
    for number in [
        u64::from(round),
        global.members.len() as u64,
        global.mean.size,
    ] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(global.mean.id.as_bytes());
    hasher.update(global.parent.as_bytes());
    hasher.update(&global.previous.map_or([0; 32], |id| *id.as_bytes()));
    for member in &global.members {
        hasher.update(member.node.as_bytes());
        hasher.update(member.shared.id.as_bytes());
        hasher.update(&member.shared.size.to_le_bytes());
        hasher.update(&member.weight.to_bits().to_le_bytes());
        hasher.update(member.advert.as_bytes());
    }
    let mut words = |words: &[(NodeId, AdvertId)], mark: &[u8]| {
        hasher.update(mark);
        for (node, advert) in words {
            hasher.update(node.as_bytes()).update(advert.as_bytes());
        }
    };
    words(&global.unmasked, b"");
    if !global.slices.is_empty() {
        words(&global.slices, b"slices");
    }
    ClosingId::from_bytes(*hasher.finalize().as_bytes())
}

#[test]
fn a_closing_has_the_name_that_it_always_had() {
    let word = |n: u8| (NodeId::from_bytes([n; 32]), AdvertId::from_bytes([n; 32]));
    let mut global = closing();
    assert_eq!(global.id(Round(3)), name(&global, 3));
    assert_ne!(global.id(Round(3)), global.id(Round(4)));
    global.unmasked = vec![word(1), word(2)];
    assert_eq!(global.id(Round(3)), name(&global, 3));
    global.slices = vec![word(3), word(4)];
    assert_eq!(global.id(Round(3)), name(&global, 3));
    global.previous = None;
    assert_eq!(global.id(Round(1)), name(&global, 1));
}
