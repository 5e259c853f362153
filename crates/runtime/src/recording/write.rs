//! The writing end: a handle in the loop, and a thread that owns the files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fednode_core::{FederationSpec, NodeId, Role, Timestamp};
use fednode_engine::{Input, Output};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::format::{self, Beginning, Header, Image, MAGIC, Moment, VERSION};
use crate::machine::Machine;

/// Lines that may wait for the disk: what a loop is given in some seconds.
const WAITING: usize = 1024;
/// Shares into which the bytes of a recording are divided. A segment begins with two at most and has inputs for one at
/// least. It is full with two or three, and never has more than four: so at least half of all bytes is history.
const SHARES: u64 = 8;
/// Most segments: a member that starts again and again does not fill the folder with small ones.
const MOST_SEGMENTS: usize = 32;

/// Whose recording it is, and how large it may be.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The folder of the segments.
    pub(crate) folder: PathBuf,
    /// Bytes of all segments; 0 records nothing.
    pub(crate) bytes: u64,
    pub(crate) spec: Arc<FederationSpec>,
    pub(crate) node: NodeId,
    pub(crate) role: Role,
}

/// What the thread is told.
#[derive(Debug)]
enum Line {
    /// A segment begins with this image, after so many inputs that were skipped.
    Begin { image: Image, skipped: u64 },
    /// The machine answered an input.
    Answered(Box<Answered>),
    /// Nothing comes any more.
    Close(oneshot::Sender<()>),
}

/// An input and its answer.
#[derive(Debug)]
struct Answered {
    at: Timestamp,
    input: Input,
    outputs: Vec<Output>,
}

/// The loop's end of the recorder.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Absent when nothing is recorded, or nothing more.
    lines: Option<mpsc::Sender<Line>>,
    /// The thread wants a new segment.
    is_image_due: Arc<AtomicBool>,
    /// Inputs since the queue was found full.
    skipped: u64,
}

impl Recorder {
    /// Starts the thread. Without bytes for a recording nothing is recorded.
    ///
    /// # Errors
    /// Fails if the operating system has no thread left.
    pub(crate) fn start(origin: Origin) -> io::Result<Self> {
        let is_image_due = Arc::new(AtomicBool::new(true));
        let lines = if origin.bytes == 0 {
            None
        } else {
            let (lines, queue) = mpsc::channel(WAITING);
            let writer = Writer::new(origin, Arc::clone(&is_image_due));
            std::thread::Builder::new()
                .name("recorder".into())
                .spawn(move || writer.write_all(queue))?;
            Some(lines)
        };
        Ok(Self {
            lines,
            is_image_due,
            skipped: 0,
        })
    }

    /// Gives an input to the machine and hands both to the thread; never waits.
    pub(crate) fn feed<M: Machine>(
        &mut self,
        machine: &mut M,
        at: Timestamp,
        input: Input,
    ) -> Vec<Output> {
        if !self.is_ready(machine) {
            self.skipped += 1;
            return machine.handle(at, input);
        }
        // Copied before, since the machine consumes its input. What an input holds is shared, so a
        // copy is cheap.
        let kept = input.clone();
        let outputs = machine.handle(at, input);
        let answered = Answered {
            at,
            input: kept,
            outputs: outputs.clone(),
        };
        // A line that was lost breaks the chain of inputs. The next one begins a segment with a
        // fresh image.
        if !self.send(Line::Answered(Box::new(answered))) {
            self.skipped += 1;
        }
        outputs
    }

    /// Tells whether the next input can be written down; begins a segment where one is due.
    fn is_ready<M: Machine>(&mut self, machine: &M) -> bool {
        if self.lines.is_none() {
            return false;
        }
        // The image is taken here, between two inputs: the thread never sees the machine.
        let is_due = self.is_image_due.swap(false, Ordering::Relaxed);
        if !is_due && self.skipped == 0 {
            return true;
        }
        let begun = self.send(Line::Begin {
            image: machine.image(),
            skipped: self.skipped,
        });
        if begun {
            self.skipped = 0;
        } else {
            // Nobody has seen the wish for an image yet, so it must be heard again.
            self.is_image_due.store(true, Ordering::Relaxed);
        }
        begun
    }

