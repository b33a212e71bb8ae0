//! A capture yields the same results however often it is analysed, although the hash of connections has a random key.

use guestmark_capture::engine::analysis::Analysis;
use guestmark_capture::results::summary::ConnectionSummary;
use guestmark_capture::wire::input::Source;
use guestmark_capture::wire::services::Services;
use std::io::Cursor;

const CONNECTIONS: u32 = 900;

/// Segments of many connections, each of which is captured again after about as many others as are remembered.
fn twice() -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for round in 0..20_u32 {
        for copy in 0..2 {
            for number in 0..CONNECTIONS {
                let micros = (round * 2 + copy) * 5000 + number;
                for word in [1 + micros / 1_000_000, micros % 1_000_000, 64, 64] {
                    file.extend(word.to_le_bytes());
                }
                let (port, seq) = (10_000 + number as u16, round * 10);
                file.extend([0; 12]);
                file.extend([8, 0, 0x45, 0, 0, 50, 0, 1 + round as u8, 0, 0, 64, 6, 0, 0]);
                file.extend([10, 0, 0, 1, 10, 0, 0, 2]);
                file.extend(port.to_be_bytes());
                file.extend([0, 80]);
                file.extend(seq.to_be_bytes());
                file.extend([0, 0, 0, 1, 0x50, 0x18, 16, 0, 0, 0, 0, 0]);
                file.extend([b'x'; 10]);
            }
        }
    }
    file
}

fn told(capture: &[u8]) -> (u64, Vec<String>) {
    let mut connections = Vec::new();
    let mut output = |summary: &ConnectionSummary| connections.push(format!("{summary:?}"));
    let mut analysis = Analysis::new(1 << 30, None, &mut output);
    let mut source = Source::new(Box::new(Cursor::new(capture.to_vec()))).expect("a source");
    let (_, result) = analysis.read(&mut source, &Services::parse(""));
    result.expect("a whole capture");
    let copies = analysis.end().truth.copies;
    (copies, connections)
}

#[test]
fn what_is_told_does_not_depend_on_chance() {
    let capture = twice();
    let first = told(&capture);
    assert!(first.0 > 0, "no copy is known");
    assert!(
        first.0 < u64::from(CONNECTIONS) * 20,
        "nothing is forgotten"
    );
    for _ in 0..3 {
        assert!(told(&capture) == first);
    }
}
