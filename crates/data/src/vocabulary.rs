//! Vocabularies: which token has which number.
//!
//! ```text
//! 0       <pad>    fills a text up to the common length
//! 1       <unk>    any token that is not in the vocabulary
//! 2 …     tokens, the most frequent first, those of equal frequency in the order of their code points
//! ```
//!
//! That is the order of torchtext's `build_vocab_from_iterator`, and as there the bound on the size includes the two
//! special entries. Nothing is drawn and nothing depends on the order of the texts: whoever counts the same texts gets
//! the same vocabulary. Its hash tells two apart before their nodes average embeddings of different words.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use crate::error::DataError;
use crate::tokenizer::normalize;

/// Separates the hash of a vocabulary from every other hash.
const DOMAIN: &str = "fednode vocabulary 1";
/// What files call the two special entries.
const SPECIALS: [&str; 2] = ["<pad>", "<unk>"];
/// Most entries: every number is exact as a 32-bit float, and an embedding of this size still fits memory.
pub(crate) const MAX_ENTRIES: usize = 1_000_000;
/// Longest accepted file of tokens.
const MAX_FILE_BYTES: u64 = 1 << 27;

/// Tokens and their numbers.
#[derive(Clone, PartialEq, Eq)]
pub struct Vocabulary {
    ids: HashMap<Box<str>, u32>,
    hash: String,
}

impl Vocabulary {
    /// The number that fills a text up.
    pub const PADDING: u32 = 0;
    /// The number of tokens that are not in the vocabulary.
    pub const UNKNOWN: u32 = 1;
    /// Fewest texts of a node that a word must be in for others to hear of it: a rarer one may be a name.
    pub const FEWEST_TEXTS: u64 = 5;

    /// Numbers distinct tokens in this order, from 2 on.
    ///
    /// # Errors
    /// Returns the position of the first token that is not one word, or occurs before, or is one too many.
    pub fn new(tokens: &[&str]) -> Result<Self, usize> {
        let mut ids = HashMap::with_capacity(tokens.len());
        let mut hasher = blake3::Hasher::new_derive_key(DOMAIN);
        for (at, token) in tokens.iter().copied().enumerate() {
            let id = at + SPECIALS.len();
            let is_word = token.split_whitespace().eq([token]);
            if !is_word || id >= MAX_ENTRIES || ids.insert(Box::from(token), id as u32).is_some() {
                return Err(at);
            }
            hasher.update(token.as_bytes());
            hasher.update(b"\n");
        }
        Ok(Self {
            ids,
            hash: hasher.finalize().to_hex()[..32].to_owned(),
        })
    }

    /// Reads a file of tokens, one a line, the most frequent first; `<pad>` and `<unk>` may stand before them.
    ///
    /// # Errors
    /// Names the line that holds no single word or one that stood before.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let size = std::fs::metadata(path)
            .map_err(DataError::read(path))?
            .len();
        if size > MAX_FILE_BYTES {
            return Err(DataError::malformed(
                path,
                format!("is no list of tokens: it has {size} bytes"),
            ));
        }
        let bytes = std::fs::read(path).map_err(DataError::read(path))?;
        let text =
            String::from_utf8(bytes).map_err(|_| DataError::malformed(path, "is no UTF-8 text"))?;
        let lines: Vec<&str> = text.trim_start_matches('\u{feff}').lines().collect();
        let skipped = if lines.starts_with(&SPECIALS) {
            SPECIALS.len()
        } else {
            0
        };
        if lines.len() == skipped {
            return Err(DataError::malformed(path, "holds no tokens"));
        }
        Self::new(&lines[skipped..]).map_err(|at| {
            let (line, most) = (at + skipped + 1, MAX_ENTRIES - SPECIALS.len());
            let cause = format!(
                "must hold up to {most} different words, one a line, but line {line} does not fit"
            );
            DataError::malformed(path, cause)
        })
    }

    /// Returns the number of entries, the two special ones included: above every number.
    pub fn len(&self) -> usize {
        self.ids.len() + SPECIALS.len()
    }

    /// Tells whether every token is unknown.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns what tells it from other vocabularies: 32 hexadecimal digits.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns a token's number.
    pub fn id(&self, token: &str) -> u32 {
        self.ids.get(token).copied().unwrap_or(Self::UNKNOWN)
    }

    /// Returns the tokens in the order of their numbers, as [`Self::read`] takes them.
    pub fn tokens(&self) -> Vec<&str> {
        let mut tokens = vec![""; self.ids.len()];
        for (token, id) in &self.ids {
            tokens[*id as usize - SPECIALS.len()] = token;
        }
        tokens
    }

    /// Writes the numbers of a text's first tokens, as many as there are places, and fills up with padding.
    pub fn encode(&self, text: &str, places: &mut [u32]) {
        places.fill(Self::PADDING);
        for (place, token) in places.iter_mut().zip(normalize(text).split_whitespace()) {
            *place = self.id(token);
        }
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary")
            .field("len", &self.len())
            .field("hash", &self.hash)
            .finish()
    }
}

