//! The federation of a folder: the spec that is there, one with the id of another run, or a new one.

use std::fs;
use std::path::Path;

use fednode_core::{ConfigError, FederationSpec};
use fednode_data::DataSource;
use fednode_files::{owner, whole_file};
use fednode_learn::own_model;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::organiser::{self, Organiser};
use fednode_runtime::streams::say;

use super::{Args, Entry, privacy, run_id, source, unwritable, write_if_absent};
use crate::command::start::read_and_tell;
use fednode_cli::data::{self, Division};
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::federation;
use fednode_cli::files::SPEC as SPEC_FILE;
use fednode_cli::output::Form;

/// The federation that is prepared.
pub(super) struct Federation {
    pub(super) spec: FederationSpec,
    pub(super) file: Entry,
    /// Whoever admits its members, if that is done here.
    pub(super) organiser: Option<Organiser>,
    /// The text of the spec with the id of another run, not written yet.
    renewed: Option<String>,
}

impl Federation {
    /// Reads the spec that is there, or makes one.
    pub(super) fn prepare(args: &Args, form: Form) -> anyhow::Result<Self> {
        let path = args.dir.join(SPEC_FILE);
        let file = Entry::of(&path);
        if file.existed {
            return Self::that_is_there(args, &path, file);
        }
        if args.again {
            let text = format!(
                "there is no `{}` to run again: leave --again out",
                path.display()
            );
            return Err(fail(ExitCode::Configuration, text));
        }
        Self::new(args, &path, file, form)
    }

    fn that_is_there(args: &Args, path: &Path, file: Entry) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| unwritable(path, &error))?;
        let named = |error| {
            let text = format!("`{}`: {error}", path.display());
            fail(ExitCode::Configuration, text)
        };
        let organiser = args.dir.join(organiser::FOLDER);
        let organiser = organiser.exists().then(|| Organiser::open(&organiser));
        let organiser = organiser.transpose().or_fail(ExitCode::State)?;
        let mut spec = read_and_tell(&text).map_err(named)?;
        // The id is drawn by the organiser. Members have its new file here already.
        let draws = args.again && (organiser.is_some() || spec.organiser.is_none());
        let renewed = draws.then(|| run_id::renewed(&text, &run_id::fresh()));
        let renewed = renewed.transpose().map_err(named)?;
        if let Some(text) = &renewed {
            spec = FederationSpec::from_toml(text).map_err(named)?;
        }
        own_model::check(&spec).map_err(|error| named(ConfigError(error.to_string())))?;
        Ok(Self {
            spec,
            file,
            organiser,
            renewed,
        })
    }

    fn new(args: &Args, path: &Path, file: Entry, form: Form) -> anyhow::Result<Self> {
        let source = source(args)?;
        let facts = data::facts(&source)?;
        data::warn_of_table(&source, None)?;
        let federation = privacy::with_answer(with_partition(args, &source), &facts, form)?;
        let mut spec = federation::spec(&federation, &facts).or_fail(ExitCode::Configuration)?;
        if facts.is_table
            && data::is_own(&spec.data.partition)
            && spec.fingerprints.columns.is_empty()
            && spec.data.columns.is_empty()
        {
            say(format_args!(
                "warning: the table's columns have no names, or two the same: nothing will tell whether another node's table has \
                 them in the same order; a header with distinct names would"
            ));
        }
        let division = Division::make(&source, &spec, args.federation.partition_file.as_deref())?;
        spec.fingerprints.partition = Some(division.hash).filter(|hash| !hash.is_empty());
        // Whoever mistypes something finds no empty folder afterwards: only now nothing is wrong any more.
        owner::make_folders(&args.dir).map_err(|error| unwritable(&args.dir, &error))?;
        let organiser = (!args.open)
            .then(|| make_organiser(&args.dir))
            .transpose()?;
        spec.organiser = organiser.as_ref().map(Organiser::id);
        spec.fingerprints.run = Some(run_id::fresh());
        write_if_absent(path, || Ok(spec.to_toml()))?;
        Ok(Self {
            spec,
            file,
            organiser,
            renewed: None,
        })
    }

    /// Writes the spec with the id of another run, if there is one.
    pub(super) fn write_renewed(&self, args: &Args) -> anyhow::Result<()> {
        let Some(text) = &self.renewed else {
            return Ok(());
        };
        let path = args.dir.join(SPEC_FILE);
        whole_file::write(&path, text.as_bytes()).map_err(|error| unwritable(&path, &error))
    }
}

/// Makes the organiser's key, or takes the one of an earlier attempt.
fn make_organiser(dir: &Path) -> anyhow::Result<Organiser> {
    let folder = dir.join(organiser::FOLDER);
    let organiser = if folder.join("key").exists() {
        Organiser::open(&folder)
    } else {
        Organiser::create(&folder)
    };
    organiser.or_fail(ExitCode::State)
}

/// Sources that hold somebody's own files, and no data set that everybody knows.
const OWN_FILES: [&str; 3] = ["csv", "folder", "text"];

/// Returns the flags with a partition: whoever prepares a federation with files of its own wants each node to have its own,
/// unless something else is said.
fn with_partition(args: &Args, source: &DataSource) -> federation::Args {
    let federation = &args.federation;
    let is_said = federation.partition.is_some()
        || federation.partition_file.is_some()
        || federation.set.iter().any(|set| set.key == "data.partition");
    let are_own = !is_said && OWN_FILES.contains(&source.kind().name) && args.shard.is_none();
    federation::Args {
        partition: federation
            .partition
            .clone()
            .or_else(|| are_own.then(|| data::OWN.to_owned())),
        ..federation.clone()
    }
}
