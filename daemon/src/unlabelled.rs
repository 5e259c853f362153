//! What is to be predicted: samples without labels, made to fit a model's input. They come from files, from standard input
//! or over HTTP.
//!
//! - **PNG, JPEG**: one sample each, scaled to the model's height and width, grey or coloured as the model wants. Behind a
//!   backbone they may have any size, and become features at once.
//! - **IDX** (also `.gz`): every image of the file; they must have the model's size, or any behind a backbone. Files that are called as EMNIST's
//!   (`emnist-…`) hold their images transposed, which is put right as it is for training.
//! - **Text**, if the model reads texts: every line that is not empty.
//! - **CSV**: every row of numbers; a first row without any is a heading, as for training: where the federation names its
//!   columns, they are found by it, and others are left out. Values are taken as they are, unless the federation describes
//!   its columns: then words and gaps are read as they are for training. A column `id` that the model does not use, or any
//!   that is named, says whose each row is.

mod error;
mod files;
mod images;
mod tables;

use std::path::Path;
use std::sync::Arc;

use fednode_core::spec::{Architecture, ColumnKind, Fingerprints, TableColumn, Target};
use fednode_data::source;
use fednode_data::{DataError, Extractor, Pixels, Samples, Vocabulary};
use fednode_runtime::exit::ExitCode;

use fednode_cli::failure::{OrFail, fail};
use fednode_cli::model::{Model, ModelArgs};

pub(crate) use error::Unfit;
use files::{STDIN, shown, unpacked};
use images::{IDX_IMAGES, decoded, fitting, idx, is_image};

/// What a model takes.
#[derive(Debug, Clone)]
pub(crate) struct Takes {
    model: Architecture,
    known: Fingerprints,
    columns: Vec<TableColumn>,
    /// The number that is predicted, if it is no class.
    target: Option<Target>,
    vocabulary: Option<Arc<Vocabulary>>,
    /// What turns images into the model's input, if anything does.
    extractor: Option<Arc<dyn Extractor>>,
    /// To what size it brings them.
    prepared: [usize; 3],
}

/// In which form samples are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A text a line.
    Lines,
    /// Texts in the form of those to train on.
    TextRows,
    Image,
    Table,
    Idx,
}

impl Takes {
    /// Says what a model takes.
    ///
    /// # Errors
    /// Fails if it is a model of texts without its vocabulary, or one behind a backbone whose file nobody knows.
    pub(crate) fn of(args: &ModelArgs, model: &Model) -> anyhow::Result<Self> {
        let architecture = model.spec().architecture();
        let backbone = model.spec().model.backbone.as_ref();
        let prepared = backbone.map(|backbone| {
            let [height, width] = backbone.size;
            [backbone.mean.len(), height, width]
        });
        Ok(Self {
            extractor: args.extractor(model.spec())?,
            prepared: prepared.unwrap_or(architecture.input),
            model: architecture,
            known: model.spec().fingerprints.clone(),
            columns: model.spec().data.columns.clone(),
            target: model.spec().data.target.clone(),
            vocabulary: model.vocabulary()?,
        })
    }

    /// Returns channels, height and width of an image, or of a row as if it were one, as it is looked at.
    pub(crate) const fn looked_at(&self) -> [usize; 3] {
        self.prepared
    }

    /// Tells whether samples are texts.
    pub(crate) const fn reads_texts(&self) -> bool {
        self.vocabulary.is_some()
    }

    /// Returns the description of the columns; empty unless raw tables are read.
    pub(crate) fn columns(&self) -> &[TableColumn] {
        &self.columns
    }

    /// Returns the names of the columns of a table of numbers; empty if they have none.
    pub(crate) fn column_names(&self) -> &[String] {
        &self.known.columns
    }