    fn send(&mut self, line: Line) -> bool {
        let Some(lines) = &self.lines else {
            return false;
        };
        match lines.try_send(line) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => false,
            Err(TrySendError::Closed(_)) => {
                // The thread has said why it ended.
                self.lines = None;
                false
            }
        }
    }

    /// Waits until everything is written. Cancel-safe.
    pub(crate) async fn close(self) {
        let Some(lines) = self.lines else {
            return;
        };
        let (done, is_done) = oneshot::channel();
        if lines.send(Line::Close(done)).await.is_ok() {
            // A writer that is gone has nothing left to write.
            let _ = is_done.await;
        }
    }
}

/// Why the recording ends before its member does.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("{0}")]
    Disk(#[from] io::Error),
    #[error(
        "the machine's state and its spec have {state} bytes, more than a quarter of the recording's {bytes}: raise `recording_mib`"
    )]
    TooLarge { state: u64, bytes: u64 },
}

/// A segment that is being written.
#[derive(Debug)]
struct Segment {
    file: File,
    bytes: u64,
    /// Bytes after which the next one is asked for: once.
    full: u64,
    has_asked: bool,
}

/// The thread's end.
struct Writer {
    origin: Origin,
    is_image_due: Arc<AtomicBool>,
    segment: Option<Segment>,
    /// Number of the next input.
    next: u64,
    /// Inputs that found their segment full.
    dropped: u64,
}

impl Writer {
    fn new(origin: Origin, is_image_due: Arc<AtomicBool>) -> Self {
        Self {
            origin,
            is_image_due,
            segment: None,
            next: 1,
            dropped: 0,
        }
    }

    fn write_all(mut self, mut queue: mpsc::Receiver<Line>) {
        let result = self.prepare().and_then(|()| self.write_lines(&mut queue));
        if let Err(error) = result {
            let folder = self.origin.folder.display();
            warn!(%error, "the recording in `{folder}` ends here; the run goes on without it");
        }
    }

    /// Makes the folder, and goes on counting where an earlier life stopped.
    fn prepare(&mut self) -> Result<(), WriteError> {
        fs::create_dir_all(&self.origin.folder)?;
        // Numbers go on over restarts: an input has one number for good, whatever was removed
        // before it.
        if let Some((first, _)) = format::segments(&self.origin.folder)?.last() {
            let bytes = fs::read(format::file_of(&self.origin.folder, *first))?;
            let records = bytes.strip_prefix(MAGIC).map_or(0, format::count);
            // Header and image are no inputs.
            self.next = first + records.saturating_sub(2);
        }
        Ok(())
    }

