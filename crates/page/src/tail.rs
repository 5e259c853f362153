//! Follows a file that grows by lines: only what is new is read, and a file that was replaced is noticed.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// Most bytes that are read at a time.
const AT_A_TIME: u64 = 16 << 20;

/// How far a file has been read.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    /// Where the first line that was not read begins.
    read_to: u64,
    /// The last line that was read. A writer may replace its last line.
    last: Vec<u8>,
    /// Most bytes from the end that are read at first.
    at_first: u64,
}

/// What is new in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Whether what was read before no longer holds: everything follows again.
    pub(crate) is_reset: bool,
    /// Complete lines, without their ends.
    pub(crate) lines: Vec<Vec<u8>>,
}

impl Tail {
    /// Follows a file from its beginning; it need not be there yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self::last_bytes(path, u64::MAX)
    }

    /// Follows a file of which only the last bytes are of interest.
    pub(crate) fn last_bytes(path: PathBuf, at_first: u64) -> Self {
        Self {
            path,
            read_to: 0,
            last: Vec::new(),
            at_first,
        }
    }

    /// Reads what is new. What does not fit into one read follows in the next.
    ///
    /// # Errors
    /// Fails if the disk does. A file that is not there has no lines.
    pub(crate) fn read(&mut self) -> io::Result<News> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let is_reset = self.read_to > 0;
                self.forget();
                return Ok(News {
                    is_reset,
                    lines: Vec::new(),
                });
            }
            Err(error) => return Err(error),
        };
        let size = file.metadata()?.len();
        let is_reset = self.read_to > 0 && !self.goes_on(&mut file, size)?;
        if is_reset {
            self.forget();
        }
        if self.read_to == 0 && size > self.at_first {
            self.skip(&mut file, size - self.at_first)?;
        }
        let lines = self.new_lines(&mut file)?;
        Ok(News { is_reset, lines })
    }

    fn forget(&mut self) {
        self.read_to = 0;
        self.last.clear();
    }

    /// Tells whether the file still holds the line that was read last, where it was.
    fn goes_on(&self, file: &mut File, size: u64) -> io::Result<bool> {
        if size < self.read_to {
            return Ok(false);
        }
        file.seek(SeekFrom::Start(self.read_to - self.last.len() as u64))?;
        let mut there = vec![0; self.last.len()];
        match file.read_exact(&mut there) {
            // The writer shortens the file at this very moment.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            read => Ok(read.map(|()| there == self.last)?),
        }
    }

    /// Goes to the first line that begins at or after a place.
    fn skip(&mut self, file: &mut File, place: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(place))?;
        let mut piece = Vec::new();
        file.take(AT_A_TIME).read_to_end(&mut piece)?;
        let end = piece.iter().position(|byte| *byte == b'\n');
        self.read_to = place + end.map_or(0, |end| end as u64 + 1);
        Ok(())
    }

    fn new_lines(&mut self, file: &mut File) -> io::Result<Vec<Vec<u8>>> {
        file.seek(SeekFrom::Start(self.read_to))?;
        let mut piece = Vec::new();
        file.take(AT_A_TIME).read_to_end(&mut piece)?;
        let Some(end) = piece.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(Vec::new());
        };
        piece.truncate(end + 1);
        let begins = piece[..end].iter().rposition(|byte| *byte == b'\n');
        self.last = piece[begins.map_or(0, |newline| newline + 1)..].to_vec();
        self.read_to += piece.len() as u64;
        let lines = piece[..end].split(|byte| *byte == b'\n');
        Ok(lines.map(<[u8]>::to_vec).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn texts(news: &News) -> Vec<&str> {
        let text = |line: &'_ Vec<u8>| -> &'static str {
            Box::leak(String::from_utf8(line.clone()).unwrap().into_boxed_str())
        };
        news.lines.iter().map(text).collect()
    }

    #[test]
    fn only_complete_new_lines_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut tail = Tail::new(path.clone());
        assert_eq!(tail.read().unwrap(), News::default());
        fs::write(&path, "one\ntwo\nthr").unwrap();
        assert_eq!(texts(&tail.read().unwrap()), ["one", "two"]);
        fs::write(&path, "one\ntwo\nthree\n").unwrap();
        let news = tail.read().unwrap();
        assert_eq!((texts(&news), news.is_reset), (vec!["three"], false));
        assert_eq!(tail.read().unwrap(), News::default());
    }

    #[test]
    fn a_file_that_was_replaced_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut tail = Tail::new(path.clone());
        let changes = [
            // The last line is another one, and the file grew.
            "one\ntwo\n",
            "one\nTWO\nthree\n",
            // The file is shorter.
            "one\n",
        ];
        for (i, text) in changes.into_iter().enumerate() {
            fs::write(&path, text).unwrap();
            let news = tail.read().unwrap();
            assert_eq!(news.is_reset, i > 0, "{text}");
            assert_eq!(texts(&news), text.lines().collect::<Vec<_>>());
        }
        fs::remove_file(&path).unwrap();
        assert!(tail.read().unwrap().is_reset);
        assert!(!tail.read().unwrap().is_reset);
    }

    #[test]
    fn of_a_long_log_the_end_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        fs::write(&path, "a long first line\nsecond\nthird\n").unwrap();
        let mut tail = Tail::last_bytes(path, 16);
        assert_eq!(texts(&tail.read().unwrap()), ["second", "third"]);
    }
}
