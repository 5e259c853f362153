//! `fednode export --out FILE`: a node's model for others: as parameters, or as a graph that runs elsewhere.
//!
//! | format | holds | beside it |
//! |---|---|---|
//! | safetensors | all parameters, under the names and in the layouts of PyTorch | a JSON card that says how to use them |
//! | ONNX | what is served as one graph, from input to probabilities | nothing: the graph carries what describes it |

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fednode_data::{Pixels, Samples};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;
use serde::Serialize;
use serde_json::{Value, json};

use fednode_cli::failure::{OrFail, fail};
use fednode_cli::model::{Model, ModelArgs};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::bytes;
use fednode_files::whole_file;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The file to write; the card of a safetensors file goes beside it with the ending json.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// What to write; without it the file's ending decides, and other endings than onnx mean safetensors.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Replace files that are there already.
    #[arg(long)]
    force: bool,
}

/// What a model is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// The parameters, for `--initial`, `--model` and PyTorch.
    Safetensors,
    /// The served model as one graph, for any runtime that reads ONNX.
    Onnx,
}

impl Format {
    /// Takes what is typed, or what the file's ending says.
    ///
    /// # Errors
    /// Refuses to write a format under the ending of another.
    fn of(args: &Args) -> anyhow::Result<Self> {
        let ending = args.out.extension().unwrap_or_default();
        let said = match ending.to_string_lossy().to_ascii_lowercase().as_str() {
            "onnx" => Some(Self::Onnx),
            "safetensors" | "json" => Some(Self::Safetensors),
            _ => None,
        };
        let chosen = args.format.or(said).unwrap_or(Self::Safetensors);
        if said.is_none_or(|said| said == chosen) {
            return Ok(chosen);
        }
        let (path, name) = (args.out.display(), chosen.name());
        let text = format!("`{path}` would be read as another format: let it end in .{name}");
        Err(fail(ExitCode::Usage, text))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Onnx => "onnx",
        }
    }
}

/// Writes the files.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let format = Format::of(args)?;
    let card = args.out.with_extension("json");
    let is_replaced = |path: &Path| !args.force && path.exists();
    let mut written =
        std::iter::once(&args.out).chain((format == Format::Safetensors).then_some(&card));
    if let Some(path) = written.find(|path| is_replaced(path)) {
        let path = path.display();
        let text =
            format!("`{path}` is there already: choose another name, or replace it with --force");
        return Err(fail(ExitCode::Usage, text));
    }
    let model = args.model.load()?;
    let spec = model.spec();
    // What was trained with noise is covered wherever it goes.
    let experts = spec.exchange.experts.as_ref();
    let has_statistics =
        spec.exchange.total.is_some() || experts.is_some_and(|one| one.noise.is_some());
    let is_exact = has_statistics || spec.pool.is_enabled();
    if let Some(epsilon) = spec.privacy.epsilon.filter(|_| is_exact) {
        say(format_args!(
            "warning: the promise of epsilon {epsilon} is for what the node publishes by itself: an exported model comes of \
             exact statistics and of training without noise, so give it to nobody who may not see the data"
        ));
    }
    let (card, n_bytes) = match format {
        Format::Safetensors => {
            let card = write_model(&args.out, &model)?;
            (Some(card), model.params.to_bytes().len())
        }
        Format::Onnx => {
            let file = graph(&model, &args.model.device)?;
            write(&args.out, &file)?;
            (None, file.len())
        }
    };
    let written = Written {
        model: args.out.clone(),
        format: format.name(),
        card,
        bytes: n_bytes as u64,
        parameters: model.params.n_values() as u64,
        tensors: model.params.len() as u64,
        from: model.path,
    };
    output::print(&written, form)
}

/// Makes the graph of what a model serves.
fn graph(model: &Model, device: &str) -> anyhow::Result<Vec<u8>> {
    let learner = model.learner(&blank(model)?, device)?;
    learner.onnx(&about(model)?).or_fail(ExitCode::State)
}

