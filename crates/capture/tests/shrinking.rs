//! A capture file that becomes shorter while it is read is an error, and everything before that point is counted.

use guestmark_capture::engine::analysis::Analysis;
use guestmark_capture::results::summary::ConnectionSummary;
use guestmark_capture::wire::input::Source;
use guestmark_capture::wire::packet::{Packet, PacketSink};
use guestmark_capture::wire::pcap;
use guestmark_capture::wire::pcapng;
use guestmark_capture::wire::services::Services;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

const SIZE: usize = 1000;
const COUNT: usize = 4000;

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn scratch(name: &str, bytes: &[u8]) -> Scratch {
    let path = std::env::temp_dir().join(format!("guestmark-{name}-{}", std::process::id()));
    fs::write(&path, bytes).expect("scratch file");
    Scratch(path)
}

fn classic() -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for _ in 0..COUNT {
        for word in [1, 0, SIZE as u32, SIZE as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0xaa; SIZE]);
    }
    file
}

fn next_generation() -> Vec<u8> {
    let mut file = Vec::new();
    for word in [
        0x0a0d_0d0a_u32,
        28,
        0x1a2b_3c4d,
        1,
        u32::MAX,
        u32::MAX,
        28,
        1,
        20,
        1,
        0,
        20,
    ] {
        file.extend(word.to_le_bytes());
    }
    let length = 32 + SIZE as u32;
    for _ in 0..COUNT {
        for word in [6, length, 0, 0, 0, SIZE as u32, SIZE as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0xaa; SIZE]);
        file.extend(length.to_le_bytes());
    }
    file
}

/// Truncates the file after some packets.
struct Cutter<'f> {
    file: &'f File,
    to: u64,
    packets: usize,
}

impl PacketSink for Cutter<'_> {
    fn packet(&mut self, packet: &Packet<'_>) {
        assert_eq!(
            packet.data.len(),
            SIZE,
            "packet {} does not exist",
            self.packets
        );
        self.packets += 1;
        if self.packets == 10 {
            self.file.set_len(self.to).expect("cut");
        }
    }

    fn dropped(&mut self, _: u64) {}
}

/// Reads `bytes` as a file that is truncated to `to` bytes meanwhile; returns the number of packets and the error.
fn cut(name: &str, bytes: &[u8], to: u64) -> (usize, String) {
    let scratch = scratch(name, bytes);
    let file = File::options().write(true).open(&scratch.0).expect("open");
    let mut source = Source::open(scratch.0.to_str().expect("a path")).expect("source");
    let mut cutter = Cutter {
        file: &file,
        to,
        packets: 0,
    };
    let result = if name == "classic" {
        pcap::read(&mut source, &mut cutter)
    } else {
        pcapng::read(&mut source, &mut cutter)
    };
    (cutter.packets, result.expect_err("a cut file").reason)
}

#[test]
fn a_file_cut_while_it_is_read_is_an_error() {
    // In the middle of a record, and where one ends.
    for to in [500_000, 24 + 490 * (16 + SIZE)] {
        let (packets, reason) = cut("classic", &classic(), to as u64);
        assert_eq!(packets, (to - 24) / (16 + SIZE));
        assert!(reason.contains("became shorter"), "{reason}");
    }
    for to in [500_000, 48 + 480 * (32 + SIZE)] {
        let (packets, reason) = cut("next", &next_generation(), to as u64);
        assert_eq!(packets, (to - 48) / (32 + SIZE));
        assert!(reason.contains("became shorter"), "{reason}");
    }
}

#[test]
fn the_analysis_counts_what_was_there_and_says_so() {
    for (name, bytes) in [("said", classic()), ("said-next", next_generation())] {
        let scratch = scratch(name, &bytes);
        let mut output = |_: &ConnectionSummary| ();
        let mut analysis = Analysis::new(1 << 20, None, &mut output);
        let mut source = Source::open(scratch.0.to_str().expect("a path")).expect("source");
        let file = File::options().write(true).open(&scratch.0).expect("open");
        file.set_len(500_000).expect("cut");
        let (_, result) = analysis.read(&mut source, &Services::parse(""));
        let reason = result.expect_err("a cut file").reason;
        assert!(reason.contains("became shorter"), "{reason}");
        let packets = analysis.end().truth.packets;
        assert!((470..=493).contains(&packets), "{packets}");
    }
}

#[test]
fn a_growing_file_is_read_to_its_end() {
    let scratch = scratch("growing", &classic());
    let mut output = |_: &ConnectionSummary| ();
    let mut analysis = Analysis::new(1 << 20, None, &mut output);
    let mut source = Source::open(scratch.0.to_str().expect("a path")).expect("source");
    let mut file = File::options().append(true).open(&scratch.0).expect("open");
    file.write_all(&classic()[24..]).expect("grow");
    let (_, result) = analysis.read(&mut source, &Services::parse(""));
    assert!(result.is_ok());
    assert_eq!(analysis.end().truth.packets, 2 * COUNT as u64);
}
