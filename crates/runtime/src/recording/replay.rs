//! The same machine, given the same inputs: its answers must be those of then.

use std::sync::Arc;

use fednode_core::config::ConfigError;
use fednode_core::{FederationSpec, Role, Round, Timestamp};
use fednode_engine::image::ForeignImage;
use fednode_engine::{Aggregator, Input, Node, Output, Phase, Status};
use fednode_net::codec;

use super::format::{self, Beginning, Header, Image, Moment, Torn};
use super::read::{ReadError, Recording, Segment};
use crate::machine::Machine;

/// Tells why a replay cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The recording.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The spec of a segment.
    #[error("the spec in `{file}` cannot be read: {error}")]
    Spec {
        /// The file.
        file: String,
        /// Why.
        error: ConfigError,
    },
    /// The image and the spec of a segment do not belong together.
    #[error("the image in `{file}` is of {error}")]
    Image {
        /// The file.
        file: String,
        /// Why.
        error: ForeignImage,
    },
    /// The machine that the next segment begins with is another than the one that was replayed.
    #[error("after input {0} the machine stands otherwise than it did then")]
    StandsOtherwise(u64),
}

/// Inputs that were not written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The first that is missing.
    pub first: u64,
    /// The last that is missing.
    pub last: u64,
}

/// Where a machine stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// What it is.
    pub role: Role,
    /// What it waits for.
    pub phase: Phase,
    /// The round that it works on.
    pub round: Round,
}

/// An input that was given to the machine once more.
#[derive(Debug, Clone)]
pub struct Step {
    /// The number of the input.
    pub number: u64,
    /// The machine's time.
    pub at: Timestamp,
    /// Why a segment begins here, if one does.
    pub begins: Option<Beginning>,
    /// What is missing before it.
    pub gap: Option<Gap>,
    /// Where the machine stood.
    pub before: Standing,
    /// The input.
    pub input: Input,
    /// What the machine answered now.
    pub outputs: Vec<Output>,
    /// Where it stands now.
    pub after: Standing,
    /// Whether it answered the same as then.
    pub is_same: bool,
}

/// Plays a recording, one input at a time.
pub struct Player<'r> {
    /// Segments that come after the one that is played.
    later: std::slice::Iter<'r, Segment>,
    playing: Option<Playing<'r>>,
}

impl std::fmt::Debug for Player<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = self.playing.as_ref().map(|playing| playing.number);
        f.debug_struct("Player")
            .field("next", &number)
            .finish_non_exhaustive()
    }
}

/// A segment whose inputs are given to its machine.
struct Playing<'r> {
    segment: &'r Segment,
    machine: Box<dyn Machine>,
    /// Records that are left.
    rest: &'r [u8],
    /// The number of the next input.
    number: u64,
    at: Timestamp,
}

impl<'r> Player<'r> {
    /// Begins with the segment that holds an input, or with the oldest one.
    ///
    /// # Errors
    /// Fails if no input of that number is recorded.
    pub fn new(recording: &'r Recording, holds: Option<u64>) -> Result<Self, ReadError> {
        let mut skipped = 0;
        if let Some(number) = holds {
            recording.check(number)?;
            let before = |segment: &&Segment| segment.last() < number;
            skipped = recording.segments.iter().take_while(before).count();
        }
        Ok(Self {
            later: recording.segments[skipped..].iter(),
            playing: None,
        })
    }

    /// Returns what the machine is doing after the last step; `None` before the first.
    pub fn status(&self) -> Option<Status> {
        let playing = self.playing.as_ref()?;
        Some(playing.machine.status(playing.at))
    }

    /// Returns the whole state of the machine after the last step; `None` before the first.
    pub fn image(&self) -> Option<Image> {
        self.playing.as_ref().map(|playing| playing.machine.image())
    }

