//! What a request for predictions says: its form, its options, its samples.
//!
//! ```text
//! application/json   {"rows": [{"age": 58, "pain": "none"}, [41, null], "a text"], "images": ["BASE64"], "explain": true}
//! text/csv           a table with a header
//! text/plain         a text per line
//! image/png, -jpeg   one image
//! ```
//!
//! Cells of JSON become the words that a table would have: null an empty one, true and false themselves, numbers their
//! decimal digits. So one reader understands both.

use std::borrow::Cow;

use axum::http::{HeaderMap, StatusCode, Uri, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::model::{ColumnFacts, Input, InputFacts, Refused};
use crate::problem::Problem;

/// Most bytes of a body: a table of 10,000 rows of 80 columns, or a photograph.
pub const MOST_BYTES: usize = 8 << 20;

/// Most samples of a request: a large model takes a minute for them.
pub const MOST_SAMPLES: usize = 10_000;

/// The column that names rows if nobody says which.
const ID: &str = "id";

/// In which form samples are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Csv,
    Lines,
    Image,
}

/// What is said of a body before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) form: Form,
    /// The column that names the rows.
    id: Option<String>,
    explain: bool,
}

/// What a body says.
#[derive(Debug, PartialEq)]
pub(crate) struct Said<'a> {
    pub(crate) input: Input<'a>,
    /// What names the samples, where that is known before they are read.
    pub(crate) ids: Vec<Option<String>>,
    pub(crate) explain: bool,
}

impl Asked {
    /// Reads the head of a request.
    ///
    /// # Errors
    /// Names a form that nobody knows, or an option.
    pub(crate) fn of(headers: &HeaderMap, uri: &Uri) -> Result<Self, Problem> {
        let mut asked = Self {
            form: form(headers)?,
            id: None,
            explain: false,
        };
        for (key, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            match (&*key, &*value) {
                ("id", column) => asked.id = Some(column.to_owned()),
                ("explain", "true" | "1" | "") => asked.explain = true,
                ("explain", "false" | "0") => asked.explain = false,
                ("explain", other) => {
                    let text = format!("`explain` is true or false, not `{other}`");
                    return Err(Problem::new(StatusCode::BAD_REQUEST, text));
                }
                (other, _) => {
                    let text = format!("no option `{other}`: there are `id` and `explain`");
                    return Err(Problem::new(StatusCode::BAD_REQUEST, text));
                }
            }
        }
        Ok(asked)
    }

    /// Reads the body of a request for a model that takes this.
    ///
    /// # Errors
    /// Names the row and the column.
    pub(crate) fn read<'a>(
        &'a self,
        body: &'a [u8],
        takes: &InputFacts,
    ) -> Result<Said<'a>, Refused> {
        let id = self.id.as_deref();
        let (input, ids, explain) = match self.form {
            Form::Json => {
                let body = parse(body)?;
                let explain = body.explain;
                let (input, ids) = body.input(takes, id)?;
                (input, ids, explain || self.explain)
            }
            Form::Csv => {
                let input = Input::Table { text: body, id };
                (input, Vec::new(), self.explain)
            }
            Form::Lines => (Input::Texts(lines(body)?), Vec::new(), self.explain),
            Form::Image => {
                let input = Input::Images(vec![Cow::Borrowed(body)]);
                (input, Vec::new(), self.explain)
            }
        };
        check_kind(&input, takes)?;
        check_count(input.len())?;
        Ok(Said {
            input,
            ids,
            explain,
        })
    }
}

impl Input<'_> {
    /// Returns the number of samples as far as it is known.
    fn len(&self) -> Option<usize> {
        match self {
            Self::Cells(rows) => Some(rows.len()),
            Self::Table { .. } => None,
            Self::Images(images) => Some(images.len()),
            Self::Texts(texts) => Some(texts.len()),
        }
    }
}

