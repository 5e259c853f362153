//! One slice of a mean, out of the same slice of each part; and slices that are put together.
//!
//! A slice is bytes of a file of parameters. Its numbers are averaged by the federation's rule, as if they were all there is. The
//! first slice begins with the header of the file, which all parts must have in common. What another layout of the same size
//! puts into later slices are numbers like any others: a liar can say them with the right layout, too.
//!
//! Which parts do not count in a slice is part of its mean. So whoever recomputes it gets the same bits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fednode_core::limits::MAX_NORM_RATIO;
use fednode_core::{BlobId, FederationSpec, Member, ParamSet};
use fednode_mix::{Part, rule, screen};

use crate::event::{SliceOrder, SliceReport};

/// Loads bytes of a blob of which they are held; `None` if they are not.
pub type LoadBytes<'a> = &'a mut dyn FnMut(&BlobId, Range<u64>) -> Option<Vec<u8>>;

/// Bytes before the text of a header: its length.
const LENGTH_BYTES: usize = size_of::<u64>();
/// What the numbers of a slice are called.
const NAME: &str = "slice";
/// A part of another layout.
const OTHER_LAYOUT: &str = "its file begins otherwise than those of most";

/// Averages one slice. Returns its bytes beside the report; whoever stores them enters their name as [`SliceReport::mean`].
///
/// Slices are loaded one after the other, twice, as parts are.
pub fn average_slice(
    order: &SliceOrder,
    spec: &FederationSpec,
    load: LoadBytes<'_>,
) -> (Option<Vec<u8>>, SliceReport) {
    let mut report = SliceReport::of(order);
    let Some(averaging) = &spec.exchange.averaging else {
        return (None, report);
    };
    let bytes = order.slicing.bytes(order.slice);
    let begins = bytes.start == 0;
    let mut read = |member: &Member| {
        let raw = load(&member.shared.id, bytes.clone())?;
        Some(Slice::of(raw, begins))
    };
    let Some((header, parts)) = measure(order, &mut read, &mut report) else {
        return (None, report);
    };
    let Some(reference) = reference_of(&parts) else {
        return (None, report);
    };
    let Some(reference) = read(&reference).and_then(Result::ok) else {
        return (None, report);
    };
    let mut parts = parts.iter().map(|(member, _)| member);
    let mut is_lost = false;
    let mut next = || {
        loop {
            let member = parts.next()?;
            let Some(Ok(slice)) = read(member) else {
                // It was here a moment ago.
                is_lost = true;
                return None;
            };
            if let Some(part) = counted(member, slice.params, &reference.params, &mut report) {
                return Some(part);
            }
        }
    };
    let combined = rule::combine(&averaging.rule, &mut std::iter::from_fn(&mut next));
    let mean = combined.ok().filter(|_| !is_lost);
    (mean.map(|mean| file_of(header, &mean)), report)
}

/// Holds a member's slice against the reference. Returns it if it counts, and reports it if it does not.
fn counted(
    member: &Member,
    params: ParamSet,
    reference: &ParamSet,
    report: &mut SliceReport,
) -> Option<Part> {
    let Err(fault) = screen::screen(&params, reference, MAX_NORM_RATIO) else {
        return Some(Part {
            weight: member.weight,
            params: Arc::new(params),
        });
    };
    if fault.is_mistake() {
        report.excused.push(member.node);
    }
    report.left_out.push((member.node, fault.to_string()));
    None
}

/// Returns the bytes of a slice: the header, if it has one, and its numbers.
fn file_of(header: Vec<u8>, mean: &ParamSet) -> Vec<u8> {
    let mut bytes = header;
    bytes.reserve_exact(mean.n_values() * size_of::<f32>());
    mean.values()
        .for_each(|value| bytes.extend(value.to_le_bytes()));
    bytes
}

/// The bytes of one part's slice, taken apart.
struct Slice {
    header: Vec<u8>,
    params: ParamSet,
}

impl Slice {
    /// Takes bytes apart; a slice that `begins` a file has its header.
    fn of(raw: Vec<u8>, begins: bool) -> Result<Self, &'static str> {
        let length = if begins { header_of(&raw)? } else { 0 };
        let (header, numbers) = raw.split_at(length);
        let (numbers, rest) = numbers.as_chunks::<{ size_of::<f32>() }>();
        if !rest.is_empty() {
            return Err(OTHER_LAYOUT);
        }
        let values: Vec<f32> = numbers.iter().map(|n| f32::from_le_bytes(*n)).collect();
        let mut params = ParamSet::new();
        let n = values.len();
        params
            .insert(NAME, &[n], values)
            .map_err(|_| OTHER_LAYOUT)?;
        Ok(Self {
            header: header.to_vec(),
            params,
        })
    }
}

/// Returns the bytes of a file's header.
fn header_of(raw: &[u8]) -> Result<usize, &'static str> {
    let text = raw.first_chunk::<LENGTH_BYTES>().ok_or(OTHER_LAYOUT)?;
    let text = usize::try_from(u64::from_le_bytes(*text)).map_err(|_| OTHER_LAYOUT)?;
    let all = text.checked_add(LENGTH_BYTES).ok_or(OTHER_LAYOUT)?;
    // A header that goes on in the next slice leaves no place for a number in this one.
    (all <= raw.len()).then_some(all).ok_or(OTHER_LAYOUT)
}

/// What is remembered of a slice between the two passes.
type Measured = (Member, f64);

/// Reads each slice, and returns the header that most have with those that have it. `None` if a slice is not here.
fn measure(
    order: &SliceOrder,
    read: &mut dyn FnMut(&Member) -> Option<Result<Slice, &'static str>>,
    report: &mut SliceReport,
) -> Option<(Vec<u8>, Vec<Measured>)> {
    let mut by_header: BTreeMap<Vec<u8>, Vec<Measured>> = BTreeMap::new();
    for member in &order.members {
        match read(member) {
            Some(Ok(slice)) => {
                let norm = screen::norm(&slice.params);
                let alike = by_header.entry(slice.header).or_default();
                alike.push((*member, norm));
            }
            Some(Err(fault)) => report.left_out.push((member.node, fault.to_owned())),
            None => report.lost.push(member.node),
        }
    }
    // Another member may get the part that is lost here, and would have another mean of the slice.
    if !report.lost.is_empty() {
        return None;
    }
    // Of two headers that equally many have, the first by its bytes counts, so that all find the same.
    let common = by_header.iter().rev().max_by_key(|(_, alike)| alike.len());
    let common = common.map(|(header, _)| header.clone())?;
    let parts = by_header.remove(&common)?;
    let others = by_header.into_values().flatten();
    let others = others.map(|(member, _)| (member.node, OTHER_LAYOUT.to_owned()));
    report.left_out.extend(others);
    Some((common, parts))
}

/// Returns whose slice has the median norm of those that are finite: what a minority of liars cannot choose.
fn reference_of(parts: &[Measured]) -> Option<Member> {
    let finite = parts.iter().filter(|(_, norm)| norm.is_finite());
    let mut finite: Vec<&Measured> = finite.collect();
    finite.sort_by(|a, b| a.1.total_cmp(&b.1));
    let median = finite.get(finite.len().saturating_sub(1) / 2);
    median.map(|(member, _)| *member)
}
