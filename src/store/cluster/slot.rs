//! Which hash slot a key is in.

/// How many there are.
pub(super) const SLOTS: usize = 16_384;

/// CRC-16/XMODEM of each byte.
static TABLE: [u16; 256] = table();

/// The slot of a key: Redis hashes what is between the first `{` and the first `}` after it, or the
/// whole key if that is empty or not there.
pub(super) fn slot_of(key: &str) -> usize {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    usize::from(crc16(tag.unwrap_or(key).as_bytes())) % SLOTS
}

/// A hash tag whose slot that is.
pub(super) fn tag_of(slot: usize) -> String {
    // Every slot has a number with few digits.
    let mut tags = (0_u32..).map(|number| number.to_string());
    tags.find(|tag| slot_of(tag) == slot).unwrap_or_default()
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let [high, _] = crc.to_be_bytes();
        (crc << 8) ^ TABLE[usize::from(high ^ byte)]
    })
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    let mut start = 0_u16;
    while byte < 256 {
        let mut crc = start << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
        start += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn every_slot_has_a_short_hash_tag() {
        let slots: HashSet<usize> = (0..200_000).map(|tag| slot_of(&tag.to_string())).collect();
        assert_eq!(slots.len(), SLOTS);
        for slot in [0, 5461, SLOTS - 1] {
            assert_eq!(slot_of(&format!("key:{{{}}}", tag_of(slot))), slot);
        }
    }

    /// What `CLUSTER KEYSLOT` says.
    #[test]
    fn only_a_hash_tag_counts_where_there_is_one() {
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of("bar{foo}"), 12_182);
        assert_eq!(slot_of("{foo}{bar}"), 12_182);
        assert_eq!(slot_of("foo{}{bar}"), 8363);
        assert_eq!(slot_of("foo{{bar}}zap"), slot_of("{bar"));
        assert_eq!(slot_of("a{b"), slot_of("{a{b}"));
    }
}