    /// Reads all samples of a file, and what says whose they are, as [`Self::ids`] does. `-` is standard input.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub(crate) fn file(
        &self,
        path: &Path,
        id: Option<&str>,
    ) -> anyhow::Result<(Samples, Option<Vec<String>>)> {
        let bytes = unpacked(path)?;
        let form = self.form(path, &bytes);
        let named = |cause| fail(ExitCode::Data, format!("{} {cause}", shown(path)));
        let bytes = match form {
            Form::Table => source::text_of(&bytes).map_err(|cause| named(cause.into()))?,
            _ => bytes.into(),
        };
        let pixels = match form {
            Form::Lines => self.lines(&bytes),
            Form::TextRows => {
                let texts = source::texts_of(path).or_fail(ExitCode::Data)?;
                self.some_texts(texts.iter().map(String::as_str))
            }
            Form::Image => self.image(&bytes),
            Form::Table => self.table(&bytes),
            Form::Idx => self.idx(&bytes, source::is_transposed(path)),
        };
        let samples = self.samples(pixels.map_err(named)?)?;
        let ids = match form {
            Form::Table => self.ids(&bytes, id).map_err(named)?,
            _ if id.is_some() => return Err(named(Unfit::NoColumns)),
            _ => None,
        };
        Ok((samples, ids))
    }

    /// Says by its ending what a file is; standard input says it by its first bytes, and is a table if it says nothing.
    fn form(&self, path: &Path, bytes: &[u8]) -> Form {
        let ending = path.extension().unwrap_or_default().to_string_lossy();
        match ending.to_ascii_lowercase().as_str() {
            "csv" if self.vocabulary.is_some() => Form::TextRows,
            _ if self.vocabulary.is_some() => Form::Lines,
            "png" | "jpg" | "jpeg" => Form::Image,
            "csv" | "tsv" => Form::Table,
            _ if source::is_parquet(bytes) => Form::Table,
            _ if path != Path::new(STDIN) => Form::Idx,
            _ if bytes.starts_with(&IDX_IMAGES) => Form::Idx,
            _ if is_image(bytes) => Form::Image,
            _ => Form::Table,
        }
    }

    /// Makes unlabelled samples of values.
    ///
    /// # Errors
    /// Fails if they are no whole samples.
    pub(crate) fn samples(&self, pixels: Pixels) -> anyhow::Result<Samples> {
        let Self {
            model,
            known,
            columns,
            ..
        } = self;
        // Labels are never looked at, but every sample has one.
        let shape = if columns.is_empty() {
            model.input
        } else {
            [1, 1, columns.len()]
        };
        let n_samples = pixels.len() / shape.iter().product::<usize>();
        if let Some(target) = &self.target {
            let numbers = vec![target.number(0.0); n_samples];
            let samples = Samples::of_numbers(shape, pixels, numbers, &target.name);
            return samples.or_fail(ExitCode::Data);
        }
        let numbered = || (0..model.classes).map(|class| class.to_string()).collect();
        let names: Arc<[String]> = if known.class_names.is_empty() {
            numbered()
        } else {
            known.class_names.iter().cloned().collect()
        };
        Samples::new(shape, pixels, vec![0; n_samples], names).or_fail(ExitCode::Data)
    }

    /// Returns some sample or other, which says no more than what samples look like.
    pub(crate) fn blank(&self) -> anyhow::Result<Samples> {
        let middle = |column: &TableColumn| match column.kind {
            ColumnKind::Number => (column.range[0] / 2.0 + column.range[1] / 2.0) as f32,
            ColumnKind::Boolean | ColumnKind::Category => 0.0,
        };
        let texts = self.texts([""]);
        let n_values: usize = self.model.input.iter().product();
        let plain = || match self.model.input {
            [1, 1, _] => Pixels::Floats(vec![0.0; n_values]),
            _ => Pixels::Bytes {
                values: vec![0; n_values],
                white: u8::MAX,
            },
        };
        let described = (!self.columns.is_empty())
            .then(|| Pixels::Floats(self.columns.iter().map(middle).collect()));
        self.samples(texts.or(described).unwrap_or_else(plain))
    }

    /// Reads an image file.
    pub(crate) fn image(&self, bytes: &[u8]) -> Result<Pixels, Unfit> {
        let decoded = decoded(bytes)?;
        if self.extractor.is_none() {
            return fitting(decoded, self.model.input);
        }
        let channels = if decoded.color().has_color() { 3 } else { 1 };
        let shape = [
            channels,
            decoded.height() as usize,
            decoded.width() as usize,
        ];
        self.features(fitting(decoded, shape)?, shape)
    }

    /// Reads the images of an IDX file.
    fn idx(&self, bytes: &[u8], is_transposed: bool) -> Result<Pixels, Unfit> {
        let (images, shape) = idx(bytes, is_transposed)?;
        if self.extractor.is_some() {
            return self.features(images, shape);
        }
        let model = self.model.input;
        if shape == model {
            Ok(images)
        } else {
            Err(Unfit::Size {
                images: shape,
                model,
            })
        }
    }

    /// Turns images into features, where something does.
    fn features(&self, images: Pixels, shape: [usize; 3]) -> Result<Pixels, Unfit> {
        let Some(extractor) = &self.extractor else {
            return Ok(images);
        };
        let each: usize = shape.iter().product();
        if each == 0 {
            return Err(Unfit::Empty);
        }
        let labels = vec![0; images.len() / each];
        let names = ["unknown".to_owned()].into();
        let samples = Samples::new(shape, images, labels, names).map_err(DataError::from)?;
        Ok(samples.extracted(extractor.as_ref())?.pixels)
    }

    /// Reads texts; only for a model of texts.
    pub(crate) fn texts<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Option<Pixels> {
        let vocabulary = self.vocabulary.as_ref()?;
        let length: usize = self.model.input.iter().product();
        let mut ids = Vec::new();
        for text in texts {
            let from = ids.len();
            ids.resize(from + length, Vocabulary::PADDING);
            vocabulary.encode(text, &mut ids[from..]);
        }
        Some(Pixels::Tokens {
            ids,
            vocabulary: Arc::clone(vocabulary),
        })
    }

    /// Reads a text of each line, so that answers are counted as lines are. Blank lines at the end are none.
    fn lines(&self, bytes: &[u8]) -> Result<Pixels, Unfit> {
        let text = str::from_utf8(bytes)?.trim_start_matches('\u{feff}');
        self.some_texts(text.trim_end().lines())
    }

    fn some_texts<'a>(&self, texts: impl Iterator<Item = &'a str>) -> Result<Pixels, Unfit> {
        let texts = self.texts(texts).ok_or(Unfit::UnknownForm)?;
        if texts.is_empty() {
            return Err(Unfit::NoTexts);
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::tables::csv;
    use super::*;
    use std::io::Write;

    fn model(input: [usize; 3]) -> Architecture {
        Architecture {
            input,
            classes: 3,
            ..Architecture::default()
        }
    }

    fn read(
        path: &Path,
        model: &Architecture,
        known: &Fingerprints,
        columns: &[TableColumn],
        vocabulary: Option<&Arc<Vocabulary>>,
    ) -> anyhow::Result<Samples> {
        let takes = Takes {
            model: model.clone(),
            known: known.clone(),
            columns: columns.to_vec(),
            target: None,
            vocabulary: vocabulary.cloned(),
            extractor: None,
            prepared: model.input,
        };
        takes.file(path, None).map(|(samples, _)| samples)
    }

    fn batch(samples: &Samples) -> Vec<f32> {
        let mut values = Vec::new();
        samples.write_batch(&(0..samples.len() as u32).collect::<Vec<_>>(), &mut values);
        values
    }

    #[test]
    fn columns_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, "bmi,label,age\n20.5,x,40\n21.5,y,50\n").unwrap();
        let named = Fingerprints {
            columns: vec!["age".into(), "bmi".into()],
            ..Fingerprints::default()
        };
        assert_eq!(
            batch(&read(&path, &model([1, 1, 2]), &named, &[], None).unwrap()),
            [40.0, 20.5, 50.0, 21.5]
        );
        std::fs::write(&path, "2020,2019\n1,2\n").unwrap();
        let years = Fingerprints {
            columns: vec!["2019".into(), "2020".into()],
            ..Fingerprints::default()
        };
        assert_eq!(
            batch(&read(&path, &model([1, 1, 2]), &years, &[], None).unwrap()),
            [2.0, 1.0]
        );
        std::fs::write(&path, "bmi,label,age\n20.5,x,40\n21.5,y,50\n").unwrap();
        let other = Fingerprints {
            columns: vec!["age".into(), "dose".into()],
            ..Fingerprints::default()
        };
        assert!(
            read(&path, &model([1, 1, 2]), &other, &[], None)
                .unwrap_err()
                .to_string()
                .contains("has no column `dose`")
        );
        let unnamed = read(
            &path,
            &model([1, 1, 2]),
            &Fingerprints::default(),
            &[],
            None,
        )
        .unwrap_err()
        .to_string();
        assert!(
            unnamed.contains("has 3 values in line 2, but the model takes 2"),
            "{unnamed}"
        );
    }

    #[test]
    fn images_are_made_to_fit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("red.PNG");
        image::RgbImage::from_pixel(4, 4, image::Rgb([255, 0, 0]))
            .save_with_format(&path, image::ImageFormat::Png)
            .unwrap();
        let colour = read(
            &path,
            &model([3, 2, 2]),
            &Fingerprints::default(),
            &[],
            None,
        )
        .unwrap();
        assert_eq!(batch(&colour), [[1.0; 4], [-1.0; 4], [-1.0; 4]].concat());
        let grey = read(
            &path,
            &model([1, 4, 4]),
            &Fingerprints::default(),
            &[],
            None,
        )
        .unwrap();
        assert_eq!((grey.len(), grey.shape), (1, [1, 4, 4]));
        std::fs::write(&path, b"nonsense").unwrap();
        assert!(
            read(
                &path,
                &model([3, 2, 2]),
                &Fingerprints::default(),
                &[],
                None
            )
            .unwrap_err()
            .to_string()
            .contains("is no image")
        );
    }

    #[test]
    fn idx_files_may_be_packed() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = [
            &IDX_IMAGES[..],
            &[0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2],
            &[0, 255, 255, 0],
        ]
        .concat();
        let path = folder.path().join("images-idx3-ubyte.gz");
        let mut packer = flate2::write::GzEncoder::new(
            std::fs::File::create(&path).unwrap(),
            flate2::Compression::fast(),
        );
        packer.write_all(&bytes).unwrap();
        packer.finish().unwrap();
        let samples = read(
            &path,
            &model([1, 1, 2]),
            &Fingerprints::default(),
            &[],
            None,
        )
        .unwrap();
        assert_eq!(
            (samples.len(), batch(&samples)),
            (2, vec![-1.0, 1.0, 1.0, -1.0])
        );
        let letters = folder.path().join("emnist-letters-test-images-idx3-ubyte");
        let columns = [
            &IDX_IMAGES[..],
            &[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2],
            &[0, 0, 255, 0],
        ]
        .concat();
        std::fs::write(&letters, columns).unwrap();
        assert_eq!(
            batch(
                &read(
                    &letters,
                    &model([1, 2, 2]),
                    &Fingerprints::default(),
                    &[],
                    None
                )
                .unwrap()
            ),
            [-1.0, 1.0, -1.0, -1.0]
        );
        assert!(
            images_of([1, 1, 2])
                .idx(&bytes[..19], false)
                .unwrap_err()
                .to_string()
                .contains("truncated")
        );
        assert!(
            images_of([1, 2, 2])
                .idx(&bytes, false)
                .unwrap_err()
                .to_string()
                .contains("but the model takes 1x2x2")
        );
        assert!(
            images_of([1, 1, 1])
                .idx(b"\x00\x00", false)
                .unwrap_err()
                .to_string()
                .contains("neither")
        );
    }

    #[test]
    fn rows_may_have_a_heading() {
        assert_eq!(
            csv(b"a,b\n1, 2\n\n3,\"4\"\n", &model([1, 1, 2]), &[]).unwrap(),
            Pixels::Floats(vec![1.0, 2.0, 3.0, 4.0])
        );
        for (text, line, cell) in [
            ("1,2\nx,2", 2, "x"),
            ("1,\n3,4", 1, ""),
            ("a,b\n1,nan", 2, "nan"),
        ] {
            let error = csv(text.as_bytes(), &model([1, 1, 2]), &[]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("holds `{cell}` in line {line}, not a finite number")
            );
        }
        assert_eq!(
            csv(b"1,2,3", &model([1, 1, 2]), &[])
                .unwrap_err()
                .to_string(),
            "has 3 values in line 1, but the model takes 2"
        );
        assert!(csv(b"a,b", &model([1, 1, 2]), &[]).is_err());
    }

    #[test]
    fn every_line_of_a_text_is_a_sample_and_every_row_of_a_csv_file() {
        let folder = tempfile::tempdir().unwrap();
        let vocabulary = Arc::new(Vocabulary::new(&["dogs", "bark", "cats", "too"]).unwrap());
        let read = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let known = Fingerprints::default();
            let samples = read(&path, &model([1, 1, 4]), &known, &[], Some(&vocabulary));
            samples.map(|samples| match samples.pixels {
                Pixels::Tokens { ids, .. } => ids,
                _ => panic!("texts are tokens"),
            })
        };
        // 0 fills up, 1 is unknown: `!`, `,` and `and`.
        let marked = "\u{feff}Dogs bark!\n\ncats, too and more\n\n";
        let expected = [2, 3, 1, 0, 0, 0, 0, 0, 4, 1, 5, 1];
        assert_eq!(read("texts.txt", marked.as_bytes()).unwrap(), expected);
        let rows = "label,text\nbark,\"dogs\nbark\"\ncats,too\n";
        let expected = [2, 3, 0, 0, 5, 0, 0, 0];
        assert_eq!(read("texts.csv", rows.as_bytes()).unwrap(), expected);
        let error = |name, bytes| read(name, bytes).unwrap_err().to_string();
        assert!(error("texts.txt", &[0xff, b'a']).contains("is no UTF-8"));
        assert!(error("texts.txt", b"\n\n").contains("holds no texts"));
    }

    /// A model of a raw table: an age, and a pain of two levels.
    fn table() -> Takes {
        let column = |name: &str, kind, levels: &[&str]| TableColumn {
            name: name.into(),
            kind,
            levels: levels.iter().map(|level| (*level).to_owned()).collect(),
            ..TableColumn::default()
        };
        Takes {
            model: model([1, 1, 4]),
            known: Fingerprints::default(),
            target: None,
            columns: vec![
                column("age", ColumnKind::Number, &[]),
                column("pain", ColumnKind::Category, &["none", "typical"]),
            ],
            vocabulary: None,
            extractor: None,
            prepared: [1, 1, 4],
        }
    }

    /// What a model of images takes.
    fn images_of(shape: [usize; 3]) -> Takes {
        Takes {
            model: model(shape),
            columns: Vec::new(),
            ..table()
        }
    }

    #[test]
    fn rows_are_known_by_the_usual_column_or_by_the_named_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, "ID,pain,ward,age\np-1,typical,7,40\np-2,,8,41\n").unwrap();
        let takes = table();
        let (samples, ids) = takes.file(&path, None).unwrap();
        assert_eq!(samples.len(), 2);
        assert_eq!(ids.unwrap(), ["p-1", "p-2"]);
        let (_, ids) = takes.file(&path, Some("ward")).unwrap();
        assert_eq!(ids.unwrap(), ["7", "8"]);
        let error = takes.file(&path, Some("key")).unwrap_err().to_string();
        assert!(error.contains("t.csv` has no column `key`"), "{error}");
        let mut uses = table();
        uses.columns[0].name = "id".into();
        std::fs::write(&path, "id,pain\n1,none\n").unwrap();
        assert_eq!(uses.file(&path, None).unwrap().1, None);
    }

    #[test]
    fn cells_are_read_as_the_table_of_the_same_words() {
        let takes = table();
        let text = b"age,pain\n40.5,typical\n,rare\n";
        let rows = [["40.5", "typical"], ["", "rare"]].map(|row| row.map(str::to_owned).to_vec());
        let shown = |pixels: Pixels| format!("{pixels:?}");
        let same = shown(takes.table(text).unwrap());
        assert_eq!(shown(takes.cells(&rows).unwrap()), same);
        let old = [["40", "none"], ["old", "none"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            takes.cells(&old).unwrap_err().to_string(),
            "rows[1]: holds `old`, which is no number, in column `age`"
        );
        // Without a description there is nothing to stand in for a gap.
        let plain = Takes {
            model: model([1, 1, 2]),
            columns: Vec::new(),
            ..table()
        };
        let gap = [vec!["1".to_owned(), String::new()]];
        let error = plain.cells(&gap).unwrap_err().to_string();
        assert_eq!(
            error,
            "rows[0]: holds ``, which is no number, in column `1`"
        );
    }

    #[test]
    fn standard_input_says_what_it_is() {
        let form = |bytes: &[u8]| table().form(Path::new(STDIN), bytes);
        assert_eq!(form(b"BMI,age\n"), Form::Table);
        assert_eq!(form(&IDX_IMAGES), Form::Idx);
        assert_eq!(form(b"\x89PNG\r\n\x1a\n"), Form::Image);
        assert_eq!(shown(Path::new(STDIN)), "standard input");
    }
}
