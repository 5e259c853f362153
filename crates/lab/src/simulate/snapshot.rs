//! The file that an interrupted simulation leaves behind, and from which the same command goes on.
//!
//! ```text
//! "fednode simulation\n"
//! frame     head: version of the software, all settings           a frame is its length (8 bytes, little-endian)
//! frame     state: events so far, nodes, which blobs are held     and its contents, written by postcard
//! frame     history: what was computed, in order (`fednode_sim::Answer`)
//! frame …   parameters, each set as safetensors; state names them by their place
//! 32 bytes  BLAKE3 of all before
//! ```
//!
//! It is written beside its place and renamed, so that there is always a whole one.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{BlobId, ParamSet};
use fednode_runtime::exit::ExitCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::models::Kept;
use super::play::difference;
use fednode_cli::failure::fail;

/// The file's name in the folder of a run.
pub(super) const NAME: &str = "snapshot";
/// Its name while it is written.
pub(super) const PARTIAL: &str = "snapshot.partial";

const MAGIC: &[u8] = b"fednode simulation 4\n";
const HASH_BYTES: u64 = blake3::OUT_LEN as u64;

#[derive(Serialize, Deserialize)]
struct Head {
    version: String,
    /// As JSON: settings are compared key by key.
    settings: String,
}

/// What is known at a moment; parameters by their place in the file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    /// Events of the simulator so far.
    pub(super) events: u64,
    /// Time spent so far.
    pub(super) took: Duration,
    /// The nodes.
    pub(super) nodes: Vec<Kept<u32>>,
    /// The blobs that are held.
    pub(super) contents: Vec<(BlobId, u32)>,
}

/// A snapshot that was read.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// The moment.
    pub(super) state: State,
    /// What was computed so far.
    pub(super) history: Vec<u8>,
    /// All parameters.
    pub(super) params: Vec<Arc<ParamSet>>,
}

/// Writes a snapshot in place of the last one. Gives up, and keeps the last one, as soon as `stops` says so.
///
/// # Errors
/// Fails if the disk does.
pub(super) fn write(
    path: &Path,
    settings: &Value,
    snapshot: &Snapshot,
    stops: impl Fn() -> bool,
) -> io::Result<()> {
    let partial = path.with_file_name(PARTIAL);
    let head = Head {
        version: env!("CARGO_PKG_VERSION").into(),
        settings: settings.to_string(),
    };
    let written = write_all(&partial, &head, snapshot, stops);
    match written {
        Ok(()) => fs::rename(&partial, path),
        Err(error) => {
            // What cannot be removed is overwritten by the next snapshot.
            let _ = fs::remove_file(&partial);
            Err(error)
        }
    }
}

fn write_all(
    partial: &Path,
    head: &Head,
    snapshot: &Snapshot,
    stops: impl Fn() -> bool,
) -> io::Result<()> {
    let mut out = Hashing {
        inner: BufWriter::new(File::create(partial)?),
        hasher: blake3::Hasher::new(),
    };
    out.write_all(MAGIC)?;
    write_frame(&mut out, &encoded(head)?)?;
    write_frame(&mut out, &encoded(&snapshot.state)?)?;
    write_frame(&mut out, &snapshot.history)?;
    for params in &snapshot.params {
        if stops() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        write_frame(&mut out, &params.to_bytes())?;
    }
    let Hashing { mut inner, hasher } = out;
    inner.write_all(hasher.finalize().as_bytes())?;
    inner.into_inner()?.sync_all()
}

fn encoded(value: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(io::Error::other)
}

fn write_frame(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(bytes)
}

/// Reads the snapshot of an interrupted run with these settings; `None` if there is none.
///
/// # Errors
/// Says in one line why the run cannot be gone on with: another version wrote it, a setting differs (the first one is
/// named), or the file is damaged.
pub(super) fn read(path: &Path, settings: &Value) -> anyhow::Result<Option<Snapshot>> {
    let shown = path.display();
    let refuse = |text: String| Err(fail(ExitCode::State, text));
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return refuse(format!("cannot read `{shown}`: {error}")),
    };
    let damaged = |error: Fault| match error {
        Fault::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            fail(ExitCode::State, format!("cannot read `{shown}`: {error}"))
        }
        _ => fail(
            ExitCode::State,
            format!(
                "`{shown}` is cut off or damaged, or of another fednode: remove it to begin anew"
            ),
        ),
    };
    let mut frames = Frames::open(file).map_err(damaged)?;
    let head: Head = frames.decoded().map_err(damaged)?;
    if head.version != env!("CARGO_PKG_VERSION") {
        let version = head.version;
        return refuse(format!(
            "`{shown}` was left by fednode {version}: go on with that, or remove it to begin anew"
        ));
    }
    let then: Value = serde_json::from_str(&head.settings).map_err(|_| damaged(Fault::Damaged))?;
    if let Some(difference) = difference(&then, settings) {
        let text = format!(
            "`{shown}` is of a run with {difference}: name another --out, or remove it to begin anew"
        );
        return refuse(text);
    }
    frames.snapshot().map(Some).map_err(damaged)
}

