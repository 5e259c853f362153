//! The data of all nodes, for who has it all on one machine: one data set that is divided, or files of each node's own.

use std::path::Path;

use fednode_core::FederationSpec;
use fednode_core::spec::width_of;
use fednode_data::table::{Proposal, Survey};
use fednode_data::{DataSource, Shard, load_shard, load_shards};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;
use serde::{Serialize, Serializer};

use super::division::{Division, partition_text, shard_params};
use super::{OWN, facts, is_own, refuse_own, source};
use crate::backbone;
use crate::failure::{OrFail, fail};
use crate::federation::{Args, DataFacts};

/// Where the data of all nodes comes from.
#[derive(Debug, Clone)]
pub enum Sources {
    /// One data set, which is divided among them.
    Divided(DataSource),
    /// Each node's own.
    Own(Vec<DataSource>),
}

impl Sources {
    /// Reads one source for all, or one for each node.
    ///
    /// # Errors
    /// Says what is possible.
    pub fn read(data: &str, own: &[String]) -> anyhow::Result<Self> {
        if own.is_empty() {
            return source(data).map(Self::Divided);
        }
        let sources: anyhow::Result<Vec<DataSource>> =
            own.iter().map(|text| source(text)).collect();
        sources.map(Self::Own)
    }

    /// Returns the same sources with every path changed.
    #[must_use]
    pub fn map(self, change: impl Fn(&DataSource) -> DataSource) -> Self {
        match self {
            Self::Divided(source) => Self::Divided(change(&source)),
            Self::Own(sources) => Self::Own(sources.iter().map(change).collect()),
        }
    }

    /// Returns the same sources behind what a spec wants in front of its models.
    ///
    /// # Errors
    /// As [`backbone::of`].
    pub fn behind(self, spec: &FederationSpec, file: Option<&Path>) -> anyhow::Result<Self> {
        let extractor = backbone::of(spec, file, 0)?;
        Ok(self.map(|source| source.clone().with_extractor(extractor.clone())))
    }

    /// Returns where a node's samples come from, counted from 0.
    ///
    /// # Panics
    /// Panics if there are fewer sources of one's own.
    pub fn of_node(&self, node: usize) -> &DataSource {
        match self {
            Self::Divided(source) => source,
            Self::Own(sources) => &sources[node],
        }
    }

    /// Tells whether each node has its own.
    pub fn are_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// Returns what they say of themselves. Raw tables of several nodes are described by what all of them hold.
    ///
    /// # Errors
    /// Names the file that is missing or damaged, or does not go with the first.
    pub fn facts(&self) -> anyhow::Result<DataFacts> {
        match self {
            Self::Divided(source) => {
                refuse_useless(source)?;
                facts(source)
            }
            Self::Own(sources) => {
                sources.iter().try_for_each(refuse_useless)?;
                of_all(sources)
            }
        }
    }

    /// Refuses a spec that is for other data than these, and adapts flags to data of the nodes' own: there are as many nodes
    /// as sources.
    ///
    /// # Errors
    /// Says what contradicts what.
    pub fn suit(&self, args: &Args) -> anyhow::Result<Args> {
        let Self::Own(sources) = self else {
            return Ok(args.clone());
        };
        let n_nodes = sources.len() as u32;
        if args.nodes.is_some_and(|nodes| nodes != n_nodes) {
            let text =
                format!("--own is given {n_nodes} times: leave out --nodes, or say {n_nodes}");
            return Err(fail(ExitCode::Configuration, text));
        }
        if args
            .partition
            .as_deref()
            .is_some_and(|partition| !is_own(partition))
            || args.partition_file.is_some()
        {
            let text = "with --own nothing is divided: the partition is `own`, or `own:SHARE` for the share of test rows";
            return Err(fail(ExitCode::Configuration, text));
        }
        Ok(Args {
            nodes: Some(n_nodes),
            partition: args.partition.clone().or_else(|| Some(OWN.into())),
            ..args.clone()
        })
    }

