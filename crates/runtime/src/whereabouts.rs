//! Where other members were last: a node that is started again finds them without the peers that its settings name.
//!
//! ```text
//! network ──every 20 s, and at the end──► state/addresses ──► the next start dials them, beside `peers`
//! ```
//!
//! Of members that were connected it keeps the addresses that they gave themselves. An address is only a hint of where a member is:
//! the handshake proves who answers there. One address a line, with the member's id.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fednode_core::NodeId;
use fednode_files::whole_file;
use fednode_net::{Handle, Multiaddr, node_of};
use tokio_util::task::AbortOnDropHandle;

use crate::base::on_worker;

/// The file in the state folder.
const FILE: &str = "addresses";
/// Members that are remembered.
const MOST_MEMBERS: usize = 256;
/// Addresses that are remembered of each.
const MOST_ADDRESSES: usize = 4;
/// Largest file that is read, above what so many addresses take.
const MOST_BYTES: u64 = 256 << 10;
/// How often news are written down.
const LOOK_EVERY: Duration = Duration::from_secs(20);

/// One writer at a time: the last write of a life may meet one that is under way.
static WRITING: Mutex<()> = Mutex::new(());

/// Addresses by member.
type Whereabouts = BTreeMap<NodeId, Vec<Multiaddr>>;

/// Reads where members were last; nothing where that cannot be read, since it is only a help. Blocks.
pub(crate) fn read(state: &Path) -> Vec<Multiaddr> {
    load(&state.join(FILE)).into_values().flatten().collect()
}

fn load(file: &Path) -> Whereabouts {
    let is_small = std::fs::metadata(file).is_ok_and(|about| about.len() <= MOST_BYTES);
    let text = is_small.then(|| std::fs::read_to_string(file).ok());
    let text = text.flatten().unwrap_or_default();
    by_member(text.lines().filter_map(|line| line.trim().parse().ok()))
}

fn by_member(addresses: impl Iterator<Item = Multiaddr>) -> Whereabouts {
    let mut known = Whereabouts::new();
    for address in addresses {
        if let Some(node) = node_of(&address) {
            let of_node = known.entry(node).or_default();
            if of_node.len() < MOST_ADDRESSES {
                of_node.push(address);
            }
        }
    }
    known
}

/// Writes down where members are, until dropped.
pub(crate) fn keep(net: &Handle, state: &Path) -> AbortOnDropHandle<()> {
    let (net, state) = (net.clone(), state.to_owned());
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            // First of all a pause, because nobody is connected at the start.
            tokio::time::sleep(LOOK_EVERY).await;
            write(&net, &state).await;
        }
    }))
}

/// Writes down where members are now. Those that are not connected now stay, as far as there is room.
pub(crate) async fn write(net: &Handle, state: &Path) {
    let now = by_member(net.whereabouts().await.into_iter());
    let file = state.join(FILE);
    let written = on_worker(move || update(&file, now)).await;
    if let Err(error) = written {
        // No warning: a start does without the file, and others tell of a full disk.
        tracing::debug!(%error, "where the others are was not written down");
    }
}

fn update(file: &Path, now: Whereabouts) -> std::io::Result<()> {
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = load(file);
    let mut known = now;
    // Who is away now may be the only one whom the next start finds.
    for (node, addresses) in &before {
        if known.len() < MOST_MEMBERS {
            known.entry(*node).or_insert_with(|| addresses.clone());
        }
    }
    // Any of them will do, because nobody knows who is there next time.
    while known.len() > MOST_MEMBERS {
        known.pop_last();
    }
    if known == before {
        return Ok(());
    }
    let lines = known
        .values()
        .flatten()
        .map(|address| format!("{address}\n"));
    whole_file::write(file, lines.collect::<String>().as_bytes())
}

#[cfg(test)]
mod tests {
    use fednode_net::Identity;

    use super::*;

    fn member() -> NodeId {
        Identity::generate().node_id()
    }

    fn at(node: NodeId, port: u16) -> Multiaddr {
        let text = format!("/ip4/127.0.0.1/tcp/{port}/p2p/{node}");
        text.parse().unwrap()
    }

    #[test]
    fn a_member_of_whom_nothing_is_known_now_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let known = |addresses: &[Multiaddr]| by_member(addresses.iter().cloned());
        let [a, b, c] = std::array::from_fn(|_| member());
        update(&file, known(&[at(a, 10), at(b, 20)])).unwrap();
        update(&file, known(&[at(b, 21), at(c, 30)])).unwrap();
        let mut read = read(folder.path());
        let mut expected = vec![at(a, 10), at(b, 21), at(c, 30)];
        read.sort();
        expected.sort();
        assert_eq!(read, expected);
    }

    #[test]
    fn the_largest_file_can_be_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        // A name of 120 bytes: no longer one is told.
        let name = "n".repeat(57);
        let of_one = |node: NodeId| {
            let at = |port: u16| format!("/dns4/{name}.{name}.org/tcp/{port}/p2p/{node}");
            (1..=16).map(at).collect::<Vec<String>>()
        };
        let many = (0..300).map(|_| of_one(member())).collect::<Vec<_>>();
        let many = many.iter().flatten().map(|text| text.parse().unwrap());
        update(&file, by_member(many)).unwrap();
        assert_eq!(read(folder.path()).len(), MOST_MEMBERS * MOST_ADDRESSES);
    }

    #[test]
    fn what_is_no_address_of_a_member_counts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), Vec::<Multiaddr>::new(), "no file yet");
        let file = folder.path().join(FILE);
        let address = at(member(), 10);
        let text = format!("none\n/ip4/127.0.0.1/tcp/1\n{address}\n");
        std::fs::write(&file, text).unwrap();
        assert_eq!(read(folder.path()), [address]);
        std::fs::write(&file, "x".repeat(MOST_BYTES as usize + 1)).unwrap();
        assert_eq!(read(folder.path()), Vec::<Multiaddr>::new());
    }
}
