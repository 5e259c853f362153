//! The wire format of Protocol Buffers, as far as it is written: <https://protobuf.dev/programming-guides/encoding/>.

/// A message that is being written.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn bytes(&mut self, field: u64, content: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(content.len() as u64);
        self.0.extend_from_slice(content);
    }

    pub(crate) fn text(&mut self, field: u64, content: &str) {
        self.bytes(field, content.as_bytes());
    }

    pub(crate) fn message(&mut self, field: u64, content: &Self) {
        self.bytes(field, &content.0);
    }

    pub(crate) fn int(&mut self, field: u64, value: i64) {
        self.varint(field << 3);
        self.varint(value.cast_unsigned());
    }

    pub(crate) fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
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

    /// Field 1 is 150 and field 2 is "testing" in the encoding guide; -1 is ten bytes, 25.0 is 0x41c80000.
    #[test]
    fn writes_the_examples_of_the_format() {
        let mut message = Message::default();
        message.int(1, 150);
        message.text(2, "testing");
        message.float(5, 25.0);
        message.int(1, -1);
        let mut expected = vec![0x08, 0x96, 0x01, 0x12, 0x07];
        expected.extend(b"testing");
        expected.extend([0x2d, 0x00, 0x00, 0xc8, 0x41]);
        expected.push(0x08);
        expected.extend([0xff; 9]);
        expected.push(0x01);
        assert_eq!(message.finish(), expected);
    }
}
