//! The wire format of Protocol Buffers: fields of a message, as borrowed bytes.
//!
//! Nothing is allocated and nothing recurses, so the size of a file bounds the work. Groups, which nobody has written
//! since 2008, are refused. The encoding is that of <https://protobuf.dev/programming-guides/encoding/>.

use crate::limits;

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Content<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Field<'a> {
    pub(crate) number: u64,
    pub(crate) content: Content<'a>,
}

/// Tells why bytes are no message of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end within a field.
    #[error("it ends in the middle of a field")]
    Truncated,
    /// A field is not written as the format of ONNX says.
    #[error("it is not written as the format says")]
    Form,
}

impl<'a> Field<'a> {
    pub(crate) fn bytes(&self) -> Result<&'a [u8], WireError> {
        match self.content {
            Content::Bytes(bytes) => Ok(bytes),
            _ => Err(WireError::Form),
        }
    }

    pub(crate) fn text(&self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| WireError::Form)
    }

    /// Returns an integer; the format writes negative ones as their two's complement.
    pub(crate) fn int(&self) -> Result<i64, WireError> {
        match self.content {
            Content::Varint(value) => Ok(value.cast_signed()),
            _ => Err(WireError::Form),
        }
    }

    pub(crate) fn float(&self) -> Result<f32, WireError> {
        match self.content {
            Content::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(WireError::Form),
        }
    }

    /// Appends integers, which may be written one by one or packed; at most [`limits::INTS`] together.
    pub(crate) fn ints(&self, into: &mut Vec<i64>) -> Result<(), WireError> {
        let Content::Bytes(mut rest) = self.content else {
            into.push(self.int()?);
            return Ok(());
        };
        while !rest.is_empty() {
            if into.len() == limits::INTS {
                return Err(WireError::Form);
            }
            into.push(varint(&mut rest)?.cast_signed());
        }
        Ok(())
    }
}

/// The fields of a message, in order.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn read(&mut self) -> Result<Field<'a>, WireError> {
        let tag = varint(&mut self.rest)?;
        let content = match tag & 7 {
            0 => Content::Varint(varint(&mut self.rest)?),
            1 => Content::Fixed64(array(&mut self.rest)?),
            2 => {
                let length = varint(&mut self.rest)?;
                let length = usize::try_from(length).map_err(|_| WireError::Truncated)?;
                Content::Bytes(take(&mut self.rest, length)?)
            }
            5 => Content::Fixed32(array(&mut self.rest)?),
            _ => return Err(WireError::Form),
        };
        let number = tag >> 3;
        Ok(Field { number, content })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], WireError> {
    let (taken, left) = rest.split_at_checked(length).ok_or(WireError::Truncated)?;
    *rest = left;
    Ok(taken)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], WireError> {
    let (taken, left) = rest.split_first_chunk().ok_or(WireError::Truncated)?;
    *rest = left;
    Ok(*taken)
}

fn varint(rest: &mut &[u8]) -> Result<u64, WireError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = array(rest)?;
        if shift == 63 && byte > 1 {
            return Err(WireError::Form);
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(WireError::Form)
}

/// A message that is being written.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(crate) fn bytes(&mut self, number: u64, content: &[u8]) {
        self.varint(number << 3 | 2);
        self.varint(content.len() as u64);
        self.0.extend_from_slice(content);
    }

    pub(crate) fn text(&mut self, number: u64, content: &str) {
        self.bytes(number, content.as_bytes());
    }

    pub(crate) fn message(&mut self, number: u64, content: &Message) {
        self.bytes(number, &content.0);
    }

    pub(crate) fn int(&mut self, number: u64, value: i64) {
        self.varint(number << 3);
        self.varint(value.cast_unsigned());
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_examples_of_the_format() {
        // From the encoding guide: field 1 is 150; field 2 is "testing".
        let message = [
            0x08, 0x96, 0x01, 0x12, 0x07, b't', b'e', b's', b't', b'i', b'n', b'g',
        ];
        let fields: Result<Vec<Field>, WireError> = Fields::of(&message).collect();
        let fields = fields.unwrap();
        assert_eq!(fields[0].int(), Ok(150));
        assert_eq!((fields[1].number, fields[1].text()), (2, Ok("testing")));
    }

    #[test]
    fn reads_what_it_wrote() {
        let mut message = Message::default();
        message.int(1, -1);
        message.text(19, "name");
        let bytes = message.finish();
        let fields: Vec<Field> = Fields::of(&bytes).map(Result::unwrap).collect();
        assert_eq!(fields[0].int(), Ok(-1));
        assert_eq!((fields[1].number, fields[1].text()), (19, Ok("name")));
    }

    #[test]
    fn refuses_lengths_beyond_the_end_groups_and_endless_numbers() {
        for (bytes, expected) in [
            (vec![0x12, 0x07, b't'], WireError::Truncated),
            (vec![0x0b], WireError::Form),
            (vec![0xff; 11], WireError::Form),
            (vec![0x0d, 0, 0], WireError::Truncated),
        ] {
            let first = Fields::of(&bytes).next();
            assert_eq!(first, Some(Err(expected)), "{bytes:?}");
        }
    }
}
