//! Which part of a divided data set is mine: `I/N`, counting from 1.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The `index`-th of `of` parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Which one, counting from 1.
    pub index: u32,
    /// Of how many.
    pub of: u32,
}

impl Shard {
    /// Returns the index counting from 0.
    pub const fn position(self) -> usize {
        self.index as usize - 1
    }
}

/// A text is no shard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not of the form I/N with I from 1 to N, as 2/5")]
pub struct NoShard(String);

impl FromStr for Shard {
    type Err = NoShard;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || NoShard(text.to_owned());
        let (index, of) = text.split_once('/').ok_or_else(malformed)?;
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| malformed());
        let shard = Self {
            index: number(index)?,
            of: number(of)?,
        };
        if (1..=shard.of).contains(&shard.index) {
            Ok(shard)
        } else {
            Err(malformed())
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl Serialize for Shard {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Shard {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_one() {
        let shard: Shard = "2/5".parse().unwrap();
        assert_eq!((shard, shard.position()), (Shard { index: 2, of: 5 }, 1));
        assert_eq!(shard.to_string(), "2/5");
    }

    #[test]
    fn refuses_what_is_no_part() {
        for text in ["0/5", "6/5", "2", "a/5", "2/", "/5", "-1/5", "1/0", ""] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
