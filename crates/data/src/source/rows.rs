//! Rows of texts in CSV files (RFC 4180), plain or gzipped, with the line that each one begins in.
//!
//! Stricter than the reader of number tables: a quotation that does not end would otherwise swallow the rest of the file
//! and leave one sample fewer, not an error.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::error::DataError;

/// Longest row: bounds what a damaged file can make us hold.
const MAX_ROW_BYTES: usize = 1 << 20;
/// What some programs begin a file of UTF-8 text with.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// An opened file.
pub(super) struct Rows {
    path: PathBuf,
    stream: Box<dyn BufRead>,
    /// Lines read so far.
    lines: u64,
}

/// One row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Where it begins, counting from 1.
    pub(super) line: u64,
    /// Its cells, without their quotation marks.
    pub(super) cells: Vec<String>,
}

/// A row of which some lines have been read.
#[derive(Debug, Default)]
struct Unfinished {
    cells: Vec<String>,
    /// The bytes of the cell that comes after these.
    cell: Vec<u8>,
    place: Place,
}

/// What the next byte is part of.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    CellStart,
    Plain,
    Quoted,
    /// After a quotation mark inside a quotation: its end, or half of a mark that is meant.
    Mark,
}

impl Rows {
    /// Opens a file; one whose name ends in `.gz` is unpacked on the way.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::read(path))?;
        let is_packed = path.extension().is_some_and(|extension| extension == "gz");
        let stream: Box<dyn BufRead> = if is_packed {
            Box::new(BufReader::new(MultiGzDecoder::new(file)))
        } else {
            Box::new(BufReader::new(file))
        };
        Ok(Self {
            path: path.to_owned(),
            stream,
            lines: 0,
        })
    }

    /// Returns the next row that is not blank.
    pub(super) fn next(&mut self) -> Result<Option<Row>, DataError> {
        loop {
            let line = self.lines + 1;
            let Some(cells) = self.cells(line)? else {
                return Ok(None);
            };
            if cells.iter().any(|cell| !cell.trim().is_empty()) || cells.len() > 1 {
                return Ok(Some(Row { line, cells }));
            }
        }
    }

    /// Says that a line is wrong.
    pub(super) fn malformed(&self, line: u64, cause: impl std::fmt::Display) -> DataError {
        DataError::malformed(&self.path, format!("{cause} in line {line}"))
    }

    /// Reads as many lines as the row that begins here has.
    fn cells(&mut self, first: u64) -> Result<Option<Vec<String>>, DataError> {
        let mut row = Unfinished::default();
        let (mut line, mut size) = (Vec::new(), 0);
        loop {
            size += self.read_line(&mut line, MAX_ROW_BYTES + 1 - size)?;
            if size > MAX_ROW_BYTES {
                return Err(self.malformed(first, "has a row of more than a megabyte"));
            }
            if line.is_empty() {
                return match row.place {
                    Place::Quoted => {
                        Err(self
                            .malformed(first, "has a quotation without end in the row that begins"))
                    }
                    _ => Ok(None),
                };
            }
            row.add_line(&line)
                .map_err(|cause| self.malformed(self.lines, cause))?;
            if row.place != Place::Quoted {
                return Ok(Some(row.cells));
            }
        }
    }

    /// Reads a line of so many bytes at most, without the mark that a file may begin with; returns how many were read.
    fn read_line(&mut self, line: &mut Vec<u8>, limit: usize) -> Result<usize, DataError> {
        line.clear();
        let size = std::io::Read::take(&mut self.stream, limit as u64)
            .read_until(b'\n', line)
            .map_err(DataError::read(&self.path))?;
        if size > 0 {
            self.lines += 1;
        }
        if self.lines == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(size)
    }
}

impl Unfinished {
    /// Adds a line to the row; the line ends the row unless a quotation goes on. Otherwise tells what is wrong.
    fn add_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        for byte in line.iter().copied().filter(|byte| *byte != b'\r') {
            self.place = match (self.place, byte) {
                (Place::CellStart, b'"') => Place::Quoted,
                (Place::Quoted, b'"') => Place::Mark,
                (Place::CellStart | Place::Plain | Place::Mark, b',') => {
                    self.end_cell()?;
                    Place::CellStart
                }
                (Place::CellStart | Place::Plain | Place::Mark, b'\n') => break,
                (Place::Mark, b'"') | (Place::Quoted, _) => {
                    self.cell.push(byte);
                    Place::Quoted
                }
                (Place::Mark, _) => return Err("goes on after a closing quotation mark"),
                (Place::CellStart | Place::Plain, _) => {
                    self.cell.push(byte);
                    Place::Plain
                }
            };
        }
        match self.place {
            Place::Quoted => Ok(()),
            Place::CellStart | Place::Plain | Place::Mark => self.end_cell(),
        }
    }

    fn end_cell(&mut self) -> Result<(), &'static str> {
        let text = String::from_utf8(std::mem::take(&mut self.cell));
        self.cells.push(text.map_err(|_| "is no UTF-8 text")?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &[u8]) -> Result<Vec<(u64, Vec<String>)>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        std::fs::write(&path, text).unwrap();
        let mut rows = Rows::open(&path).unwrap();
        let mut all = Vec::new();
        let describe = |error: DataError| error.to_string().rsplit("` ").next().unwrap().to_owned();
        while let Some(row) = rows.next().map_err(describe)? {
            all.push((row.line, row.cells));
        }
        Ok(all)
    }

    fn row(line: u64, cells: &[&str]) -> (u64, Vec<String>) {
        (line, cells.iter().map(|cell| (*cell).to_owned()).collect())
    }

    #[test]
    fn quotations_may_hold_commas_marks_and_lines() {
        let text = b"\xef\xbb\xbf\"3\",\"a, \"\"b\"\"\",\"two\nlines\"\r\n\n1,5\" nail,\n2,x,\"\"";
        let expected = [
            row(1, &["3", "a, \"b\"", "two\nlines"]),
            row(4, &["1", "5\" nail", ""]),
            row(5, &["2", "x", ""]),
        ];
        assert_eq!(rows(text).unwrap(), expected);
        assert_eq!(rows(b"").unwrap(), []);
    }

    #[test]
    fn names_the_line_of_what_is_wrong() {
        let wrong = |text: &[u8]| rows(text).unwrap_err();
        assert_eq!(
            wrong(b"1,a\n2,\"b\n3,c\n"),
            "has a quotation without end in the row that begins in line 2"
        );
        assert_eq!(
            wrong(b"1,a\n2,\"b\" c\n"),
            "goes on after a closing quotation mark in line 2"
        );
        assert_eq!(wrong(b"1,a\n2,\xff\n"), "is no UTF-8 text in line 2");
        assert_eq!(
            wrong(&[b'x'; MAX_ROW_BYTES + 1]),
            "has a row of more than a megabyte in line 1"
        );
    }
}
