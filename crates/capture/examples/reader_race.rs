//! Shows why the capture formats are read by our own code: packets per second of our reader and of pcap-parser.
//!
//! `cargo run --release -p guestmark-capture --example reader_race FILE.pcap`

use guestmark_capture::wire::input::Source;
use guestmark_capture::wire::packet::{Packet, PacketSink};
use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{LegacyPcapReader, PcapBlockOwned, PcapError};
use std::fs::File;
use std::time::Instant;

struct Count(u64, u64);

impl PacketSink for Count {
    fn packet(&mut self, packet: &Packet<'_>) {
        self.0 += 1;
        self.1 += packet.data.len() as u64;
    }
    fn dropped(&mut self, _: u64) {}
}

fn ours(path: &str) -> (u64, u64) {
    let mut count = Count(0, 0);
    let mut source = Source::open(path).expect("a readable file");
    guestmark_capture::wire::pcap::read(&mut source, &mut count).expect("a whole capture");
    (count.0, count.1)
}

fn theirs(path: &str) -> (u64, u64) {
    let mut reader = LegacyPcapReader::new(256 * 1024, File::open(path).expect("a readable file"))
        .expect("a capture");
    let (mut packets, mut bytes) = (0, 0);
    loop {
        match reader.next() {
            Ok((offset, block)) => {
                if let PcapBlockOwned::Legacy(packet) = block {
                    packets += 1;
                    bytes += packet.data.len() as u64;
                }
                reader.consume(offset);
            }
            Err(PcapError::Incomplete(_)) => reader.refill().expect("more bytes"),
            Err(PcapError::Eof) => return (packets, bytes),
            Err(e) => panic!("{e}"),
        }
    }
}

type Reader = fn(&str) -> (u64, u64);

fn main() {
    let path = std::env::args().nth(1).expect("which capture file?");
    for _ in 0..3 {
        for (name, read) in [("ours", ours as Reader), ("pcap-parser", theirs as Reader)] {
            let start = Instant::now();
            let (packets, bytes) = read(&path);
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{name:12} {:6.1} M packets/s {:6.2} GB/s",
                packets as f64 / seconds / 1e6,
                bytes as f64 / seconds / 1e9
            );
        }
    }
}
