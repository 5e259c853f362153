//! When the files of a data source were changed last: whether it is worth reading them again.
//!
//! A look costs no more than names and times, so it can be had before every round. Files that were changed a moment ago may still
//! be written to, and half a line can read like a whole one. So a change counts once it is two seconds old.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::source::DataSource;

/// How old a change must be before anybody reads.
const SETTLED: Duration = Duration::from_secs(2);
/// Folders within folders that are looked into: of classes, and one more.
const DEPTH: u32 = 2;

/// Sizes and times of the files of a data source, and times of its folders. Files within folders are not looked at one by one: a new
/// one changes its folder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stamp {
    found: Vec<(PathBuf, u64, Option<SystemTime>)>,
}

impl Stamp {
    /// Looks at everything that a data source reads. What is not there is not in it.
    pub fn of(source: &DataSource) -> Self {
        let paths = RefCell::new(Vec::new());
        let _ = source.clone().with_paths(|path| {
            paths.borrow_mut().push(path.to_owned());
            path.to_owned()
        });
        let mut stamp = Self::default();
        for path in paths.into_inner() {
            stamp.look_at(&path, DEPTH);
        }
        stamp
    }

    fn look_at(&mut self, path: &Path, depth: u32) {
        let Ok(found) = fs::metadata(path) else {
            return;
        };
        let size = if found.is_file() { found.len() } else { 0 };
        self.found
            .push((path.to_owned(), size, found.modified().ok()));
        if !found.is_dir() || depth == 0 {
            return;
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let mut folders: Vec<PathBuf> = entries
            .filter(is_folder)
            .map(|entry| entry.path())
            .collect();
        folders.sort();
        for folder in folders {
            self.look_at(&folder, depth - 1);
        }
    }

    /// Tells whether the newest change is so old that nobody writes any more, as far as that can be told.
    pub fn is_settled(&self) -> bool {
        let now = SystemTime::now();
        let times = self.found.iter().filter_map(|(_, _, at)| *at);
        // A time to come is that of another clock, and says nothing.
        times
            .filter_map(|at| now.duration_since(at).ok())
            .all(|age| age >= SETTLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: String) -> DataSource {
        text.parse().unwrap()
    }

    #[test]
    fn a_stamp_changes_with_a_row_and_settles_after_two_seconds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        let table = source(format!("csv:{},label=y", path.display()));
        assert_eq!(Stamp::of(&table), Stamp::default(), "there is no file");
        fs::write(&path, "x,y\n1,a\n").unwrap();
        let before = Stamp::of(&table);
        assert!(!before.is_settled(), "it was written just now");
        assert_eq!(Stamp::of(&table), before);
        fs::write(&path, "x,y\n1,a\n2,b\n").unwrap();
        assert_ne!(Stamp::of(&table), before);
        let file = fs::File::options().write(true).open(&path).unwrap();
        let at = SystemTime::now().checked_sub(SETTLED).unwrap();
        file.set_modified(at).unwrap();
        assert!(Stamp::of(&table).is_settled());
    }

    #[test]
    fn a_stamp_of_a_folder_changes_with_a_new_file_of_a_class() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path().join("cats");
        fs::create_dir(&class).unwrap();
        let file = fs::File::open(&class).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let images = source(format!("folder:{}", folder.path().display()));
        let before = Stamp::of(&images);
        fs::write(class.join("1.png"), "no matter what").unwrap();
        assert_ne!(Stamp::of(&images), before);
    }

    #[test]
    fn data_that_are_in_no_file_have_an_empty_stamp() {
        assert_eq!(Stamp::of(&source("digits".into())), Stamp::default());
    }
}