    /// Gives the next input to the machine; `None` when all were.
    ///
    /// # Errors
    /// Fails on a segment that makes no sense, and on a machine that stands otherwise than it did then.
    pub fn step(&mut self) -> Result<Option<Step>, ReplayError> {
        if let Some(step) = self
            .playing
            .as_mut()
            .map(Playing::step)
            .transpose()?
            .flatten()
        {
            return Ok(Some(step));
        }
        let Some(segment) = self.later.next() else {
            return Ok(None);
        };
        // A machine of its own for every segment: what one segment got wrong must not spoil the
        // next.
        let next = Playing::begin(segment)?;
        let expected = self.playing.as_ref().map(|before| before.number);
        if let Some(before) = self
            .playing
            .as_ref()
            .filter(|before| next.goes_on_after(before))
        {
            before.compare(&next)?;
        }
        let first = segment.header.first;
        let missing = expected.filter(|expected| *expected < first);
        let gap = missing.map(|expected| Gap {
            first: expected,
            last: first - 1,
        });
        let step = self.playing.insert(next).step()?;
        Ok(step.map(|step| Step {
            begins: Some(segment.header.beginning),
            gap,
            ..step
        }))
    }
}

impl<'r> Playing<'r> {
    fn begin(segment: &'r Segment) -> Result<Self, ReplayError> {
        let mut rest = segment.records.as_slice();
        let image = format::take(&mut rest).ok_or_else(|| cut_off(segment))?;
        let image: Image = image.map_err(|torn| unreadable(segment, torn))?;
        Ok(Self {
            machine: machine_of(segment, image)?,
            segment,
            rest,
            number: segment.header.first,
            at: Timestamp::default(),
        })
    }

    /// Tells whether nothing happened between the end of a segment and the beginning of this one.
    fn goes_on_after(&self, before: &Self) -> bool {
        let Header {
            beginning, first, ..
        } = self.segment.header;
        beginning == Beginning::Full && first == before.number
    }

    /// Compares the machine that was replayed with the one that the next segment begins with.
    fn compare(&self, next: &Self) -> Result<(), ReplayError> {
        // Bytes are compared and not fields, so that a field that is added later counts by itself.
        let [replayed, recorded] = [self, next].map(|one| codec::encode(&one.machine.image()));
        if replayed == recorded {
            Ok(())
        } else {
            Err(ReplayError::StandsOtherwise(self.number - 1))
        }
    }

    /// Gives the next input to the machine; `None` at the end of the segment, torn or not.
    fn step(&mut self) -> Result<Option<Step>, ReplayError> {
        let moment: Moment = match format::take(&mut self.rest) {
            None | Some(Err(Torn::Incomplete)) => return Ok(None),
            Some(moment) => moment.map_err(|torn| unreadable(self.segment, torn))?,
        };
        let Moment { at, input, answer } = moment;
        let (number, before) = (self.number, self.standing());
        let outputs = self.machine.handle(at, input.clone());
        (self.number, self.at) = (number + 1, at);
        Ok(Some(Step {
            number,
            at,
            begins: None,
            gap: None,
            before,
            input,
            // A hash is enough to tell that they differ. What they were then is not kept; it would
            // double the file.
            is_same: format::answer_of(&outputs) == answer,
            outputs,
            after: self.standing(),
        }))
    }

    fn standing(&self) -> Standing {
        Standing {
            role: self.segment.header.role,
            phase: self.machine.phase(),
            round: self.machine.round(),
        }
    }
}

fn machine_of(segment: &Segment, image: Image) -> Result<Box<dyn Machine>, ReplayError> {
    let spec = FederationSpec::from_toml(&segment.header.spec);
    let spec = spec.and_then(|spec| {
        let extensions = &segment.header.extensions;
        let newest = extensions.last().map_or(Round::ZERO, |more| more.after);
        let followed = spec.extended_by(extensions, segment.header.since.max(newest));
        followed.trouble.map_or(Ok(followed.spec), Err)
    });
    let spec = Arc::new(spec.map_err(|error| ReplayError::Spec {
        file: segment.file.clone(),
        error,
    })?);
    let machine: Result<Box<dyn Machine>, ForeignImage> = match image {
        Image::Node(image) => Node::from_image(spec, *image).map(|node| Box::new(node) as _),
        Image::Aggregator(image) => {
            Aggregator::from_image(spec, *image).map(|aggregator| Box::new(aggregator) as _)
        }
    };
    machine.map_err(|error| ReplayError::Image {
        file: segment.file.clone(),
        error,
    })
}

fn cut_off(segment: &Segment) -> ReadError {
    ReadError::CutOff(segment.file.clone())
}

fn unreadable(segment: &Segment, torn: Torn) -> ReadError {
    match torn {
        Torn::Incomplete => cut_off(segment),
        Torn::Unknown(error) => ReadError::Damaged {
            file: segment.file.clone(),
            reason: error.to_string(),
        },
    }
}