/// Refuses nothing at all, and too much.
///
/// # Errors
/// Says how many samples there may be.
pub(crate) fn check_count(n: Option<usize>) -> Result<(), Refused> {
    match n {
        Some(0) => Err(Refused::Malformed(
            "holds no samples: there is nothing to predict".into(),
        )),
        Some(n) if n > MOST_SAMPLES => Err(Refused::TooLarge(format!(
            "holds {n} samples of at most {MOST_SAMPLES}: divide them among several requests"
        ))),
        _ => Ok(()),
    }
}

/// Refuses samples of another kind than the model takes.
fn check_kind(input: &Input<'_>, takes: &InputFacts) -> Result<(), Refused> {
    let given = match (input, takes) {
        (Input::Cells(_) | Input::Table { .. }, InputFacts::Table { .. })
        | (Input::Images(_), InputFacts::Image { .. })
        | (Input::Texts(_), InputFacts::Text { .. }) => return Ok(()),
        (Input::Cells(_), _) => "rows",
        (Input::Table { .. }, _) => "a table",
        (Input::Images(_), _) => "images",
        (Input::Texts(_), _) => "texts",
    };
    let wanted = match takes {
        InputFacts::Table { .. } => {
            "rows of a table: send them as text/csv, or as `rows` in application/json"
        }
        InputFacts::Image { .. } => {
            "images: send image/png or image/jpeg, or base64 as `images` in application/json"
        }
        InputFacts::Text { .. } => {
            "texts: send them as text/plain, or as `rows` in application/json"
        }
    };
    let text = format!("these are {given}, but the model takes {wanted}");
    Err(Refused::Unfit(text))
}

fn form(headers: &HeaderMap) -> Result<Form, Problem> {
    let given = headers.get(header::CONTENT_TYPE);
    let given = given.and_then(|value| value.to_str().ok());
    let given = given.unwrap_or_default();
    let name = given.split(';').next().unwrap_or_default().trim();
    match name.to_ascii_lowercase().as_str() {
        "application/json" => Ok(Form::Json),
        "text/csv" | "text/tab-separated-values" => Ok(Form::Csv),
        "text/plain" => Ok(Form::Lines),
        "image/png" | "image/jpeg" => Ok(Form::Image),
        _ => {
            let known = "application/json, text/csv, text/plain, image/png or image/jpeg";
            let text = format!("content type `{name}` cannot be read: send {known}");
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
        }
    }
}

/// Returns a text of each line, so that answers are counted as lines are. Blank lines at the end are none.
fn lines(body: &[u8]) -> Result<Vec<Cow<'_, str>>, Refused> {
    let text = str::from_utf8(body);
    let text = text.map_err(|_| Refused::Malformed("the body is no UTF-8 text".into()))?;
    let text = text.trim_start_matches('\u{feff}').trim_end();
    Ok(text.lines().map(Cow::Borrowed).collect())
}

/// A body of JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    rows: Option<Vec<Value>>,
    images: Option<Vec<String>>,
    #[serde(default)]
    explain: bool,
}

fn parse(body: &[u8]) -> Result<Body, Refused> {
    let malformed = |error| Refused::Malformed(format!("the body cannot be read: {error}"));
    serde_json::from_slice(body).map_err(malformed)
}

type Named<T> = (T, Vec<Option<String>>);

impl Body {
    fn input<'a>(self, takes: &InputFacts, id: Option<&str>) -> Result<Named<Input<'a>>, Refused> {
        match (self.rows, self.images, takes) {
            (Some(rows), None, InputFacts::Text { .. }) => {
                Ok((Input::Texts(texts(rows)?), Vec::new()))
            }
            (Some(rows), None, InputFacts::Table { width, columns }) => {
                let (cells, ids) = cells(rows, *width, columns, id)?;
                Ok((Input::Cells(cells), ids))
            }
            // Refused for its kind in a moment.
            (Some(_), None, InputFacts::Image { .. }) => Ok((Input::Cells(Vec::new()), Vec::new())),
            (None, Some(images), _) => Ok((Input::Images(decoded(&images)?), Vec::new())),
            _ => Err(Refused::Malformed(
                "the body has to have either `rows` or `images`".into(),
            )),
        }
    }
}