    fn write_lines(&mut self, queue: &mut mpsc::Receiver<Line>) -> Result<(), WriteError> {
        while let Some(line) = queue.blocking_recv() {
            match line {
                Line::Begin { image, skipped } => self.begin(&image, skipped)?,
                Line::Answered(answered) => {
                    let Answered { at, input, outputs } = *answered;
                    let answer = format::answer_of(&outputs);
                    self.write(&Moment { at, input, answer })?;
                }
                // Whoever asked may have run out of patience.
                Line::Close(done) => {
                    _ = done.send(());
                    break;
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, image: &Image, skipped: u64) -> Result<(), WriteError> {
        let missing = skipped + std::mem::take(&mut self.dropped);
        let beginning = match (&self.segment, missing) {
            (None, _) => Beginning::Start,
            (Some(_), 0) => Beginning::Full,
            (Some(_), _) => Beginning::Gap,
        };
        self.next += missing;
        let origin = &self.origin;
        let header = format::record(&Header {
            version: VERSION.into(),
            federation: origin.spec.id(),
            spec: without_comments(&origin.spec.to_toml()),
            extensions: origin.spec.extensions().to_vec(),
            since: origin.spec.since(),
            node: origin.node,
            role: origin.role,
            first: self.next,
            beginning,
        });
        let image = format::record(image);
        let start = [MAGIC, &header, &image].concat();
        let bytes = start.len() as u64;
        let share = origin.bytes / SHARES;
        // Larger, and a ring of so few bytes would hold images and hardly any history.
        if bytes > 2 * share {
            return Err(WriteError::TooLarge {
                state: bytes,
                bytes: origin.bytes,
            });
        }
        // Room first: the folder is never larger than was allowed, not even for a moment.
        self.make_room()?;
        let path = format::file_of(&self.origin.folder, self.next);
        let mut options = OpenOptions::new();
        // A number may be there already, if a crash tore all its inputs off. Then it holds nothing
        // worth keeping.
        let mut file = options.create(true).write(true).truncate(true).open(path)?;
        file.write_all(&start)?;
        self.segment = Some(Segment {
            file,
            bytes,
            // A large image is paid for by as many inputs again, before the next one is due.
            full: (bytes + share).max(2 * share),
            has_asked: false,
        });
        Ok(())
    }

    /// Removes the oldest segments until another one fits.
    fn make_room(&self) -> Result<(), WriteError> {
        let folder = &self.origin.folder;
        let most = self.origin.bytes / 2;
        let mut kept = format::segments(folder)?;
        while kept.len() >= MOST_SEGMENTS || kept.iter().map(|(_, bytes)| bytes).sum::<u64>() > most
        {
            let (oldest, _) = kept.remove(0);
            fs::remove_file(format::file_of(folder, oldest))?;
        }
        Ok(())
    }

    fn write(&mut self, moment: &Moment) -> Result<(), WriteError> {
        let record = format::record(moment);
        let (n_bytes, most) = (record.len() as u64, self.origin.bytes / 2);
        // Before the first image there is no machine to which the input could be given.
        let Some(segment) = &mut self.segment else {
            return Ok(());
        };
        // Once an input is dropped, all that follow it are: the next segment begins behind the gap.
        if self.dropped > 0 || segment.bytes + n_bytes > most {
            self.dropped += 1;
        } else {
            segment.file.write_all(&record)?;
            segment.bytes += n_bytes;
            self.next += 1;
        }
        let is_full = self.dropped > 0 || segment.bytes > segment.full;
        if is_full && !segment.has_asked {
            segment.has_asked = true;
            self.is_image_due.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Leaves the keys of a TOML file: what they mean would be most of a small segment.
fn without_comments(toml: &str) -> String {
    let is_key = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let keys = toml.lines().filter(is_key);
    keys.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use fednode_engine::{Node, Timer};
    use fednode_store::{Options, Store};

    use super::*;
    use crate::recording::{Gap, Player, Recording, Step, path_in};

    fn origin(state: &std::path::Path) -> Origin {
        let spec = FederationSpec {
            nodes: 1,
            ..FederationSpec::default()
        };
        Origin {
            folder: path_in(state),
            bytes: 1 << 20,
            spec: Arc::new(spec),
            node: NodeId::from_bytes([7; 32]),
            role: Role::Node,
        }
    }

    fn node(origin: &Origin) -> Node {
        Node::new(Arc::clone(&origin.spec), origin.node, None)
    }

    /// A recorder whose thread has not begun, with room for so many lines.
    fn idle(origin: &Origin, room: usize) -> (Recorder, Writer, mpsc::Receiver<Line>) {
        let is_image_due = Arc::new(AtomicBool::new(true));
        let (lines, queue) = mpsc::channel(room);
        let writer = Writer::new(origin.clone(), Arc::clone(&is_image_due));
        let recorder = Recorder {
            lines: Some(lines),
            is_image_due,
            skipped: 0,
        };
        (recorder, writer, queue)
    }

    fn steps(recording: &Recording) -> Vec<Step> {
        let mut player = Player::new(recording, None).unwrap();
        std::iter::from_fn(|| player.step().unwrap()).collect()
    }

    #[test]
    fn a_spec_without_comments_is_the_same_federation() {
        let spec = FederationSpec {
            name: "# no comment".into(),
            ..FederationSpec::default()
        };
        let keys = without_comments(&spec.to_toml());
        assert!(!keys.lines().any(|line| line.starts_with('#')), "{keys}");
        assert_eq!(FederationSpec::from_toml(&keys).unwrap().id(), spec.id());
    }

    #[tokio::test]
    async fn what_found_the_queue_full_is_a_gap_and_what_follows_is_replayed() {
        let folder = tempfile::tempdir().unwrap();
        let origin = origin(folder.path());
        let _store = Store::open(folder.path(), origin.spec.id(), &Options::default()).unwrap();
        let mut node = node(&origin);
        let (mut recorder, writer, queue) = idle(&origin, 3);
        let mut feed = |recorder: &mut Recorder, at: u64, input: Input| {
            assert_eq!(
                recorder
                    .feed(&mut node, Timestamp(at), input.clone())
                    .is_empty(),
                at > 1
            );
        };
        // An image and two inputs fill the queue; the third input is lost.
        feed(&mut recorder, 1, Input::Start);
        let again = || Input::Timer(Timer::Join);
        feed(&mut recorder, 2, again());
        feed(&mut recorder, 3, again());
        assert_eq!(recorder.skipped, 1);
        let writing = std::thread::spawn(move || writer.write_all(queue));
        while recorder
            .lines
            .as_ref()
            .is_some_and(|lines| lines.capacity() < 3)
        {
            tokio::task::yield_now().await;
        }
        feed(&mut recorder, 4, again());
        recorder.close().await;
        writing.join().unwrap();

        let recording = Recording::open(folder.path()).unwrap();
        assert_eq!(recording.runs(), [(1, 2), (4, 4)]);
        let steps = steps(&recording);
        assert!(steps.iter().all(|step| step.is_same));
        assert_eq!(steps[2].gap, Some(Gap { first: 3, last: 3 }));
        assert_eq!(steps[2].begins, Some(Beginning::Gap));
        let error = recording.check(3).unwrap_err().to_string();
        assert!(error.contains("1 to 2, 4 to 4"), "{error}");
    }

    #[tokio::test]
    async fn a_disk_that_refuses_ends_the_recording_and_not_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let origin = origin(folder.path());
        fs::write(&origin.folder, "a file where the folder should be").unwrap();
        let mut node = node(&origin);
        let mut recorder = Recorder::start(origin).unwrap();
        let outputs = recorder.feed(&mut node, Timestamp(1), Input::Start);
        assert!(!outputs.is_empty());
        while recorder.lines.is_some() {
            recorder.feed(&mut node, Timestamp(2), Input::Timer(Timer::Join));
            tokio::task::yield_now().await;
        }
        recorder.close().await;
    }

    #[tokio::test]
    async fn a_ring_keeps_its_bytes_and_its_newest_inputs() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = 256 << 10;
        let origin = Origin {
            bytes,
            ..origin(folder.path())
        };
        let _store = Store::open(folder.path(), origin.spec.id(), &Options::default()).unwrap();
        let mut node = node(&origin);
        for life in 0..2 {
            let mut recorder = Recorder::start(origin.clone()).unwrap();
            for at in 0..6000 {
                let input = if at == 0 {
                    Input::Start
                } else {
                    Input::Timer(Timer::Join)
                };
                recorder.feed(&mut node, Timestamp(life * 10_000 + at), input);
                if at % 100 == 0 {
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                }
            }
            recorder.close().await;
        }
        let segments = format::segments(&origin.folder).unwrap();
        assert!(segments.len() > 1);
        assert!(segments.iter().map(|(_, bytes)| bytes).sum::<u64>() <= bytes);
        let recording = Recording::open(folder.path()).unwrap();
        let steps = steps(&recording);
        assert!(steps.iter().all(|step| step.is_same));
        let (_, last) = *recording.runs().last().unwrap();
        assert_eq!(last, 12_000, "numbers go on in the next life");
        assert!(steps[0].number > 1, "the oldest are gone");
    }
}
