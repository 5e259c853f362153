//! Work that blocks: numbers and disks, each a plain function for a worker thread.
//!
//! Memory stays small: parameters are decoded when they are needed and dropped after the merge; only a bounded number
//! of bytes is kept until then.

use std::collections::BTreeSet;
use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Instant;

use fednode_core::draw::DrawSeed;
use fednode_core::work::Update;
use fednode_core::{
    BlobId, BlobRef, ExpertOffer, FederationSpec, InlineProxies, Lineage, LocalReport,
    MAX_INLINE_PROXY_BYTES, NodeId, ParamSet, Precision, ProxyOffer, ProxySet, Round,
};
use fednode_engine::execute::{self, Adoption};
use fednode_engine::{AverageOrder, AverageReport, Fetch, FetchKind, MergeOrder, MergeReport};
use fednode_store::Blobs;
use tracing::{debug, warn};

use crate::decoded::Decoded;
use crate::masks::{Published, SharedPart};
use crate::trainer::Timed;

/// Blobs of an update written side by side; each needs a copy in memory.
const WRITERS: usize = 4;

/// Loads parameters: those at hand, else from the blob store.
fn load(id: &BlobId, decoded: &Decoded, blobs: &Blobs) -> Option<Arc<ParamSet>> {
    if let Some(params) = decoded.get(id) {
        return Some(params);
    }
    let params = load_blob(id, blobs)?;
    decoded.keep(*id, &params);
    Some(params)
}

/// Loads parameters from the blob store.
pub(crate) fn load_blob(id: &BlobId, blobs: &Blobs) -> Option<Arc<ParamSet>> {
    let bytes = blobs
        .get(id)
        .inspect_err(|error| debug!(blob = %id, %error, "not loaded"))
        .ok()?;
    // Its canonical form was checked when it arrived, and its hash just now.
    ParamSet::import(&bytes).ok().map(Arc::new)
}

/// Screens and mixes, as the engine orders.
pub(crate) fn merge(
    order: &MergeOrder,
    spec: &FederationSpec,
    me: NodeId,
    own_shared: Option<&ParamSet>,
    decoded: &Decoded,
    blobs: &Blobs,
) -> Timed<(Adoption, MergeReport)> {
    let started = Instant::now();
    let value = execute::merge(order, spec, me, own_shared, &mut |id| {
        load(id, decoded, blobs)
    });
    // The next user of this memory is the trainer.
    decoded.clear();
    if value.1.lost_mean {
        warn!(round = %order.round, "the round's mean cannot be read from the store any more: this node goes on without it");
    }
    Timed {
        value,
        took: started.elapsed(),
    }
}

/// Returns how many distinct experts of others were mixed in.
pub(crate) fn n_sources(adoption: &Adoption, me: NodeId) -> u32 {
    let used = adoption
        .used
        .iter()
        .flat_map(|(_, sources)| sources)
        .map(|(expert, _)| *expert);
    // An expert may stand in several rows; as a source it counts once.
    let foreign: BTreeSet<_> = used.filter(|expert| expert.owner != me).collect();
    u32::try_from(foreign.len()).unwrap_or(u32::MAX)
}

/// Averages, as the engine orders, and stores the mean; if that fails, the report is without it and says why.
pub(crate) fn average(
    order: &AverageOrder,
    spec: &FederationSpec,
    decoded: &Decoded,
    blobs: &Blobs,
) -> (AverageReport, Option<io::Error>) {
    // What is not at hand is read twice rather than kept: in a second pass it would come just after it had to make room.
    let load = &mut |id: &BlobId| decoded.get(id).or_else(|| load_blob(id, blobs));
    let (mean, mut report) = execute::average(order, spec, load);
    decoded.clear();
    if !report.lost.is_empty() {
        let (round, lost) = (order.round, report.lost.len());
        warn!(%round, lost, "parts of the round cannot be read from the store any more, and are not averaged");
    }
    let mut trouble = None;
    match mean.map(|mean| blobs.put(&mean.to_bytes())) {
        Some(Ok(blob)) => report.mean = Some(blob),
        Some(Err(error)) => trouble = Some(error),
        None => {}
    }
    (report, trouble)
}