fn texts<'a>(rows: Vec<Value>) -> Result<Vec<Cow<'a, str>>, Refused> {
    let text = |(at, row)| match row {
        Value::String(text) => Ok(Cow::Owned(text)),
        _ => Err(Refused::Malformed(format!("rows[{at}] is no text"))),
    };
    rows.into_iter().enumerate().map(text).collect()
}

fn decoded<'a>(images: &[String]) -> Result<Vec<Cow<'a, [u8]>>, Refused> {
    let image = |(at, text): (usize, &String)| {
        let bytes = STANDARD.decode(text);
        let malformed = |error| Refused::Malformed(format!("images[{at}] is no base64: {error}"));
        bytes.map(Cow::Owned).map_err(malformed)
    };
    images.iter().enumerate().map(image).collect()
}

/// Puts the cells of rows into the order of the model's columns, and finds what names the rows.
fn cells(
    rows: Vec<Value>,
    width: usize,
    columns: &[ColumnFacts],
    id: Option<&str>,
) -> Result<Named<Vec<Vec<String>>>, Refused> {
    let id = Id::of(id, columns);
    let mut ids = Vec::with_capacity(rows.len());
    let mut cells = Vec::with_capacity(rows.len());
    for (at, row) in rows.into_iter().enumerate() {
        let malformed = |what: String| Refused::Malformed(format!("rows[{at}] {what}"));
        let (row, id) = match row {
            Value::Object(row) => {
                let id = id.of_row(&row).map_err(malformed)?;
                (by_name(&row, width, columns).map_err(malformed)?, id)
            }
            Value::Array(row) => {
                let id = id.of_list().map_err(malformed)?;
                (by_place(&row, width, columns).map_err(malformed)?, id)
            }
            _ => return Err(malformed("is neither an object nor a list".into())),
        };
        cells.push(row);
        ids.push(id);
    }
    Ok((cells, ids))
}

/// Which column names the rows.
#[derive(Debug, Clone, Copy)]
enum Id<'a> {
    /// Somebody said so.
    Named(&'a str),
    /// `id`, if it is there.
    Usual,
    /// None: the model uses the usual one.
    None,
}

impl<'a> Id<'a> {
    fn of(named: Option<&'a str>, columns: &[ColumnFacts]) -> Self {
        let is_used = |column: &ColumnFacts| column.name.eq_ignore_ascii_case(ID);
        match named {
            Some(name) => Self::Named(name),
            None if columns.iter().any(is_used) => Self::None,
            None => Self::Usual,
        }
    }

    fn of_row(self, row: &Map<String, Value>) -> Result<Option<String>, String> {
        let (name, found) = match self {
            Self::None => return Ok(None),
            Self::Usual => (ID, find(row, ID)),
            Self::Named(name) => {
                let missing = || format!("has no column `{name}`, which should name it");
                (name, Some(find(row, name).ok_or_else(missing)?))
            }
        };
        let text = found.map(|value| word(value, name)).transpose()?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    fn of_list(self) -> Result<Option<String>, String> {
        match self {
            Self::Named(name) => Err(format!("is a list, so no column `{name}` can name it")),
            Self::Usual | Self::None => Ok(None),
        }
    }
}

/// Returns the value of a column: as its name is written, else whatever the case of its letters.
fn find<'a>(row: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let any_case = || {
        let same = |(key, _): &(&String, _)| key.eq_ignore_ascii_case(name);
        row.iter().find(same).map(|(_, value)| value)
    };
    row.get(name).or_else(any_case)
}

fn by_name(
    row: &Map<String, Value>,
    width: usize,
    columns: &[ColumnFacts],
) -> Result<Vec<String>, String> {
    if columns.is_empty() {
        return Err(format!(
            "is an object, but the model's columns have no names: send a list of {width} values"
        ));
    }
    let cell = |column: &ColumnFacts| {
        let name = &column.name;
        let missing = || format!("has no column `{name}`: write null where a value is missing");
        word(find(row, name).ok_or_else(missing)?, name)
    };
    columns.iter().map(cell).collect()
}

