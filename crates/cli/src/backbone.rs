//! A frozen network in front of every model: images go through it once, and everything else works on its features.
//!
//! ```text
//! --backbone FILE ─► checked, hashed ─► model.backbone of the spec             fednode init, swarm, simulate
//! the same file, by its hash ─► images of this node ─► features ─► kept        every node, and everybody who predicts
//! ```
//!
//! The network itself is `fednode-backbone`. Here its file becomes an [`Extractor`] of data sources. Features are kept
//! from one start to the next, in a folder of their own.
//!
//! Models get the signed square root of each feature, and rows of one length: the mean of their squares is 1. That is the
//! power normalisation of Perronnin et al. (ECCV 2010). No row says more than another, whatever the site's brightness.
//! Measured on emojis of four vendors (experiments/README.md): a node's own logistic regression gained 0.5 points.

mod store;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use fednode_backbone::{Backbone, BackboneError, Images, Options, Pixels as Raw};
use fednode_core::spec::BackboneSpec;
use fednode_core::{BlobId, ConfigError, FederationSpec};
use fednode_data::{Extractor, Pixels, Samples};
use fednode_runtime::exit::ExitCode;

use self::store::{Store, Wanted};
use crate::failure::fail;
use crate::federation::DataFacts;

/// Images that are computed before what they became is kept.
const CHUNK: usize = 128;
/// The smallest and the largest side to which images are brought where nobody says another.
const USUAL_SIDES: [usize; 2] = [128, 224];

/// The file of a backbone and how it is used, as `FILE[,size=HxW][,mean=…][,scale=…][,output=NAME]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// The file.
    pub file: PathBuf,
    options: Options,
}

impl FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut rest, mut options) = (text, Options::default());
        while let Some((head, option)) = rest.rsplit_once(',')
            && let Some((name, value)) = option.split_once('=')
        {
            let unfit = |form: &str| format!("`{name}={value}`: expected {form}");
            let numbers = || -> Result<Option<Vec<f32>>, String> {
                let all: Result<Vec<f32>, _> = value.split('/').map(str::parse).collect();
                all.map(Some)
                    .map_err(|_| unfit("numbers with `/` between them"))
            };
            match name {
                "size" => {
                    let sides = value.split_once('x');
                    let sides = sides.and_then(|(h, w)| Some([h.parse().ok()?, w.parse().ok()?]));
                    options.size = Some(sides.ok_or_else(|| unfit("HEIGHTxWIDTH"))?);
                }
                "mean" => options.mean = numbers()?,
                "scale" => options.scale = numbers()?,
                "output" => options.output = Some(value.to_owned()),
                _ => {
                    return Err(format!(
                        "unknown option `{name}`: expected size, mean, scale or output"
                    ));
                }
            }
            rest = head;
        }
        if rest.is_empty() {
            return Err("expected FILE[,size=HxW][,mean=M][,scale=S][,output=NAME]".to_owned());
        }
        Ok(Self {
            file: rest.into(),
            options,
        })
    }
}

impl Given {
    /// Describes the file for a spec, and says what the data are behind it.
    ///
    /// # Errors
    /// Names what is wrong with the file, or says that the data are no images.
    pub fn describe(&self, facts: &DataFacts) -> Result<(BackboneSpec, DataFacts), ConfigError> {
        let [_, height, width] = facts.input;
        if facts.is_table || facts.vocabulary > 0 {
            let text = "a backbone looks at images, and these data are none: leave out --backbone";
            return Err(ConfigError(text.into()));
        }
        let refused = |error: BackboneError| ConfigError(error.to_string());
        let [least, most] = USUAL_SIDES;
        let options = Options {
            usual_size: [height.max(width).clamp(least, most); 2],
            ..self.options.clone()
        };
        let backbone = Backbone::open(&self.file, &options).map_err(refused)?;
        let facts = DataFacts {
            input: [1, 1, backbone.features()],
            is_featured: true,
            ..facts.clone()
        };
        Ok((described(&backbone), facts))
    }
}

