//! Secrets that open a server on this machine: 256 random bits in hexadecimal.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use fednode_files::whole_file;

/// Bytes of randomness in a token.
const BYTES: usize = 32;

/// Makes a token.
#[expect(clippy::disallowed_methods, reason = "nobody may foresee a token")]
pub fn new() -> String {
    let bytes: [u8; BYTES] = rand::random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares without telling by its duration how much was right. The length of a token is no secret.
pub fn equal(given: &str, expected: &str) -> bool {
    let pairs = given.bytes().zip(expected.bytes());
    let difference = pairs.fold(0, |difference, (a, b)| difference | (a ^ b));
    // Without the black box a compiler may leave the comparison at the first difference.
    given.len() == expected.len() && std::hint::black_box(difference) == 0
}

/// Returns the token in a file, and makes the file if it is not there; only its owner can read it then. Whoever wants another
/// token removes the file before the next start.
///
/// # Errors
/// Fails if the disk does, or if the file holds no token.
pub fn kept(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) if is_token(text.trim()) => return Ok(text.trim().to_owned()),
        Ok(_) => {
            let text = format!(
                "`{}` holds no token: remove it, and the next start makes another",
                path.display()
            );
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        // Somebody may use the token that cannot be read just now, so it is not replaced.
        Err(error) => return Err(error),
    }
    let token = new();
    whole_file::write_private(path, token.as_bytes())?;
    Ok(token)
}

/// Tells whether a text may be a token: at least as long as one, and nothing but letters and digits.
fn is_token(text: &str) -> bool {
    text.len() >= 2 * BYTES && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_whole_token_opens() {
        assert!(equal("secret", "secret"));
        assert!(!equal("secret", "secreT"));
        assert!(!equal("secre", "secret"));
        assert!(!equal("", "secret"));
        assert_ne!(new(), new());
    }

    #[test]
    fn a_kept_token_stays_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.token");
        let token = kept(&path).unwrap();
        assert_eq!(kept(&path).unwrap(), token);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(&path, format!("{token}\n")).unwrap();
        assert_eq!(kept(&path).unwrap(), token);
        for nonsense in ["", "short", &"-".repeat(64)] {
            fs::write(&path, nonsense).unwrap();
            assert!(
                kept(&path)
                    .unwrap_err()
                    .to_string()
                    .contains("holds no token")
            );
        }
    }
}