/// What became of a fetched blob after its bytes were looked at.
#[derive(Debug)]
pub(crate) enum Checked {
    /// It holds parameters.
    Params,
    /// It holds proxies.
    Proxies(Arc<ProxySet>),
    /// Its author announced something that is not what it said.
    Malformed(String),
    /// It is no longer held.
    Lost(String),
}

/// Returns the precision of the numbers that a fetch brings.
pub(crate) fn precision_of(kind: FetchKind, spec: &FederationSpec) -> Precision {
    match kind {
        FetchKind::Expert | FetchKind::Module => spec.transfer.precision,
        FetchKind::Shared | FetchKind::Proxies => Precision::F32,
    }
}

/// Decodes a held blob as what it was said to be; what is about to be mixed or averaged stays at hand.
pub(crate) fn check(
    fetch: &Fetch,
    spec: &FederationSpec,
    decoded: &Decoded,
    blobs: &Blobs,
) -> Checked {
    let bytes = match blobs.get(&fetch.blob.id) {
        Ok(bytes) => bytes,
        // Collected between its arrival and this look. The machine may ask for it again; nobody is
        // to blame.
        Err(error) => return Checked::Lost(error.to_string()),
    };
    let params = match ParamSet::decode_as(&bytes, precision_of(fetch.kind, spec)) {
        Ok(params) => params,
        Err(error) => return Checked::Malformed(error.to_string()),
    };
    // A note is a node's own. In what a peer sends it could only make small parts large, which fewer look into.
    if params.note().is_some() {
        return Checked::Malformed("parameters with a note".to_owned());
    }
    match fetch.kind {
        // Modules are used once, after all have come. Kept decoded until then, they would fill the memory.
        FetchKind::Module => Checked::Params,
        FetchKind::Shared | FetchKind::Expert => {
            decoded.keep(fetch.blob.id, &Arc::new(params));
            Checked::Params
        }
        FetchKind::Proxies => match ProxySet::from_params(&params) {
            Ok(proxies) => Checked::Proxies(Arc::new(proxies)),
            Err(error) => Checked::Malformed(error.to_string()),
        },
    }
}

/// What an update is stored for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Purpose {
    pub(crate) round: Round,
    /// The shared part that it was trained on.
    pub(crate) lineage: Lineage,
    /// Whether this round refreshes proxies.
    pub(crate) with_proxies: bool,
    /// What sketches are drawn from, if adverts carry sketches of proxies.
    pub(crate) with_sketches: Option<DrawSeed>,
    /// What the experts for others are narrowed to.
    pub(crate) precision: Precision,
}

/// Writes an update's blobs and names them; says how long that took.
///
/// # Errors
/// Fails if the disk does or is full.
pub(crate) fn store_update(
    update: &Update,
    published: &Published,
    purpose: Purpose,
    blobs: &Blobs,
) -> io::Result<Timed<LocalReport>> {
    let started = Instant::now();
    let own = match &published.part {
        SharedPart::Open => update.shared.as_deref(),
        SharedPart::Masked(part) => Some(part),
        SharedPart::StandIn(_) => None,
    };
    let parts = parts_of(update, own, purpose.precision);
    let mut stored = put_all(&parts, blobs)?.into_iter();
    let experts = update
        .experts
        .iter()
        .zip(stored.by_ref())
        .map(|((_, samples_routed), blob)| ExpertOffer {
            blob,
            samples_routed: *samples_routed,
        })
        .collect();
    let shared = match &published.part {
        SharedPart::StandIn(mean) => *mean,
        SharedPart::Open | SharedPart::Masked(_) => own.and_then(|_| stored.next()),
    };
    let own_experts = stored.collect();
    let proxies = update.proxies.as_ref().filter(|_| purpose.with_proxies);
    let sketched = proxies.zip(purpose.with_sketches);
    let sketches = sketched.map(|(proxies, seed)| fednode_mix::sketch::sketches(proxies, seed));
    let proxies = proxies.map(|proxies| offer(proxies, blobs)).transpose()?;
    let report = LocalReport {
        round: purpose.round,
        lineage: purpose.lineage,
        shared,
        experts,
        own_experts,
        proxies,
        sketches,
        n_samples: update.n_samples,
        train_loss: update.train_loss,
        expert_share: update.expert_share.clone(),
        offer: published.offer.clone(),
    };
    Ok(Timed {
        value: report,
        took: started.elapsed(),
    })
}