fn described(backbone: &Backbone) -> BackboneSpec {
    let (mean, scale) = backbone.normalisation();
    // As decimal numbers that people typed, not as their nearest binary ones.
    let decimal = |number: f32| number.to_string().parse().unwrap_or(f64::from(number));
    BackboneSpec {
        file: BlobId::from_bytes(*backbone.id().as_bytes()),
        key: BlobId::from_bytes(*backbone.key().as_bytes()),
        output: backbone.output().to_owned(),
        size: backbone.size(),
        mean: mean.into_iter().map(decimal).collect(),
        scale: scale.into_iter().map(decimal).collect(),
    }
}

/// Opens what a spec wants in front of its models; nothing if it wants nothing.
///
/// # Errors
/// Says which file is missing, or that it is another one than the spec's.
pub fn of(
    spec: &FederationSpec,
    file: Option<&Path>,
    threads: usize,
) -> anyhow::Result<Option<Arc<dyn Extractor>>> {
    let refuse = |text: String| Err(fail(ExitCode::Configuration, text));
    let (wanted, file) = match (&spec.model.backbone, file) {
        (None, None) => return Ok(None),
        (None, Some(_)) => {
            return refuse(
                "the federation has no backbone: leave out `backbone`, or put it into the spec with \
                 `fednode init --backbone FILE`"
                    .to_owned(),
            );
        }
        (Some(wanted), None) => {
            return refuse(format!(
                "the federation looks at images through the ONNX file {}: name it with --backbone",
                wanted.file
            ));
        }
        (Some(wanted), Some(file)) => (wanted, file),
    };
    let numbers = |all: &[f64]| Some(all.iter().map(|number| *number as f32).collect());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options {
        output: Some(wanted.output.clone()),
        size: Some(wanted.size),
        mean: numbers(&wanted.mean),
        scale: numbers(&wanted.scale),
        threads: if threads == 0 { cores } else { threads },
        ..Options::default()
    };
    let backbone = match Backbone::open(file, &options) {
        Ok(backbone) => backbone,
        Err(error) => return refuse(error.to_string()),
    };
    let found = described(&backbone);
    if found.file != wanted.file {
        return refuse(format!(
            "`{}` is the file {}, and the federation looks at images through {}",
            file.display(),
            found.file,
            wanted.file
        ));
    }
    let n_inputs: usize = spec.architecture().input.iter().product();
    if found.key != wanted.key || backbone.features() != n_inputs {
        let text = "the federation's backbone prepares images in another way: all members need the same version of fednode";
        return refuse(text.to_owned());
    }
    Ok(Some(Arc::new(Frozen {
        store: Store::open(&wanted.key, backbone.features()),
        backbone,
    })))
}

/// A backbone, and the features that it computed before.
#[derive(Debug)]
struct Frozen {
    backbone: Backbone,
    store: Store,
}

impl Extractor for Frozen {
    fn width(&self) -> usize {
        self.backbone.features()
    }

    fn features(&self, samples: &Samples) -> Result<Vec<f32>, String> {
        let Pixels::Bytes { values, white } = &samples.pixels else {
            return Err("a backbone looks at images, and these samples are none".to_owned());
        };
        let images: Vec<&[u8]> = values.chunks_exact(samples.values_per_sample()).collect();
        let mut wanted = Wanted::new(
            images
                .iter()
                .map(|image| name(samples.shape, *white, image)),
        );
        self.store.fill(&mut wanted, self.width());
        let missing = wanted.missing();
        if missing.len() >= CHUNK {
            let n_kept = images.len() - missing.len();
            tracing::info!(
                images = missing.len(),
                n_kept,
                "computing features with the backbone"
            );
        }
        let mut kept = self.store.writer();
        for chunk in missing.chunks(CHUNK) {
            let pixels: Vec<u8> = chunk.iter().flat_map(|at| images[*at]).copied().collect();
            let mut rows = self.compute(&pixels, samples.shape, *white)?;
            for (at, row) in chunk.iter().zip(rows.chunks_exact_mut(self.width())) {
                normalise(row);
                kept.write(wanted.name(*at), row);
                wanted.put(*at, row.to_vec());
            }
            kept.flush();
        }
        Ok(wanted.into_rows())
    }
}

impl Frozen {
    fn compute(&self, pixels: &[u8], shape: [usize; 3], white: u8) -> Result<Vec<f32>, String> {
        let scaled: Vec<f32>;
        let raw = if white == u8::MAX {
            Raw::Bytes(pixels)
        } else {
            let largest = f32::from(white);
            scaled = pixels
                .iter()
                .map(|byte| f32::from(*byte) / largest)
                .collect();
            Raw::Floats(&scaled)
        };
        let images = Images::new(raw, shape).map_err(|error| error.to_string())?;
        self.backbone
            .run(&images)
            .map_err(|error| error.to_string())
    }
}

