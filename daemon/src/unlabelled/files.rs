//! Files and standard input, as bytes.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use fednode_cli::failure::fail;
use fednode_runtime::exit::ExitCode;
use flate2::read::GzDecoder;

/// What stands for standard input.
pub(super) const STDIN: &str = "-";
/// First bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Most bytes of an unpacked IDX or CSV file.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Names a file in a message.
pub(super) fn shown(path: &Path) -> String {
    if path == Path::new(STDIN) {
        "standard input".into()
    } else {
        format!("`{}`", path.display())
    }
}

/// Reads a file, or standard input, and unpacks it.
pub(super) fn unpacked(path: &Path) -> anyhow::Result<Vec<u8>> {
    let unreadable = |error| {
        fail(
            ExitCode::Data,
            format!("cannot read {}: {error}", shown(path)),
        )
    };
    let mut bytes = Vec::new();
    let read = if path == Path::new(STDIN) {
        io::stdin()
            .lock()
            .take(MAX_FILE_BYTES)
            .read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| {
            BufReader::new(file)
                .take(MAX_FILE_BYTES)
                .read_to_end(&mut bytes)
        })
    };
    read.map_err(unreadable)?;
    if bytes.starts_with(&GZIP) {
        let mut inner = Vec::new();
        GzDecoder::new(bytes.as_slice())
            .take(MAX_FILE_BYTES)
            .read_to_end(&mut inner)
            .map_err(unreadable)?;
        return Ok(inner);
    }
    Ok(bytes)
}
