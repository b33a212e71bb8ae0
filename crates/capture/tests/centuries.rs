//! Clocks that are set during a capture: connections of any length that a file can express are analysed without an
//! overflow, and the parts of their time add up to the whole.

use guestmark_capture::engine::analysis::Analysis;
use guestmark_capture::results::summary::ConnectionSummary;
use guestmark_capture::wire::input::Source;
use guestmark_capture::wire::services::Services;
use proptest::prelude::*;
use std::io::Cursor;

/// Time, end, place of the first byte, flags, payload.
type Sent = (u32, bool, u8, u8, u8);

fn capture(all: &[Sent]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for &(seconds, client, place, flags, payload) in all {
        let length = 54 + u32::from(payload);
        for word in [seconds, 0, length, length] {
            file.extend(word.to_le_bytes());
        }
        let (a, b) = ([10, 0, 0, 1, 0x30, 0], [10, 0, 0, 2, 0, 80]);
        let (from, to) = if client { (a, b) } else { (b, a) };
        file.extend([0; 12]);
        file.extend([8, 0, 0x45, 0, 0, 40 + payload, 0, 1, 0, 0, 64, 6, 0, 0]);
        file.extend(&from[..4]);
        file.extend(&to[..4]);
        file.extend(&from[4..]);
        file.extend(&to[4..]);
        file.extend([0, 0, 0, place, 0, 0, 0, place, 0x50, 0x10 | flags & 0x1f]);
        file.extend([16, 0, 0, 0, 0, 0]);
        file.extend(vec![b'x'; payload.into()]);
    }
    file
}

proptest! {
    #[test]
    fn any_time_can_pass_between_packets(
        all in prop::collection::vec((any::<u32>(), any::<bool>(), 0..200_u8, any::<u8>(), 0..60_u8), 1..40),
        ascending: bool,
    ) {
        let mut all = all;
        if ascending {
            all.sort_by_key(|sent| sent.0);
        }
        let mut output = |summary: &ConnectionSummary| {
            let parts = summary.causes.parts();
            let sum: f64 = parts.iter().filter_map(|(_, part)| *part).sum();
            let close = (sum - summary.duration_s).abs() <= 1e-6 * summary.duration_s.max(1.0);
            assert!(close || parts[0].1.is_none(), "{sum} of {}", summary.duration_s);
        };
        let mut analysis = Analysis::new(1 << 20, None, &mut output).with_longest_waits().with_requests();
        let mut source = Source::new(Box::new(Cursor::new(capture(&all)))).expect("a source");
        let (_, result) = analysis.read(&mut source, &Services::parse(""));
        prop_assert!(result.is_ok());
        let _ = analysis.end();
    }
}