/// Takes signed square roots, and brings the mean of the squares to 1; a row of zeros stays one.
fn normalise(row: &mut [f32]) {
    let sum: f64 = row.iter().map(|value| f64::from(value.abs())).sum();
    if sum > 0.0 {
        let length = (sum / row.len() as f64).sqrt();
        for value in row {
            let root = f64::from(value.abs()).sqrt() / length;
            *value = root.copysign(f64::from(*value)) as f32;
        }
    }
}

/// Names an image by all that its features depend on, besides the backbone.
fn name(shape: [usize; 3], white: u8, image: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for size in shape {
        hasher.update(&(size as u64).to_le_bytes());
    }
    hasher.update(&[white]).update(image);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_its_options_are_one_text() {
        let given: Given = "a,b.onnx,size=96x128,mean=0.1/0.2/0.3,scale=0.5,output=x"
            .parse()
            .unwrap();
        assert_eq!(given.file, Path::new("a,b.onnx"));
        let expected = Options {
            output: Some("x".into()),
            size: Some([96, 128]),
            mean: Some(vec![0.1, 0.2, 0.3]),
            scale: Some(vec![0.5]),
            ..Options::default()
        };
        assert_eq!(given.options, expected);
        for (text, part) in [
            ("", "expected FILE"),
            ("a.onnx,size=9", "HEIGHTxWIDTH"),
            ("a.onnx,mean=dark", "numbers"),
            ("a.onnx,sise=9x9", "unknown option `sise`"),
        ] {
            let error = text.parse::<Given>().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    /// By hand: roots 2, -1, 0 and 3, whose squares add up to 14, a mean of 3.5.
    #[test]
    fn rows_have_one_length() {
        let mut row = [4.0, -1.0, 0.0, 9.0];
        normalise(&mut row);
        let expected = [2.0, -1.0, 0.0, 3.0].map(|root: f64| (root / 3.5_f64.sqrt()) as f32);
        assert_eq!(row, expected);
        let mut nothing = [0.0; 3];
        normalise(&mut nothing);
        assert_eq!(nothing, [0.0; 3]);
    }

    /// The golden file `identity` hands out pixels, here of digits, which are bytes up to 16.
    #[test]
    fn features_are_those_of_the_network() {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../backbone/tests/data/identity.onnx");
        let given: Given = format!("{},size=8x8,mean=0,scale=1", file.display())
            .parse()
            .unwrap();
        let facts = crate::data::facts(&"digits".parse().unwrap()).unwrap();
        let (described, behind) = given.describe(&facts).unwrap();
        assert_eq!((behind.input, described.size), ([1, 1, 192], [8, 8]));
        assert_eq!(
            (described.mean, described.scale),
            (vec![0.0; 3], vec![1.0; 3])
        );
        let frozen = Frozen {
            backbone: Backbone::open(&file, &given.options).unwrap(),
            store: Store::nowhere(),
        };
        let names: Arc<[String]> = ["a".to_owned()].into();
        let values: Vec<u8> = (0..64).map(|at| at % 17).collect();
        let pixels = Pixels::Bytes {
            values: values.clone(),
            white: 16,
        };
        let samples = Samples::new([1, 8, 8], pixels, vec![0], names).unwrap();
        let mut expected: Vec<f32> = values.iter().map(|byte| f32::from(*byte) / 16.0).collect();
        expected = expected.repeat(3);
        normalise(&mut expected);
        let features = frozen.features(&samples).unwrap();
        let far = features.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        assert!(far.fold(0.0, f32::max) < 1e-6, "{features:?}");
        assert_eq!(features.len(), 192);
    }

    #[test]
    fn images_of_one_look_have_one_name() {
        let image = [1_u8, 2, 3, 4];
        let base = name([1, 2, 2], 255, &image);
        assert_eq!(base, name([1, 2, 2], 255, &image));
        assert_ne!(base, name([1, 1, 4], 255, &image));
        assert_ne!(base, name([1, 2, 2], 16, &image));
        assert_ne!(base, name([1, 2, 2], 255, &[1, 2, 3, 5]));
    }
}
