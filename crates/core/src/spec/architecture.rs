//! Which model a node has: the names that the spec gives, and one of them with what the data makes of it.

use serde::{Deserialize, Serialize};

use super::{BackboneSpec, Layers};

/// The model of one node: what all layers are derived from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Architecture {
    /// Its name in the table of models.
    pub name: String,
    /// The layers of the model that the spec declares; it has the name `declared`.
    pub layers: Layers,
    /// Channels, height and width of one sample.
    pub input: [usize; 3],
    /// Number of classes.
    pub classes: usize,
    /// K: experts per node, for algorithms that have any.
    pub experts: usize,
    /// Entries of the vocabulary; 0 unless samples are texts.
    pub vocabulary: usize,
}

impl Default for Architecture {
    fn default() -> Self {
        crate::FederationSpec::default().architecture()
    }
}

crate::config! {
    /// The model.
    pub struct ModelSpec {
        /// Its architecture: `cnn`, `lenet5`, `mlp` and more, `fasttext` for texts; docs/algorithms.md lists them. A list of
        /// names falls to the nodes in turn, by the number of their shard, where the algorithm shares nothing of them. A
        /// node may also choose its own in node.toml.
        name: ModelNames = "cnn".into(),
        /// The layers of the model `declared`, for example `conv 16, batch-norm, relu, max-pool 2, linear 64, relu`. The last layer,
        /// to the classes, is added. docs/how-to/own-model.md lists them all. Empty unless that model is named.
        layers: Layers = Layers::default(),
        /// K: experts per node, for algorithms that have any (1 to 64).
        experts: usize = 4,
        /// The frozen network that turns images into features before anything is learned, as `--backbone FILE` describes it:
        /// the file's hash, its output, and how images are prepared. Every node needs the file. Absent, models see images.
        backbone: Option<BackboneSpec> = None,
    }
}

/// The model of all nodes, or models that fall to the nodes in turn.
///
/// In a file it is a name or a list of names. A text with commas is a list too, as on a command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Form", into = "Form")]
pub struct ModelNames {
    /// At least one.
    names: Vec<String>,
}

impl ModelNames {
    /// Returns the model of a node by the number of its shard, counting from 0.
    pub fn of_node(&self, number: usize) -> &str {
        &self.names[number % self.names.len()]
    }

    /// Returns the model of the first node.
    pub fn first(&self) -> &str {
        self.of_node(0)
    }

    /// Tells whether all nodes have the same.
    pub fn is_one(&self) -> bool {
        self.names.len() == 1
    }

    /// Visits the names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

/// There is no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a model has a name")]
pub struct NoName;

impl From<&str> for ModelNames {
    /// Takes one name, or several with commas between them.
    fn from(text: &str) -> Self {
        let names = text.split(',').map(|name| name.trim().to_owned());
        Self {
            names: names.collect(),
        }
    }
}

/// The two forms in which models are written.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a name or a list of names")]
enum Form {
    One(String),
    Several(Vec<String>),
}

impl TryFrom<Form> for ModelNames {
    type Error = NoName;

    fn try_from(form: Form) -> Result<Self, Self::Error> {
        match form {
            Form::One(text) => Ok(text.as_str().into()),
            Form::Several(names) if names.is_empty() => Err(NoName),
            Form::Several(names) => Ok(Self { names }),
        }
    }
}

impl From<ModelNames> for Form {
    fn from(ModelNames { mut names }: ModelNames) -> Self {
        match names.len() {
            1 => Self::One(names.remove(0)),
            _ => Self::Several(names),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::FederationSpec;

    #[test]
    fn a_name_or_a_list_of_names() {
        let read = |name: &str| {
            let text = format!("version = 2\n[model]\nname = {name}");
            FederationSpec::from_toml(&text).map_err(|error| error.0)
        };
        let several = read("[\"cnn\", \"mlp\"]").unwrap();
        let of_nodes: Vec<&str> = (0..3).map(|n| several.model.name.of_node(n)).collect();
        assert_eq!(of_nodes, ["cnn", "mlp", "cnn"]);
        assert_eq!(read("\"cnn, mlp\"").unwrap(), several, "as it is typed");
        assert_eq!(FederationSpec::from_toml(&several.to_toml()), Ok(several));
        let one = read("[\"mlp\"]").unwrap();
        assert!(one.model.name.is_one() && one.id() == read("\"mlp\"").unwrap().id());
        assert_eq!(read("[]").unwrap_err(), "line 3: a model has a name");
        let error = read("3").unwrap_err();
        assert_eq!(error, "line 3: expected a name or a list of names");
    }
}
