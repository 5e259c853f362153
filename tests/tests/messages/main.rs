//! Every field of every message between members is in the book, with what it says of a node's data. The page is made from the
//! source files of the messages, so a field that is added is missed here. `UPDATE_DOCS=1` writes the page.
#![allow(clippy::unwrap_used)]

mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use quote::ToTokens as _;
use syn::{Attribute, Fields, Item, Type};

use tables::{CHANNELS, NO_MESSAGES, SAYING, SILENT};

#[derive(Debug, Clone)]
struct Message {
    about: String,
    fields: Vec<Field>,
}

#[derive(Debug, Clone)]
struct Field {
    /// As it is listed: `Local.shared`, `Body::Local`.
    name: String,
    meaning: String,
    types: BTreeSet<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the first sentence of a comment, without links to code.
fn sentence(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let value = &attribute.meta.require_name_value().ok()?.value;
        let syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(text),
            ..
        }) = value
        else {
            return None;
        };
        attribute.path().is_ident("doc").then(|| text.value())
    });
    let text = lines.collect::<Vec<_>>().join(" ");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.replace("[`", "`").replace("`]", "`");
    text.split_inclusive(". ")
        .next()
        .unwrap_or_default()
        .trim()
        .replace('|', "\\|")
}

fn has_word(attributes: &[Attribute], wanted: &str) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.to_token_stream().to_string().contains(wanted))
}

fn names_in(ty: &Type) -> BTreeSet<String> {
    let text = ty.to_token_stream().to_string();
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn fields_of(owner: &str, fields: &Fields) -> Vec<Field> {
    let named = fields
        .iter()
        .filter(|field| !has_word(&field.attrs, "skip)"));
    named
        .map(|field| {
            let name = field
                .ident
                .as_ref()
                .map_or("0".to_owned(), ToString::to_string);
            Field {
                name: format!("{owner}.{name}"),
                meaning: sentence(&field.attrs),
                types: names_in(&field.ty),
            }
        })
        .collect()
}

/// Reads the types of a crate that come from bytes.
fn read(folder: &Path, found: &mut BTreeMap<String, Message>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("tests") {
                read(&path, found);
            }
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            for item in &file.items {
                if let Some((name, message)) = message(item) {
                    found.insert(name, message);
                }
            }
        }
    }
}

fn message(item: &Item) -> Option<(String, Message)> {
    let (name, attributes, fields) = match item {
        Item::Struct(item) => {
            let name = item.ident.to_string();
            // What has one field without a name is a number, a hash or bytes of its own kind.
            let fields = match &item.fields {
                Fields::Named(_) => fields_of(&name, &item.fields),
                Fields::Unnamed(_) | Fields::Unit => Vec::new(),
            };
            (name, &item.attrs, fields)
        }
        Item::Enum(item) => {
            let name = item.ident.to_string();
            let mut fields = Vec::new();
            for variant in &item.variants {
                let variant_name = format!("{name}::{}", variant.ident);
                let inner = fields_of(&variant_name, &variant.fields);
                fields.push(Field {
                    name: variant_name,
                    meaning: sentence(&variant.attrs),
                    types: inner.iter().flat_map(|field| field.types.clone()).collect(),
                });
                if matches!(variant.fields, Fields::Named(_)) {
                    fields.extend(inner);
                }
            }
            (name, &item.attrs, fields)
        }
        _ => return None,
    };
    let about = sentence(attributes);
    has_word(attributes, "Deserialize").then_some((name, Message { about, fields }))
}

/// Returns the messages that a type is made of, itself first.
fn within(name: &str, all: &BTreeMap<String, Message>, order: &mut Vec<String>) {
    let Some(message) = all.get(name) else { return };
    if message.fields.is_empty() || order.iter().any(|known| known == name) {
        return;
    }
    order.push(name.to_owned());
    let inner: Vec<String> = message
        .fields
        .iter()
        .flat_map(|field| field.types.clone())
        .collect();
    inner.iter().for_each(|name| within(name, all, order));
}

fn messages() -> BTreeMap<String, Message> {
    let mut all = BTreeMap::new();
    for folder in ["crates/core/src", "crates/net/src"] {
        read(&root().join(folder), &mut all);
    }
    all
}

fn says_nothing() -> BTreeSet<String> {
    let names = SILENT.iter().flat_map(|(owner, fields)| {
        fields.split_whitespace().map(move |field| {
            let is_variant = field.starts_with(char::is_uppercase);
            format!("{owner}{}{field}", if is_variant { "::" } else { "." })
        })
    });
    names.collect()
}

#[test]
fn no_message_is_forgotten() {
    let mut of_net = BTreeMap::new();
    read(&root().join("crates/net/src"), &mut of_net);
    let (all, mut reached) = (messages(), Vec::new());
    for root in CHANNELS.iter().flat_map(|(_, _, roots)| *roots) {
        within(root, &all, &mut reached);
    }
    for (name, message) in &of_net {
        let is_known = NO_MESSAGES.contains(&name.as_str()) || reached.contains(name);
        assert!(
            is_known || message.fields.is_empty(),
            "{name} is in no channel of this test"
        );
    }
}

#[test]
fn every_field_of_every_message_is_in_the_book() {
    let all = messages();
    let (saying, silent) = (BTreeMap::from_iter(SAYING.iter().copied()), says_nothing());
    let (mut known, mut missing) = (BTreeSet::new(), Vec::new());
    let mut told = String::from("| field | open | `masked` | `dp:EPSILON` |\n|---|---|---|---|\n");
    let mut listed = String::new();
    let mut order = Vec::new();
    for (heading, about, roots) in CHANNELS {
        write!(listed, "\n## {heading}\n\n{about}\n").unwrap();
        let before = order.len();
        roots.iter().for_each(|root| within(root, &all, &mut order));
        for name in &order[before..] {
            let Message { about, fields } = &all[name];
            write!(listed, "\n`{name}`: {about}\n\n| field | is |\n|---|---|\n").unwrap();
            for field in fields {
                let (name, meaning) = (&field.name, &field.meaning);
                if meaning.is_empty() {
                    missing.push(format!("{name} has no comment"));
                }
                writeln!(listed, "| `{name}` | {meaning} |").unwrap();
                if let Some([open, masked, promised]) = saying.get(name.as_str()) {
                    writeln!(told, "| `{name}` | {open} | {masked} | {promised} |").unwrap();
                } else if !silent.contains(name) {
                    missing.push(format!("{name} says what of the data? {meaning}"));
                }
                known.insert(name.clone());
            }
        }
    }
    let gone = saying
        .keys()
        .map(|name| (*name).to_owned())
        .chain(silent)
        .filter(|name| !known.contains(name));
    missing.extend(gone.map(|name| format!("{name} is in no message")));
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    let head = "# Messages, field by field\n\n\
        This is all that fednode says between members. libp2p adds what connections take: addresses, keys, and how long an answer\n\
        takes. The page is made from the source files of the messages, and a test fails if a\n\
        field is missing. What each mode of privacy hides is told by [what others can see](../explanation/privacy.md).\n\n\
        ## What says something of a node's data\n\n\
        A field that names a blob by its hash stands for the content of the blob. All other fields say nothing of anybody's data.\n\
        With `masked+dp:EPSILON` the column `masked` holds, and the sum has noise.\n\n";
    let path = root().join("docs/reference/messages.md");
    let wanted = format!("{head}{told}{listed}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/reference/messages.md is not up to date: run this test with UPDATE_DOCS=1"
    );
}
