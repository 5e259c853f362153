//! Blobs: their contents, who holds which, and how they are forgotten.
//!
//! Contents are kept once, however many members hold a blob.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use fednode_core::{BlobId, BlobRef, ParamSet, Precision, ProxySet, Round};
use fednode_engine::names::{NameMap, NameSet};

use crate::history::{Contents, Made};

/// What the bytes of a blob are called that is no parameters.
const BYTES: &str = "bytes";

/// Blobs by the round in which they were made.
type Born = BTreeMap<Round, Vec<BlobId>>;

/// All blobs of a federation.
#[derive(Debug)]
pub(super) struct Blobs {
    contents: Contents,
    /// The proxies among them that were fetched.
    decoded: NameMap<BlobId, Arc<ProxySet>>,
    /// The numbers of what each member holds: thousands of members hold hundreds of blobs, whose names take eight times as much.
    held: Vec<NameSet<u32>>,
    numbers: NameMap<BlobId, u32>,
    /// The number of the next blob.
    next: u32,
    holders: NameMap<BlobId, Vec<u32>>,
    /// The blobs of each round, to forget them when nobody can want them any more.
    born: Born,
    /// Those among them that are averaged are kept apart.
    parts: Born,
    /// Bytes of the parts that were set apart since that was last asked.
    parts_bytes: u64,
    /// The blobs of the answer that is being computed.
    made: Vec<Made>,
}

impl Blobs {
    /// All members hold the initial shared part.
    pub(super) fn new(n_members: usize, initial: Option<(BlobRef, Arc<ParamSet>)>) -> Self {
        let numbers: NameMap<BlobId, u32> = initial.iter().map(|(blob, _)| (blob.id, 0)).collect();
        let held: NameSet<u32> = numbers.values().copied().collect();
        let contents = initial.map(|(blob, params)| (blob.id, params));
        Self {
            contents: contents.into_iter().collect(),
            decoded: NameMap::default(),
            held: vec![held; n_members],
            numbers,
            next: 1,
            holders: NameMap::default(),
            born: Born::new(),
            parts: Born::new(),
            parts_bytes: 0,
            made: Vec::new(),
        }
    }

    pub(super) fn contents(&self) -> &Contents {
        &self.contents
    }

    pub(super) fn content(&self, blob: &BlobId) -> Option<&Arc<ParamSet>> {
        self.contents.get(blob)
    }

    /// Returns the content of a blob that a member holds.
    pub(super) fn load(&self, member: usize, blob: &BlobId) -> Option<Arc<ParamSet>> {
        let is_held = self.is_held(member, blob);
        is_held.then(|| self.contents.get(blob).cloned()).flatten()
    }

    pub(super) fn is_held(&self, member: usize, blob: &BlobId) -> bool {
        let number = self.numbers.get(blob);
        number.is_some_and(|number| self.held[member].contains(number))
    }

