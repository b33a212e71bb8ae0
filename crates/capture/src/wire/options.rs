//! Parse the options of a TCP header.

use crate::wire::packet::Options;

/// Return the options of a segment that acknowledges up to `ack`.
pub(crate) fn parse_options(mut rest: &[u8], ack: u32, is_syn: bool) -> Options {
    let word = |bytes: &[u8]| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut found = Options::default();
    loop {
        match rest {
            [1, after @ ..] => {
                rest = after;
                continue;
            }
            [2, 4, high, low, ..] if is_syn && found.mss == 0 => {
                found.mss = u16::from_be_bytes([*high, *low]);
            }
            [3, 3, scale, ..] if is_syn => found.scale = Some((*scale).min(14)),
            [4, 2, ..] if is_syn => found.sack_permitted = true,
            [5, length, blocks @ ..] => {
                let length = usize::from(*length).saturating_sub(2).min(blocks.len());
                let beyond = |edge: u32| edge.wrapping_sub(ack) as i32;
                let edges = |block: &[u8]| (beyond(word(block)), beyond(word(&block[4..])));
                let mut all = blocks[..length].chunks_exact(8).map(edges);
                if let Some(first) = all.next() {
                    let inside = |second: (i32, i32)| second.0 <= first.0 && first.1 <= second.1;
                    let twice = first.1 <= 0 || all.next().is_some_and(inside);
                    found.twice = twice.then(|| ack.wrapping_add_signed(first.0));
                }
                for block in blocks[..length].chunks_exact(8) {
                    let right = word(&block[4..]);
                    if found
                        .sacked
                        .is_none_or(|known| beyond(right) > beyond(known))
                    {
                        found.sacked = Some(right);
                    }
                }
            }
            [8, 10, stamps @ ..] if stamps.len() >= 8 => {
                found.stamps = Some((word(stamps), word(&stamps[4..])));
            }
            _ => {}
        }
        match rest {
            [kind, length, ..] if *kind != 0 && *length >= 2 => {
                rest = rest.get(usize::from(*length)..).unwrap_or(&[]);
            }
            _ => return found,
        }
    }
}