/// What is wrong with a file.
#[derive(Debug)]
enum Fault {
    Io(io::Error),
    Damaged,
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A file being read.
struct Frames {
    file: BufReader<File>,
    /// Bytes before the hash that are not read yet.
    left: u64,
}

impl Frames {
    fn open(file: File) -> Result<Self, Fault> {
        let length = file.metadata()?.len();
        let left = length
            .checked_sub(HASH_BYTES + MAGIC.len() as u64)
            .ok_or(Fault::Damaged)?;
        let mut file = BufReader::new(file);
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic)?;
        if magic == *MAGIC {
            Ok(Self { file, left })
        } else {
            Err(Fault::Damaged)
        }
    }

    fn next(&mut self) -> Result<Vec<u8>, Fault> {
        let mut length = [0; 8];
        self.left = self.left.checked_sub(8).ok_or(Fault::Damaged)?;
        self.file.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        self.left = self.left.checked_sub(length).ok_or(Fault::Damaged)?;
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| Fault::Damaged)?];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn decoded<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        postcard::from_bytes(&self.next()?).map_err(|_| Fault::Damaged)
    }

    /// Checks the hash, then reads the rest.
    fn snapshot(mut self) -> Result<Snapshot, Fault> {
        let here = self.file.stream_position()?;
        self.check()?;
        self.file.seek(SeekFrom::Start(here))?;
        let (state, history) = (self.decoded()?, self.next()?);
        let mut params = Vec::new();
        while self.left > 0 {
            params.push(Arc::new(
                ParamSet::decode(&self.next()?).map_err(|_| Fault::Damaged)?,
            ));
        }
        Ok(Snapshot {
            state,
            history,
            params,
        })
    }

    fn check(&mut self) -> Result<(), Fault> {
        let end = self.file.seek(SeekFrom::End(0))? - HASH_BYTES;
        self.file.seek(SeekFrom::Start(0))?;
        let mut hasher = blake3::Hasher::new();
        io::copy(&mut self.file.by_ref().take(end), &mut hasher)?;
        let mut hash = [0; blake3::OUT_LEN];
        self.file.read_exact(&mut hash)?;
        if hasher.finalize() == hash {
            Ok(())
        } else {
            Err(Fault::Damaged)
        }
    }
}

/// Hashes what it hands on.
struct Hashing<W> {
    inner: W,
    hasher: blake3::Hasher,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Returns where a run's snapshot is.
pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_cli::failure::one_line;

    fn settings(rounds: u32) -> Value {
        serde_json::json!({ "federation": { "rounds": rounds, "lr": 0.1 } })
    }

    fn snapshot() -> Snapshot {
        let mut params = ParamSet::new();
        params
            .insert("weight", &[2], vec![0.1, f32::MIN_POSITIVE])
            .unwrap();
        let contents = vec![(BlobId::of(b"x"), 0)];
        let state = State {
            events: 7,
            took: Duration::from_millis(1500),
            nodes: Vec::new(),
            contents,
        };
        Snapshot {
            state,
            history: vec![1, 2, 3],
            params: vec![Arc::new(params)],
        }
    }

    fn error(path: &Path) -> String {
        one_line(&read(path, &settings(6)).unwrap_err())
    }

    #[test]
    fn snapshot_reads_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path());
        assert!(read(&path, &settings(6)).unwrap().is_none());
        write(&path, &settings(6), &snapshot(), || false).unwrap();
        let read = read(&path, &settings(6)).unwrap().unwrap();
        assert_eq!(
            (read.state.events, read.state.took, read.history),
            (7, Duration::from_millis(1500), vec![1, 2, 3])
        );
        assert_eq!(
            (read.params, read.state.contents),
            (snapshot().params, snapshot().state.contents)
        );
        assert!(!folder.path().join(PARTIAL).exists());
    }

    #[test]
    fn changed_settings_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path());
        write(&path, &settings(5), &snapshot(), || false).unwrap();
        assert!(
            error(&path).contains("is of a run with `federation.rounds` = 5, not 6"),
            "{}",
            error(&path)
        );
    }

    #[test]
    fn a_cut_or_flipped_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path());
        write(&path, &settings(6), &snapshot(), || false).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in [0, 10, MAGIC.len() + 40, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(
                error(&path).contains("cut off or damaged"),
                "{length}: {}",
                error(&path)
            );
        }
        let mut flipped = whole.clone();
        let last_parameter = whole.len() - HASH_BYTES as usize - 1;
        flipped[last_parameter] ^= 1;
        fs::write(&path, &flipped).unwrap();
        assert!(error(&path).contains("cut off or damaged"));
    }

    #[test]
    fn another_version_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path());
        let head = Head {
            version: "0.0.1".into(),
            settings: settings(6).to_string(),
        };
        write_all(&path, &head, &snapshot(), || false).unwrap();
        assert!(
            error(&path).contains("was left by fednode 0.0.1"),
            "{}",
            error(&path)
        );
    }

    #[test]
    fn abandoned_snapshot_keeps_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path());
        write(&path, &settings(6), &snapshot(), || false).unwrap();
        let later = Snapshot {
            history: vec![9],
            ..snapshot()
        };
        assert!(write(&path, &settings(6), &later, || true).is_err());
        assert_eq!(
            read(&path, &settings(6)).unwrap().unwrap().history,
            [1, 2, 3]
        );
        assert!(!folder.path().join(PARTIAL).exists());
    }
}
