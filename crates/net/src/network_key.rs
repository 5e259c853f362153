//! The pre-shared network key: one secret that all members have.
//!
//! It wraps every TCP connection in a stream cipher below Noise. Without it no connection gets past its first bytes. It is
//! a fence, not an identity: Noise proves who a peer is. To rotate the key, restart all members.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use libp2p::pnet::PreSharedKey;

use crate::secret_file::{self, SecretFileError};

/// A pre-shared key of 32 bytes, written as 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct NetworkKey([u8; 32]);

/// Tells that a text is not a network key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a network key is 64 hexadecimal digits")]
pub struct NetworkKeyError;

impl NetworkKey {
    /// Makes a new key.
    #[expect(clippy::disallowed_methods, reason = "nobody may foresee a key")]
    pub fn generate() -> Self {
        Self(rand::random())
    }

    /// Reads the key file, which only its owner may be able to read.
    ///
    /// # Errors
    /// Fails if the file is absent, open to others or not a key.
    pub fn load(path: &Path) -> Result<Self, SecretFileError> {
        let bytes = secret_file::read(path)?;
        let key = std::str::from_utf8(&bytes)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        key.ok_or(SecretFileError::Corrupt {
            path: path.to_owned(),
            what: "network key",
            remedy: "ask another member for it, who all have the same",
        })
    }

    /// Writes the key to a new file.
    ///
    /// # Errors
    /// Fails if the file exists or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), SecretFileError> {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        secret_file::create(path, format!("{digits}\n").as_bytes())
    }

    pub(crate) const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    pub(crate) fn to_pre_shared_key(&self) -> PreSharedKey {
        PreSharedKey::new(self.0)
    }
}

impl FromStr for NetworkKey {
    type Err = NetworkKeyError;

    fn from_str(text: &str) -> Result<Self, NetworkKeyError> {
        // By bytes: slicing a text of other letters in the middle would panic.
        let digit = |byte: u8| {
            char::from(byte)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        };
        let mut key = [0; 32];
        if text.len() != 64 {
            return Err(NetworkKeyError);
        }
        for (byte, pair) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let (high, low) = (
                digit(pair[0]).ok_or(NetworkKeyError)?,
                digit(pair[1]).ok_or(NetworkKeyError)?,
            );
            *byte = high << 4 | low;
        }
        Ok(Self(key))
    }
}

impl fmt::Debug for NetworkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_digits_and_nothing_else() {
        let text = "00ff".repeat(16);
        let key: NetworkKey = text.parse().unwrap();
        assert_eq!(key.0[..4], [0, 255, 0, 255]);
        assert_eq!(text.to_uppercase().parse(), Ok(key));
        for bad in [
            "",
            &text[1..],
            &format!("{text}0"),
            &text.replace("ff", "fg"),
            &"é".repeat(32),
        ] {
            assert_eq!(bad.parse::<NetworkKey>(), Err(NetworkKeyError), "{bad}");
        }
    }

    #[test]
    fn file_comes_back_and_debug_tells_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("network.key");
        let key = NetworkKey::generate();
        key.save(&path).unwrap();
        assert_eq!(NetworkKey::load(&path).unwrap(), key);
        assert_eq!(format!("{key:?}"), "NetworkKey(…)");
    }
}
