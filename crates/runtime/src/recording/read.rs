//! The reading end: what a recording holds, whether or not its member runs.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use fednode_core::{FederationId, NodeId, Role};
use fednode_store::{OpenError, StateFolder};

use super::format::{self, Header, MAGIC, MAGIC_BEGINS, Torn, VERSION};
use super::path_in;

/// Tells why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The folder is no state folder.
    #[error(transparent)]
    State(#[from] OpenError),
    /// There is no segment.
    #[error(
        "`{0}` holds no recording: a member writes one while it runs, unless its `recording_mib` is 0"
    )]
    Missing(String),
    /// The disk or its permissions.
    #[error("cannot read `{file}`: {error}")]
    Disk {
        /// The file.
        file: String,
        /// What the system says.
        error: io::Error,
    },
    /// A file of the folder is something else.
    #[error("`{0}` is no segment of a recording: move it away")]
    Foreign(String),
    /// Another form of recordings.
    #[error(
        "`{file}` is {found}, this program reads `{}`: replay it with the version that recorded it",
        form()
    )]
    Form {
        /// The file.
        file: String,
        /// Its first line.
        found: String,
    },
    /// Another version of the software, whose machine may answer otherwise.
    #[error(
        "`{file}` was recorded by version {found}, this is {VERSION}: replay it with that version"
    )]
    Version {
        /// The file.
        file: String,
        /// The version that recorded it.
        found: String,
    },
    /// Nothing is whole.
    #[error(
        "`{0}` is cut off before its first input, so nothing can be replayed: start the member again, which records anew"
    )]
    CutOff(String),
    /// It is whole, and makes no sense.
    #[error("`{file}` cannot be understood: {reason}; was it recorded by another build?")]
    Damaged {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// The folder belongs to another federation than the recording.
    #[error(
        "`{file}` is of federation {found}, its state folder of {expected}: replay it in the folder that it was recorded in"
    )]
    Federation {
        /// The file.
        file: String,
        /// The recording's federation.
        found: String,
        /// The folder's.
        expected: String,
    },
    /// There is no input of that number.
    #[error("input {number} is not recorded: there are {recorded}; choose one of them")]
    NoInput {
        /// The number.
        number: u64,
        /// The numbers that there are.
        recorded: String,
    },
}

fn form() -> String {
    String::from_utf8_lossy(MAGIC).trim_end().to_owned()
}

/// Something about a recording that its reader should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// A segment ends in the middle of a record: its member crashed, the disk was full, or it is being written.
    Torn {
        /// The file.
        file: String,
        /// Number of the last input that is whole.
        last: u64,
    },
    /// A segment is cut off before its first input.
    CutOff {
        /// The file.
        file: String,
    },
    /// A segment, and all before it, were recorded by another version.
    OtherVersion {
        /// The file.
        file: String,
        /// That version.
        version: String,
    },
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn { file, last } => write!(
                f,
                "`{file}` ends in the middle of a record; the last one that is whole is input {last}"
            ),
            Self::CutOff { file } => {
                write!(
                    f,
                    "`{file}` is cut off before its first input and is left out"
                )
            }
            Self::OtherVersion { file, version } => write!(
                f,
                "`{file}` and those before it were recorded by version {version} and are left out"
            ),
        }
    }
}

/// The segments of a state folder that this program can replay, oldest first.
#[derive(Debug)]
pub struct Recording {
    pub(super) segments: Vec<Segment>,
    remarks: Vec<Remark>,
}

/// A segment in memory.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: String,
    pub(super) header: Header,
    /// All records behind the header: the image and the inputs.
    pub(super) records: Vec<u8>,
    pub(super) n_inputs: u64,
}

impl Segment {
    /// Returns the number of the last input.
    pub(super) fn last(&self) -> u64 {
        self.header.first + self.n_inputs - 1
    }
}

/// A segment's file: what is in it, or why nothing is.
enum Look {
    Whole(Segment),
    Torn(Segment),
    CutOff,
}