/// Makes one sample of the kind that a model reads.
fn blank(model: &Model) -> anyhow::Result<Samples> {
    let (spec, architecture) = (model.spec(), model.spec().architecture());
    let shape = match spec.data.columns.len() {
        0 => architecture.input,
        columns => [1, 1, columns],
    };
    let n_values = shape.iter().product();
    let pixels = match model.vocabulary()? {
        Some(vocabulary) => Pixels::Tokens {
            ids: vec![fednode_data::Vocabulary::PADDING; n_values],
            vocabulary,
        },
        None => Pixels::Floats(vec![0.0; n_values]),
    };
    if let Some(target) = &spec.data.target {
        let samples = Samples::of_numbers(shape, pixels, vec![target.number(0.0)], &target.name);
        return samples.or_fail(ExitCode::State);
    }
    let names: Arc<[String]> = class_names(model, architecture.classes).into();
    Samples::new(shape, pixels, vec![0], names).or_fail(ExitCode::State)
}

fn class_names(model: &Model, classes: usize) -> Vec<String> {
    let numbers = 0..u16::try_from(classes).unwrap_or(u16::MAX);
    numbers.map(|class| model.class_name(class)).collect()
}

/// Returns what is written beside the graph.
fn about(model: &Model) -> anyhow::Result<Vec<(&'static str, String)>> {
    let (spec, card) = (model.spec(), &model.card.model);
    let classes = class_names(model, spec.architecture().classes);
    let column = |column: &fednode_core::spec::TableColumn| json!({ "name": column.name, "kind": column.kind, "levels": column.levels });
    let named = |name: &String| json!({ "name": name });
    let mut columns: Vec<Value> = spec.data.columns.iter().map(column).collect();
    if columns.is_empty() {
        columns = spec.fingerprints.columns.iter().map(named).collect();
    }
    let mut about = vec![
        ("classes", serde_json::to_string(&classes)?),
        ("algorithm", card.algorithm.clone()),
        ("model", spec.architecture().name),
        ("federation", card.federation.to_string()),
        ("node", card.node_id.to_string()),
        ("round", card.round.to_string()),
    ];
    let lists = [
        (
            "columns",
            serde_json::to_string(&columns)?,
            columns.is_empty(),
        ),
        (
            "vocabulary",
            serde_json::to_string(&model.card.vocabulary)?,
            model.card.vocabulary.is_empty(),
        ),
    ];
    if let Some(backbone) = &spec.model.backbone {
        about.push(("backbone", serde_json::to_string(backbone)?));
    }
    about.extend(
        lists
            .into_iter()
            .filter(|(_, _, is_empty)| !is_empty)
            .map(|(key, list, _)| (key, list)),
    );
    Ok(about)
}

/// Writes a model and its card beside it; returns where the card is.
///
/// # Errors
/// Fails if both would have one name, or if the disk does.
pub(crate) fn write_model(path: &Path, model: &Model) -> anyhow::Result<PathBuf> {
    let card = path.with_extension("json");
    if card == path {
        let advice = "its card would have the same name; let it end in .safetensors";
        return Err(fail(
            ExitCode::Usage,
            format!("`{}` cannot be the model: {advice}", card.display()),
        ));
    }
    write(path, &model.params.to_bytes())?;
    write(
        &card,
        (serde_json::to_string_pretty(&model.card)? + "\n").as_bytes(),
    )?;
    Ok(card)
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    whole_file::write(path, bytes).map_err(|error| {
        fail(
            ExitCode::State,
            format!("cannot write `{}`: {error}", path.display()),
        )
    })
}

#[derive(Debug, Serialize)]
struct Written {
    model: PathBuf,
    format: &'static str,
    card: Option<PathBuf>,
    from: PathBuf,
    bytes: u64,
    parameters: u64,
    tensors: u64,
}

impl Report for Written {
    fn human(&self) -> String {
        let card = self.card.as_ref();
        let card = card.map_or_else(String::new, |card| format!(" and {}", card.display()));
        format!(
            "wrote {} ({}, {} parameters in {} tensors){card}, from {}\n",
            self.model.display(),
            bytes(self.bytes),
            self.parameters,
            self.tensors,
            self.from.display()
        )
    }
}
