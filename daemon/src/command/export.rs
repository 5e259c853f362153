//! `fednode export --out FILE`: a node's model as safetensors, with a card that says how to use it.
//!
//! Names and layouts are PyTorch's, so the file loads there without a conversion.

use std::path::{Path, PathBuf};

use fednode_runtime::exit::ExitCode;
use serde::Serialize;

use crate::whole_file;
use fednode_cli::failure::fail;
use fednode_cli::model::{Model, ModelArgs};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::bytes;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The file to write; the card goes beside it with the ending json.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Writes both files.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let model = args.model.load()?;
    let card = write_model(&args.out, &model)?;
    let written = Written {
        model: args.out.clone(),
        card,
        from: model.path,
        bytes: model.params.to_bytes().len() as u64,
        parameters: model.params.n_values() as u64,
        tensors: model.params.len() as u64,
    };
    output::print(&written, form)
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
    card: PathBuf,
    from: PathBuf,
    bytes: u64,
    parameters: u64,
    tensors: u64,
}

impl Report for Written {
    fn human(&self) -> String {
        format!(
            "wrote {} ({}, {} parameters in {} tensors) and {}, from {}\n",
            self.model.display(),
            bytes(self.bytes),
            self.parameters,
            self.tensors,
            self.card.display(),
            self.from.display()
        )
    }
}