/// How often a token occurs, and in how many texts.
#[derive(Debug, Default)]
struct Count {
    times: u64,
    texts: u64,
    /// The last text that it was seen in.
    seen: u64,
}

/// How often each token occurs in the texts seen so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    tokens: HashMap<String, Count>,
    texts: u64,
}

impl Counts {
    /// Counts a text's tokens.
    pub(crate) fn add(&mut self, text: &str) {
        self.texts += 1;
        for token in normalize(text).split_whitespace() {
            let count = match self.tokens.get_mut(token) {
                Some(count) => count,
                None => self.tokens.entry(token.to_owned()).or_default(),
            };
            count.times += 1;
            if count.seen != self.texts {
                (count.texts, count.seen) = (count.texts + 1, self.texts);
            }
        }
    }

    /// Leaves out what occurs in fewer texts.
    pub(crate) fn keep_common(&mut self, fewest_texts: u64) {
        self.tokens.retain(|_, count| count.texts >= fewest_texts);
    }

    /// Makes a vocabulary of at most so many entries, the special ones included.
    pub(crate) fn into_vocabulary(self, entries: usize) -> Vocabulary {
        let counted = self.tokens.into_iter();
        let mut counted: Vec<(String, u64)> =
            counted.map(|(token, count)| (token, count.times)).collect();
        counted.sort_unstable_by(|(a, n_a), (b, n_b)| n_b.cmp(n_a).then_with(|| a.cmp(b)));
        counted.truncate(entries.min(MAX_ENTRIES).saturating_sub(SPECIALS.len()));
        let tokens: Vec<&str> = counted.iter().map(|(token, _)| token.as_str()).collect();
        Vocabulary::new(&tokens).expect("tokens are words, and a map holds each once")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(texts: &[&str], entries: usize) -> Vocabulary {
        let mut counts = Counts::default();
        texts.iter().for_each(|text| counts.add(text));
        counts.into_vocabulary(entries)
    }

    #[test]
    fn the_frequent_come_first_then_the_alphabet() {
        let texts = ["Pear apple, apple", "fig pear apple Zeta"];
        let all = counted(&texts, 100);
        assert_eq!(all.tokens(), ["apple", "pear", ",", "fig", "zeta"]);
        assert_eq!(
            (all.id("apple"), all.id("zeta"), all.id("plum"), all.len()),
            (2, 6, 1, 7)
        );
        let few = counted(&texts, 4);
        assert_eq!(
            (few.tokens(), few.len(), few.id(",")),
            (vec!["apple", "pear"], 4, Vocabulary::UNKNOWN)
        );
        let reversed = counted(&[texts[1], texts[0]], 4);
        assert_eq!((few.hash(), &few), (reversed.hash(), &reversed));
        assert_ne!(few.hash(), all.hash());
        assert_eq!(few.hash().len(), 32);
    }

    /// A name that one text repeats is in no list of words that are in two texts at least.
    #[test]
    fn words_of_few_texts_can_be_left_out() {
        let mut counts = Counts::default();
        for text in ["ann ann ann saw it", "it was it", "bob saw"] {
            counts.add(text);
        }
        counts.keep_common(2);
        assert_eq!(counts.into_vocabulary(100).tokens(), ["it", "saw"]);
    }

    #[test]
    fn texts_are_cut_and_filled_up() {
        let vocabulary = counted(&["a a b"], 100);
        let mut places = [9; 4];
        vocabulary.encode("B c a", &mut places);
        assert_eq!(places, [3, 1, 2, 0]);
        vocabulary.encode("a b a b b b", &mut places);
        assert_eq!(places, [2, 3, 2, 3]);
        vocabulary.encode("", &mut places);
        assert_eq!(places, [0; 4]);
    }

    #[test]
    fn files_hold_a_token_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words.txt");
        let read = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            Vocabulary::read(&path).map_err(|error| error.to_string())
        };
        let plain = read(b"the\n.\nzoo\n").unwrap();
        assert_eq!(
            (plain.tokens(), plain.id(".")),
            (vec!["the", ".", "zoo"], 3)
        );
        assert_eq!(read(b"<pad>\n<unk>\nthe\n.\nzoo").unwrap(), plain);
        for (text, line) in [
            (b"a\nb\na\n".as_slice(), 3),
            (b"a\n\nb", 2),
            (b"<pad>\n<unk>\na b", 3),
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.ends_with(&format!("one a line, but line {line} does not fit")),
                "{error}"
            );
        }
        assert!(read(b"a\xff").unwrap_err().ends_with("is no UTF-8 text"));
        assert!(
            read(b"<pad>\n<unk>\n")
                .unwrap_err()
                .ends_with("holds no tokens")
        );
    }
}