    /// Divides as a spec says.
    ///
    /// # Errors
    /// As [`Division::make`].
    pub fn division(&self, spec: &FederationSpec, file: Option<&Path>) -> anyhow::Result<Division> {
        match self {
            Self::Divided(source) => {
                refuse_own(spec, "name each node's with --own")?;
                Division::make(source, spec, file)
            }
            Self::Own(sources) => {
                let each = sources
                    .iter()
                    .map(|source| Division::make(source, spec, file));
                Ok(Division::of_own(each.collect::<anyhow::Result<_>>()?))
            }
        }
    }

    /// Reads the shards of all nodes.
    ///
    /// # Errors
    /// Names the file that is missing or damaged.
    pub fn shards(&self, spec: &FederationSpec, file: Option<&Path>) -> anyhow::Result<Vec<Shard>> {
        let (partition, params) = (
            partition_text(&spec.data.partition, file)?,
            shard_params(spec),
        );
        match self {
            Self::Divided(source) => {
                load_shards(&source.clone().for_federation(spec), &partition, &params)
                    .or_fail(ExitCode::Data)
            }
            Self::Own(sources) => sources
                .iter()
                .map(|source| {
                    load_shard(&source.clone().for_federation(spec), &partition, &params, 0)
                })
                .collect::<Result<_, _>>()
                .or_fail(ExitCode::Data),
        }
    }

    /// Reads the shard of the first node.
    ///
    /// # Errors
    /// As [`Self::shards`].
    pub fn first(&self, spec: &FederationSpec, file: Option<&Path>) -> anyhow::Result<Shard> {
        let source = self.of_node(0).clone().for_federation(spec);
        let (partition, params) = (
            partition_text(&spec.data.partition, file)?,
            shard_params(spec),
        );
        load_shard(&source, &partition, &params, 0).or_fail(ExitCode::Data)
    }
}

/// Refuses a table none of whose columns says anything.
fn refuse_useless(source: &DataSource) -> anyhow::Result<()> {
    let survey = source.open().and_then(|opened| opened.survey());
    let survey = survey.or_fail(ExitCode::Data)?;
    if survey.is_none_or(|survey| !survey.columns().is_empty()) {
        return Ok(());
    }
    let text = format!(
        "`{source}` has no column that can be learned from: `fednode data` lists them, with the reasons"
    );
    Err(fail(ExitCode::Data, text))
}

/// Puts together what the nodes' own sources say of themselves.
fn of_all(sources: &[DataSource]) -> anyhow::Result<DataFacts> {
    let each: Vec<DataFacts> = sources.iter().map(facts).collect::<anyhow::Result<_>>()?;
    // Who has fewer classes than another one may take part: all are counted as they are where there are most.
    let first = (0..each.len())
        .rev()
        .max_by_key(|at| each[*at].classes)
        .unwrap_or_default();
    let (mut all, first) = (each[first].clone(), &sources[first]);
    for (at, (source, facts)) in sources.iter().zip(&each).enumerate() {
        let text = source.to_string();
        if sources[..at].iter().any(|other| other.to_string() == text) {
            let text = format!("`{text}` is given twice: each node needs data of its own");
            return Err(fail(ExitCode::Data, text));
        }
        if let Some(difference) = difference(facts, &all) {
            let text = format!("`{source}` does not go with `{first}`: it has {difference}");
            return Err(fail(ExitCode::Data, text));
        }
    }
    if let Some(target) = &mut all.target {
        let ranges = each.iter().filter_map(|facts| facts.target.as_ref());
        for other in ranges {
            target.range[0] = target.range[0].min(other.range[0]);
            target.range[1] = target.range[1].max(other.range[1]);
        }
    }
    // Of nodes of different sizes, what suits the middle one.
    let mut sizes: Vec<usize> = each.iter().map(|facts| facts.samples).collect();
    sizes.sort_unstable();
    all.samples = sizes[sizes.len() / 2];
    if !all.described.is_empty() {
        let surveys = sources.iter().map(surveyed);
        let surveys: Vec<Survey> = surveys.collect::<anyhow::Result<_>>()?;
        let together = joined(&surveys);
        all.described = together.columns();
        for note in left_out(sources, &surveys, &together) {
            say(format_args!("note: {note}"));
        }
        if all.described.is_empty() {
            let text = "the tables have no column in common that can be learned from: `fednode data FILE` lists them";
            return Err(fail(ExitCode::Data, text));
        }
        all.input = [1, 1, width_of(&all.described)];
    }
    Ok(all)
}