    /// Visits the members that came to hold a blob.
    pub(super) fn holders(&self, blob: &BlobId) -> impl Iterator<Item = usize> + '_ {
        let holders = self.holders.get(blob).into_iter().flatten();
        holders.map(|member| *member as usize)
    }

    pub(super) fn hold(&mut self, member: usize, blob: BlobId) {
        let next = &mut self.next;
        let number = *self.numbers.entry(blob).or_insert_with(|| {
            *next += 1;
            *next - 1
        });
        if self.held[member].insert(number) {
            self.holders.entry(blob).or_default().push(member as u32);
        }
    }

    /// A member deletes its copy.
    pub(super) fn release(&mut self, member: usize, blob: &BlobId) {
        if let Some(number) = self.numbers.get(blob) {
            self.held[member].remove(number);
        }
    }

    /// Returns proxies decoded; all members that fetch them share one copy.
    pub(super) fn decoded_proxies(&mut self, blob: BlobId) -> Option<Arc<ProxySet>> {
        if let Some(known) = self.decoded.get(&blob) {
            return Some(Arc::clone(known));
        }
        let set = Arc::new(ProxySet::from_params(self.contents.get(&blob)?).ok()?);
        self.decoded.insert(blob, Arc::clone(&set));
        Some(set)
    }

    /// Puts a blob into the network.
    pub(super) fn put(&mut self, member: usize, round: Round, params: Arc<ParamSet>) -> BlobRef {
        let (blob, _) = params.to_blob();
        self.put_as(member, round, blob, params)
    }

    /// Puts a blob into the network that others may take over, as they will have it.
    pub(super) fn put_to_send(
        &mut self,
        member: usize,
        round: Round,
        params: Arc<ParamSet>,
        precision: Precision,
    ) -> BlobRef {
        if precision == Precision::F32 {
            return self.put(member, round, params);
        }
        let (blob, _) = params.to_blob_as(precision);
        let narrowed = Arc::unwrap_or_clone(params).narrowed(precision);
        self.put_as(member, round, blob, Arc::new(narrowed))
    }

    /// Puts bytes that are no parameters by themselves into the network: a slice of a mean.
    pub(super) fn put_bytes(&mut self, member: usize, round: Round, bytes: &[u8]) -> BlobRef {
        let blob = BlobRef::of(bytes);
        let (numbers, _) = bytes.as_chunks::<4>();
        // As they are: what they mean as numbers is never looked at.
        let bits = numbers
            .iter()
            .map(|four| f32::from_bits(u32::from_le_bytes(*four)));
        let bits: Vec<f32> = bits.collect();
        let mut params = ParamSet::new();
        if params.insert(BYTES, &[bits.len()], bits).is_err() {
            return blob;
        }
        self.put_as(member, round, blob, Arc::new(params))
    }

    /// Returns the bytes that were put.
    pub(super) fn bytes(&self, blob: &BlobId) -> Option<Vec<u8>> {
        let values = self.contents.get(blob)?.get(BYTES)?.values();
        let bytes = values
            .iter()
            .flat_map(|value| value.to_bits().to_le_bytes());
        Some(bytes.collect())
    }

    fn put_as(
        &mut self,
        member: usize,
        round: Round,
        blob: BlobRef,
        params: Arc<ParamSet>,
    ) -> BlobRef {
        let proxies = None;
        self.made.push(Made {
            blob,
            round,
            proxies,
        });
        self.keep(member, round, blob, params);
        blob
    }

    /// Puts proxies into the network.
    pub(super) fn put_proxies(&mut self, member: usize, round: Round, params: ParamSet) -> BlobRef {
        let (blob, _) = params.to_blob();
        let proxies = Some(params.to_bytes());
        self.made.push(Made {
            blob,
            round,
            proxies,
        });
        self.keep(member, round, blob, Arc::new(params));
        blob
    }

    /// Keeps what is new: where many compute the same mean, all have the first one's.
    pub(super) fn keep(
        &mut self,
        member: usize,
        round: Round,
        blob: BlobRef,
        params: Arc<ParamSet>,
    ) {
        if let Entry::Vacant(vacant) = self.contents.entry(blob.id) {
            vacant.insert(params);
            self.born.entry(round).or_default().push(blob.id);
        }
        self.hold(member, blob.id);
    }

    /// Takes the list of what was made since it was last taken.
    pub(super) fn take_made(&mut self) -> Vec<Made> {
        std::mem::take(&mut self.made)
    }

    /// Enters a blob that was just made as one that is averaged.
    pub(super) fn set_apart(&mut self, round: Round, part: BlobRef) {
        self.parts_bytes += part.size;
        let Some(made) = self.born.get_mut(&round) else {
            return;
        };
        if let Some(at) = made.iter().rposition(|made| *made == part.id) {
            self.parts.entry(round).or_default().push(made.remove(at));
        }
    }

    pub(super) fn parts_bytes(&self) -> u64 {
        self.parts_bytes
    }

    pub(super) fn reset_parts_bytes(&mut self) {
        self.parts_bytes = 0;
    }

    /// Forgets the parts of rounds before `newest`, and all other blobs of rounds before `oldest`, unless they are needed.
    pub(super) fn forget_before(&mut self, oldest: Round, newest: Round, needed: &NameSet<BlobId>) {
        let (born, parts) = (
            std::mem::take(&mut self.born),
            std::mem::take(&mut self.parts),
        );
        self.born = self.without_those_before(oldest, born, needed);
        self.parts = self.without_those_before(newest, parts, needed);
    }

    fn without_those_before(
        &mut self,
        oldest: Round,
        mut made: Born,
        needed: &NameSet<BlobId>,
    ) -> Born {
        for (_, blobs) in made.range_mut(..oldest) {
            blobs.retain(|blob| {
                let is_needed = needed.contains(blob);
                if !is_needed {
                    self.contents.remove(blob);
                    self.decoded.remove(blob);
                    let (number, holders) = (self.numbers.remove(blob), self.holders.remove(blob));
                    if let (Some(number), Some(holders)) = (number, holders) {
                        for holder in holders {
                            self.held[holder as usize].remove(&number);
                        }
                    }
                }
                is_needed
            });
        }
        made.retain(|_, blobs| !blobs.is_empty());
        made
    }

    /// Takes over the contents of an interrupted run; tells whether there is one for each blob.
    pub(super) fn recall(&mut self, mut known: Contents) -> bool {
        self.contents
            .iter_mut()
            .all(|(blob, params)| match known.remove(blob) {
                Some(content) => {
                    *params = content;
                    true
                }
                None => false,
            })
    }
}