/// Returns the parts of an update in the order in which they are written: experts as others may have them, the shared
/// part, and the node's own experts where those for others are narrowed.
fn parts_of<'a>(
    update: &'a Update,
    shared: Option<&'a ParamSet>,
    precision: Precision,
) -> Vec<(&'a ParamSet, Precision)> {
    let experts = || update.experts.iter().map(|(params, _)| params.as_ref());
    let for_others = experts().map(|params| (params, precision));
    let shared = shared.into_iter();
    let is_narrowed = precision != Precision::F32;
    let own = experts().filter(|_| is_narrowed);
    let whole = shared.chain(own).map(|params| (params, Precision::F32));
    for_others.chain(whole).collect()
}

/// Writes parts side by side: each waits for the disk to confirm it, and a disk confirms several at once.
fn put_all(parts: &[(&ParamSet, Precision)], blobs: &Blobs) -> io::Result<Vec<BlobRef>> {
    let put = |parts: &[(&ParamSet, Precision)]| {
        parts
            .iter()
            .map(|(params, precision)| blobs.put(&params.to_bytes_as(*precision)))
            .collect()
    };
    std::thread::scope(|scope| {
        let share = parts.len().div_ceil(WRITERS).max(1);
        let writers: Vec<_> = parts
            .chunks(share)
            .map(|parts| scope.spawn(move || put(parts)))
            .collect();
        let mut stored = Vec::with_capacity(parts.len());
        for writer in writers {
            let written: io::Result<Vec<BlobRef>> =
                writer.join().unwrap_or_else(|panic| resume_unwind(panic));
            stored.extend(written?);
        }
        Ok(stored)
    })
}

fn offer(proxies: &ProxySet, blobs: &Blobs) -> io::Result<ProxyOffer> {
    let bytes = proxies.to_params().to_bytes();
    if bytes.len() <= MAX_INLINE_PROXY_BYTES {
        Ok(ProxyOffer::Inline(InlineProxies::new(bytes)))
    } else {
        blobs.put(&bytes).map(ProxyOffer::Blob)
    }
}

/// Returns the blobs that a report offers to others.
pub(crate) fn offered(report: &LocalReport) -> Vec<BlobId> {
    let proxies = match &report.proxies {
        Some(ProxyOffer::Blob(blob)) => Some(blob.id),
        _ => None,
    };
    let experts = report.experts.iter().map(|offer| offer.blob.id);
    experts
        .chain(report.shared.map(|blob| blob.id))
        .chain(proxies)
        .collect()
}

/// Returns which of the kept blobs others may know of: not the own experts as they were trained, where others are offered
/// narrowed ones.
pub(crate) fn known_to_others(
    kept: BTreeSet<BlobId>,
    report: Option<&LocalReport>,
) -> BTreeSet<BlobId> {
    let Some(report) = report else {
        return kept;
    };
    let offered = offered(report);
    let own = report.own_experts.iter().map(|blob| blob.id);
    let own: BTreeSet<BlobId> = own.filter(|blob| !offered.contains(blob)).collect();
    &kept - &own
}