/// Says what a node's data have that those of another one have not, if they cannot be in one federation.
fn difference(facts: &DataFacts, others: &DataFacts) -> Option<String> {
    let both = "name the column for both with `,target=COLUMN`, or with `,label=COLUMN`";
    match (&facts.target, &others.target) {
        (Some(_), None) => return Some(format!("a number to predict, and no classes: {both}")),
        (None, Some(_)) => return Some(format!("classes, and no number to predict: {both}")),
        (Some(own), Some(other)) if own.name != other.name => {
            let text = format!(
                "the number `{}` to predict, not `{}`: name one column for both with `,target=COLUMN`",
                own.name, other.name
            );
            return Some(text);
        }
        _ => {}
    }
    let are_known = facts.classes <= others.classes
        && facts
            .class_names
            .iter()
            .all(|name| others.class_names.contains(name));
    if !are_known {
        let text = format!(
            "the classes {}, not {}: give them the same names, by `,classes=LABEL=>NAME|…`",
            listed(&facts.class_names),
            listed(&others.class_names)
        );
        return Some(text);
    }
    let has_table = |facts: &DataFacts| !facts.described.is_empty();
    if has_table(facts) != has_table(others) || facts.is_table != others.is_table {
        return Some("samples of another kind".to_owned());
    }
    let has_another_shape = !has_table(facts) && facts.input != others.input;
    has_another_shape.then(|| {
        let [own, other] = [facts, others].map(|facts| {
            let [channels, height, width] = facts.input;
            format!("{channels}x{height}x{width}")
        });
        let remedy = match facts.is_table {
            true => "give both the same columns",
            false => "images of folders become alike by `,resize=HEIGHTxWIDTH` and `,channels=N` for both",
        };
        format!("samples of {own} numbers, not {other}: {remedy}")
    })
}

/// Classes that are shown.
const SHOWN: usize = 6;

/// Lists some names.
fn listed(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).map(|name| format!("`{name}`"));
    let more = names.len().saturating_sub(SHOWN);
    let more = (more > 0).then(|| format!("{more} more"));
    shown.chain(more).collect::<Vec<_>>().join(", ")
}

/// Looks at a table.
fn surveyed(source: &DataSource) -> anyhow::Result<Survey> {
    let survey = source.open().and_then(|opened| opened.survey());
    Ok(survey.or_fail(ExitCode::Data)?.unwrap_or_default())
}

/// Looks at all tables together.
fn joined(surveys: &[Survey]) -> Survey {
    let mut all = surveys.first().cloned().unwrap_or_default();
    surveys.iter().skip(1).for_each(|other| all.join(other));
    all
}

/// Says which columns that some table could be learned from are left out for all, and why.
fn left_out(sources: &[DataSource], surveys: &[Survey], together: &Survey) -> Vec<String> {
    let proposals: Vec<_> = surveys.iter().map(Survey::proposals).collect();
    let together = together.proposals();
    let mut usable: Vec<&String> = Vec::new();
    for proposal in proposals.iter().flatten().filter(|one| one.column.is_ok()) {
        let is_it = |known: &&String| known.eq_ignore_ascii_case(&proposal.name);
        if !usable.iter().any(is_it) {
            usable.push(&proposal.name);
        }
    }
    let note = |name: &String| {
        let is_it = |one: &&Proposal| one.name.eq_ignore_ascii_case(name);
        let find = |all: &[Proposal]| all.iter().find(is_it).cloned();
        let why = match find(&together) {
            Some(Proposal { column: Ok(_), .. }) => return None,
            Some(Proposal {
                column: Err(why), ..
            }) => format!("in all tables together it {why}"),
            None => {
                let lacks = proposals.iter().position(|all| find(all).is_none())?;
                format!("`{}` has no such column", sources[lacks])
            }
        };
        Some(format!("column `{name}` is left out for all nodes: {why}"))
    };
    usable.into_iter().filter_map(note).collect()
}

impl std::fmt::Display for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Divided(source) => source.fmt(f),
            Self::Own(sources) => write!(f, "{} own data sets", sources.len()),
        }
    }
}

impl Serialize for Sources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Divided(source) => serializer.collect_str(source),
            Self::Own(sources) => serializer.collect_seq(sources.iter().map(ToString::to_string)),
        }
    }
}