fn by_place(row: &[Value], width: usize, columns: &[ColumnFacts]) -> Result<Vec<String>, String> {
    if row.len() != width {
        return Err(format!(
            "has {} values, but the model takes {width}",
            row.len()
        ));
    }
    let name = |at: usize| match columns.get(at) {
        Some(column) => column.name.clone(),
        None => at.to_string(),
    };
    let cells = row.iter().enumerate();
    cells.map(|(at, value)| word(value, &name(at))).collect()
}

/// Writes a value as a table would.
fn word(value: &Value, column: &str) -> Result<String, String> {
    match value {
        Value::Null => Ok(String::new()),
        Value::Bool(truth) => Ok(truth.to_string()),
        Value::Number(number) => Ok(number.to_string()),
        Value::String(text) => Ok(text.trim().to_owned()),
        Value::Array(_) | Value::Object(_) => {
            Err(format!("holds more than one value in column `{column}`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ColumnKind;

    fn columns(names: &[&str]) -> InputFacts {
        let column = |name: &&str| ColumnFacts {
            name: (*name).to_owned(),
            kind: ColumnKind::Number,
            levels: Vec::new(),
            range: None,
            gaps: true,
        };
        InputFacts::Table {
            width: names.len(),
            columns: names.iter().map(column).collect(),
        }
    }

    fn asked(content_type: &str, path: &str) -> Result<Asked, Problem> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, content_type.parse().unwrap());
        Asked::of(&headers, &path.parse().unwrap())
    }

    #[track_caller]
    fn rows(
        query: &str,
        body: &str,
        takes: &InputFacts,
    ) -> Result<Named<Vec<Vec<String>>>, Refused> {
        let asked = asked("application/json; charset=utf-8", query).unwrap();
        let said = asked.read(body.as_bytes(), takes)?;
        let Input::Cells(cells) = said.input else {
            panic!("{:?} are no cells", said.input)
        };
        Ok((cells, said.ids))
    }

    #[test]
    fn cells_are_in_the_order_of_the_columns() {
        let takes = columns(&["age", "pain", "smokes"]);
        let body = r#"{"rows": [{"ward": [1], "Pain": " none ", "smokes": true, "age": 58.50, "id": 7},
                                [41, null, "no"]]}"#;
        let (cells, ids) = rows("/", body, &takes).unwrap();
        assert_eq!(cells, [["58.5", "none", "true"], ["41", "", "no"]]);
        assert_eq!(ids, [Some("7".to_owned()), None]);
    }

    #[test]
    fn a_named_column_is_the_id_and_a_used_one_is_not() {
        let takes = columns(&["age"]);
        let body = r#"{"rows": [{"age": 1, "my key": "a b"}]}"#;
        let (_, ids) = rows("/?id=my%20key", body, &takes).unwrap();
        assert_eq!(ids, [Some("a b".to_owned())]);
        let (_, ids) = rows("/", r#"{"rows": [{"Id": 1}]}"#, &columns(&["id"])).unwrap();
        assert_eq!(ids, [None]);
        let missing = rows("/?id=key", r#"{"rows": [{"age": 1}]}"#, &takes);
        assert_eq!(
            missing.unwrap_err().to_string(),
            "rows[0] has no column `key`, which should name it"
        );
    }

    #[test]
    fn what_is_wrong_with_a_row_is_said_with_its_column() {
        let takes = columns(&["age", "pain"]);
        for (body, said) in [
            (
                r#"{"rows": [[1, 2], {"age": 1}]}"#,
                "rows[1] has no column `pain`: write null where a value is missing",
            ),
            (
                r#"{"rows": [[1, 2, 3]]}"#,
                "rows[0] has 3 values, but the model takes 2",
            ),
            (
                r#"{"rows": [[1, [2]]]}"#,
                "rows[0] holds more than one value in column `pain`",
            ),
            (
                r#"{"rows": [5]}"#,
                "rows[0] is neither an object nor a list",
            ),
            (
                r#"{"rows": []}"#,
                "holds no samples: there is nothing to predict",
            ),
            ("{}", "the body has to have either `rows` or `images`"),
        ] {
            let error = rows("/", body, &takes).unwrap_err();
            assert_eq!(error, Refused::Malformed(said.into()), "{body}");
        }
        let error = rows("/", r#"{"row": []}"#, &takes).unwrap_err();
        assert!(error.to_string().contains("unknown field `row`"), "{error}");
        let many = format!(r#"{{"rows": [{}[1, 2]]}}"#, "[1, 2],".repeat(MOST_SAMPLES));
        let error = rows("/", &many, &takes).unwrap_err();
        assert!(matches!(error, Refused::TooLarge(_)), "{error}");
        let unnamed = InputFacts::Table {
            width: 2,
            columns: Vec::new(),
        };
        let error = rows("/", r#"{"rows": [{"age": 1}]}"#, &unnamed).unwrap_err();
        assert!(error.to_string().ends_with("send a list of 2 values"));
    }

    #[test]
    fn another_kind_of_samples_is_unfit() {
        let image = InputFacts::Image {
            channels: 1,
            height: 2,
            width: 2,
        };
        let text = InputFacts::Text { tokens: 4 };
        let table = columns(&["age"]);
        for (form, body, takes, said) in [
            (
                "application/json",
                r#"{"rows": [[1]]}"#,
                &image,
                "rows, but the model takes images",
            ),
            (
                "text/csv",
                "age\n1\n",
                &image,
                "a table, but the model takes images",
            ),
            (
                "image/png",
                "x",
                &table,
                "images, but the model takes rows of a table",
            ),
            ("text/plain", "x", &table, "texts, but the model takes rows"),
            ("image/png", "x", &text, "images, but the model takes texts"),
        ] {
            let asked = asked(form, "/").unwrap();
            let error = asked.read(body.as_bytes(), takes).unwrap_err();
            assert!(matches!(error, Refused::Unfit(_)), "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn texts_are_lines_or_strings_and_images_base64() {
        let text = InputFacts::Text { tokens: 4 };
        let read = |form: &str, body: &str, takes: &InputFacts| {
            let asked = asked(form, "/?explain=true").unwrap();
            let said = asked.read(body.as_bytes(), takes).map(|said| {
                assert!(said.explain);
                format!("{:?}", said.input)
            });
            said.map_err(|error| error.to_string())
        };
        let both = "Texts([\"one\", \"two\"])";
        assert_eq!(
            read("text/plain", "\u{feff}one\ntwo\n\n", &text).unwrap(),
            both
        );
        let gap = "Texts([\"one\", \"\", \"two\"])";
        assert_eq!(read("text/plain", "one\n\ntwo\n", &text).unwrap(), gap);
        let json = "application/json";
        assert_eq!(
            read(json, r#"{"rows": ["one", "two"]}"#, &text).unwrap(),
            both
        );
        let error = read(json, r#"{"rows": ["one", 2]}"#, &text).unwrap_err();
        assert_eq!(error, "rows[1] is no text");
        let image = InputFacts::Image {
            channels: 1,
            height: 2,
            width: 2,
        };
        let bytes = read(json, r#"{"images": ["AP8="]}"#, &image).unwrap();
        assert_eq!(bytes, "Images([[0, 255]])");
        let error = read(json, r#"{"images": ["AP8=", "?"]}"#, &image).unwrap_err();
        assert!(error.starts_with("images[1] is no base64"), "{error}");
    }

    #[test]
    fn unknown_forms_and_options_are_refused() {
        assert!(asked("application/xml", "/").is_err());
        assert!(asked("text/csv", "/?explain=maybe").is_err());
        assert!(asked("text/csv", "/?ids=x").is_err());
        let both = asked("TEXT/CSV; header=present", "/?id=a%26b&explain").unwrap();
        let expected = Asked {
            form: Form::Csv,
            id: Some("a&b".into()),
            explain: true,
        };
        assert_eq!(both, expected);
    }
}