/// Collects garbage above the target and returns the freed bytes.
///
/// # Errors
/// Fails if the disk does.
pub(crate) fn collect(
    keep: &BTreeSet<BlobId>,
    target_bytes: u64,
    blobs: &Blobs,
) -> io::Result<u64> {
    let started = Instant::now();
    let collected = blobs.collect(keep, target_bytes)?;
    if collected.blobs > 0 {
        let took = started.elapsed();
        debug!(
            blobs = collected.blobs,
            bytes = collected.bytes,
            ?took,
            "collected"
        );
    }
    Ok(collected.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{FederationId, Timestamp};
    use fednode_store::{Options, Store};

    fn params(value: f32) -> ParamSet {
        let mut params = ParamSet::new();
        params.insert("w", &[64], vec![value; 64]).unwrap();
        params
    }

    fn update() -> Update {
        Update {
            shared: Some(Arc::new(params(0.1))),
            experts: vec![(Arc::new(params(0.2)), 3), (Arc::new(params(0.3)), 4)],
            proxies: None,
            n_samples: 7,
            train_loss: 1.0,
            expert_share: vec![0.5, 0.5],
            steps: 1,
            multiply_adds: 21,
        }
    }

    #[test]
    fn experts_are_offered_narrow_and_kept_wide() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            reserve_bytes: 1000,
            ..Options::default()
        };
        let store =
            Store::open(folder.path(), FederationId::from_bytes([1; 32]), &options).unwrap();
        let lineage = params(0.0).to_blob().0.id;
        for precision in Precision::ALL {
            let purpose = Purpose {
                round: Round(1),
                lineage,
                with_proxies: false,
                with_sketches: None,
                precision,
            };
            let report = store_update(&update(), &Published::OPEN, purpose, &store.blobs)
                .unwrap()
                .value;
            assert_eq!(report.shared, Some(params(0.1).to_blob().0));
            let narrow = |value: f32| params(value).to_blob_as(precision).0;
            let own: BTreeSet<BlobId> = report.own_experts.iter().map(|blob| blob.id).collect();
            let all: BTreeSet<BlobId> = offered(&report).into_iter().chain(own).collect();
            let known = known_to_others(all, Some(&report));
            let offered: BTreeSet<BlobId> = offered(&report).into_iter().collect();
            assert_eq!(known, offered, "after a restart, too");
            assert_eq!(
                report
                    .experts
                    .iter()
                    .map(|offer| offer.blob)
                    .collect::<Vec<_>>(),
                [narrow(0.2), narrow(0.3)]
            );
            assert_eq!(
                report
                    .experts
                    .iter()
                    .map(|offer| offer.samples_routed)
                    .collect::<Vec<_>>(),
                [3, 4]
            );
            assert_eq!(
                report.experts_to_mix(),
                [params(0.2).to_blob().0, params(0.3).to_blob().0]
            );
            assert_eq!(
                load_blob(&report.experts_to_mix()[1].id, &store.blobs).as_deref(),
                Some(&params(0.3))
            );
            let offered = load_blob(&report.experts[1].blob.id, &store.blobs);
            assert_eq!(offered.as_deref(), Some(&params(0.3).narrowed(precision)));
        }
    }

    #[test]
    fn an_expert_of_another_precision_is_not_what_was_announced() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            reserve_bytes: 1000,
            ..Options::default()
        };
        let store =
            Store::open(folder.path(), FederationId::from_bytes([1; 32]), &options).unwrap();
        let mut spec = FederationSpec::default();
        spec.transfer.precision = Precision::F16;
        for precision in Precision::ALL {
            let blob = store
                .blobs
                .put(&params(0.2).to_bytes_as(precision))
                .unwrap();
            let check = |kind| {
                let fetch = Fetch {
                    blob,
                    kind,
                    from: Vec::new(),
                    base: None,
                    until: Timestamp(0),
                };
                matches!(
                    check(&fetch, &spec, &Decoded::new(0), &store.blobs),
                    Checked::Params
                )
            };
            assert_eq!(
                check(FetchKind::Expert),
                precision == Precision::F16,
                "{precision:?}"
            );
            assert_eq!(
                check(FetchKind::Module),
                precision == Precision::F16,
                "{precision:?}"
            );
            assert_eq!(
                check(FetchKind::Shared),
                precision == Precision::F32,
                "{precision:?}"
            );
        }
    }
}