impl Recording {
    /// Reads the recording of a state folder. A member may be running with it. Blocks.
    ///
    /// # Errors
    /// Says why there is nothing to replay, and what to do.
    pub fn open(state: &Path) -> Result<Self, ReadError> {
        let federation = StateFolder::open_read_only(state)?.federation();
        let folder = path_in(state);
        let found = match format::segments(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(disk(&folder, error));
            }
            found => found.unwrap_or_default(),
        };
        let mut recording = Self {
            segments: Vec::new(),
            remarks: Vec::new(),
        };
        let mut nothing = ReadError::Missing(state.display().to_string());
        for (first, _) in found {
            let path = format::file_of(&folder, first);
            let file = path.display().to_string();
            match look(&path, federation) {
                // The member that runs has made room meanwhile.
                Err(ReadError::Disk { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
                Err(ReadError::Version { file, found }) => {
                    // Only the newest segments without a break can be played, and other versions
                    // are older.
                    recording.segments.clear();
                    recording.remarks = vec![Remark::OtherVersion {
                        file: file.clone(),
                        version: found.clone(),
                    }];
                    nothing = ReadError::Version { file, found };
                }
                Err(error) => return Err(error),
                Ok(Look::CutOff) => {
                    recording
                        .remarks
                        .push(Remark::CutOff { file: file.clone() });
                    nothing = ReadError::CutOff(file);
                }
                Ok(Look::Whole(segment)) => recording.segments.push(segment),
                // Torn is no error: the newest segment of a running member ends anywhere.
                Ok(Look::Torn(segment)) => {
                    let last = segment.last();
                    recording.remarks.push(Remark::Torn { file, last });
                    recording.segments.push(segment);
                }
            }
        }
        if recording.segments.is_empty() {
            return Err(nothing);
        }
        Ok(recording)
    }

    /// Returns what its reader should know.
    pub fn remarks(&self) -> &[Remark] {
        &self.remarks
    }

    /// Returns how many segments there are.
    pub fn n_segments(&self) -> usize {
        self.segments.len()
    }

    /// Returns whose recording it is.
    pub fn owner(&self) -> Option<(NodeId, Role)> {
        let newest = self.segments.last()?;
        Some((newest.header.node, newest.header.role))
    }

    /// Returns the numbers of the inputs, as runs without a gap.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for segment in &self.segments {
            let (first, last) = (segment.header.first, segment.last());
            // Segments that follow each other without a gap are one run to a reader.
            match runs.last_mut().filter(|run| run.1 + 1 == first) {
                Some(run) => run.1 = last,
                None => runs.push((first, last)),
            }
        }
        runs
    }

    /// Checks that an input of this number is recorded.
    ///
    /// # Errors
    /// Names those that are.
    pub fn check(&self, number: u64) -> Result<(), ReadError> {
        let runs = self.runs();
        if runs
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&number))
        {
            return Ok(());
        }
        let run = |(first, last): &(u64, u64)| format!("{first} to {last}");
        let recorded = runs.iter().map(run).collect::<Vec<_>>().join(", ");
        Err(ReadError::NoInput { number, recorded })
    }
}

fn disk(path: &Path, error: io::Error) -> ReadError {
    let file = path.display().to_string();
    ReadError::Disk { file, error }
}

/// Reads a segment.
fn look(path: &PathBuf, federation: FederationId) -> Result<Look, ReadError> {
    // Whole segments fit into memory, since a ring is bounded by its owner.
    let bytes = std::fs::read(path).map_err(|error| disk(path, error))?;
    let file = path.display().to_string();
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
        return not_ours(&bytes, file);
    };
    let header: Header = match format::take(&mut rest) {
        None | Some(Err(Torn::Incomplete)) => return Ok(Look::CutOff),
        Some(Err(Torn::Unknown(error))) => {
            let reason = error.to_string();
            return Err(ReadError::Damaged { file, reason });
        }
        Some(Ok(header)) => header,
    };
    // The image has no format to keep, so another version cannot be read by guessing.
    if header.version != VERSION {
        let found = header.version;
        return Err(ReadError::Version { file, found });
    }
    if header.federation != federation {
        let (found, expected) = (header.federation.short(), federation.short());
        return Err(ReadError::Federation {
            file,
            found,
            expected,
        });
    }
    let whole = format::count(rest);
    // An image without an input tells nothing.
    let Some(n_inputs) = whole.checked_sub(1).filter(|n| *n > 0) else {
        return Ok(Look::CutOff);
    };
    let is_torn = format::bytes_of(rest, whole) < rest.len();
    let segment = Segment {
        file,
        header,
        records: rest.to_vec(),
        n_inputs,
    };
    Ok(if is_torn {
        Look::Torn(segment)
    } else {
        Look::Whole(segment)
    })
}

/// Says what a file is that does not begin as a segment of this form.
fn not_ours(bytes: &[u8], file: String) -> Result<Look, ReadError> {
    // A crash may leave a file with less than its first line.
    if MAGIC.starts_with(bytes) {
        return Ok(Look::CutOff);
    }
    if !bytes.starts_with(MAGIC_BEGINS) {
        return Err(ReadError::Foreign(file));
    }
    let line = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(&line[..line.len().min(40)]);
    let found = format!("`{line}`");
    Err(ReadError::Form { file, found })
}
