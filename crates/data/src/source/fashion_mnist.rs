//! Fashion-MNIST: 70,000 grey images of 28×28 in ten classes (Xiao, Rasul, Vollgraf 2017), in MNIST's IDX files.

use std::path::PathBuf;

use fednode_config::{TableDoc, config};

use super::idx::Idx;
use super::kind::Reader;
use super::{Columns, Source};
use crate::error::DataError;

/// Where Debian's package puts it.
const DEBIAN: &str = "/usr/share/datasets/fashion-mnist";
/// Names the folder of downloaded data sets.
const VARIABLE: &str = "FEDNODE_DATA";
/// What belongs into it.
const FILES: &str = "{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz";

const CLASSES: [&str; 10] = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
];

config! {
    /// Fashion-MNIST has no options.
    pub(super) struct Options {}
}

impl Reader for Options {
    const NAME: &'static str = "fashion-mnist";
    const ABOUT: &'static str =
        "Fashion-MNIST, from Debian's dataset-fashion-mnist or $FEDNODE_DATA/fashion-mnist";
    const ARGUMENT: Option<&'static str> = None;

    fn table() -> TableDoc {
        Self::doc()
    }

    fn open(self, _columns: &Columns) -> Result<Box<dyn Source>, DataError> {
        let own = std::env::var_os(VARIABLE);
        let own = own.map(|folder| PathBuf::from(folder).join("fashion-mnist"));
        let folder = locate([Some(PathBuf::from(DEBIAN)), own])?;
        let names = CLASSES.iter().map(|name| (*name).to_owned()).collect();
        Ok(Box::new(Idx::like_mnist(&folder, names)?))
    }
}

fn locate(candidates: [Option<PathBuf>; 2]) -> Result<PathBuf, DataError> {
    let exists = |folder: &PathBuf| folder.is_dir();
    candidates.into_iter().flatten().find(exists).ok_or_else(|| {
        DataError::Absent(format!(
            "Fashion-MNIST is not there: install Debian's package dataset-fashion-mnist, or put its four files \
             ({FILES}) into ${VARIABLE}/fashion-mnist"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_to_install_and_what_to_fetch() {
        let error = locate([Some("/nowhere".into()), None])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("dataset-fashion-mnist")
                && error.contains("$FEDNODE_DATA/fashion-mnist"),
            "{error}"
        );
    }

    #[test]
    fn prefers_the_first_folder_that_exists() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let paths = [
            Some(first.path().to_owned()),
            Some(second.path().to_owned()),
        ];
        assert_eq!(locate(paths).unwrap(), first.path());
        assert_eq!(
            locate([Some("/nowhere".into()), Some(second.path().to_owned())]).unwrap(),
            second.path()
        );
    }
}
