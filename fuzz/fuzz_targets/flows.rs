//! Any sequence of segments over few addresses and ports: the flow tracker, its eviction and its sequence space.
#![no_main]
use guestmark_capture::connection::conn::Conn;
use guestmark_capture::wire::message::Message;
use guestmark_capture::wire::packet::{Direction, Family, FlowKey, Options, Segment, TCP, UDP};
use guestmark_capture::results::summary::ConnectionSummary;
use guestmark_capture::engine::tracker::{ConnSink, Tracker};
use libfuzzer_sys::fuzz_target;

#[path = "common.rs"]
mod common;

struct Count(u64);

impl ConnSink for Count {
    fn finished(&mut self, _: &Conn, client: usize, summary: ConnectionSummary) {
        assert!(client < 2);
        common::check(&summary);
        self.0 += summary.packets() + u64::from(summary.client.copies) + u64::from(summary.server.copies);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut tracker = Tracker::new(1);
    let mut count = Count(0);
    let mut ts = 0_i64;
    let mut total = 0;
    let mut batch = Vec::new();
    for bytes in data.chunks_exact(16) {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let protocol = if bytes[0] & 0x80 == 0 { TCP } else { UDP };
        let (src, dst) = ([u64::from(bytes[0] & 7), 0], [u64::from(bytes[1] & 7), 0]);
        let (key, from) = FlowKey::new(Family::V4, protocol, (src, u16::from(bytes[0] >> 3)), (dst, u16::from(bytes[1] >> 3)));
        ts = ts.saturating_add(i64::from(word(4) as i32) * 1000);
        batch.push(Segment {
            key,
            from,
            flags: bytes[2],
            window: u16::from(bytes[3]),
            id: word(8) as u16,
            checksum: word(4) as u16,
            options: Options { mss: u16::from(bytes[3]) * 16, sacked: (bytes[2] & 64 != 0).then(|| word(8)), stamps: Some((word(4), word(8))), ..Options::default() },
            tunnels: 0,
            direction: Direction::Unknown,
            frame: 0,
            seq_known: bytes[3] != 1,
            ts,
            wire_len: word(12) & 0xffff,
            payload: word(12) >> 16,
            payload_at: 0,
            message: Message::from_word(word(8).rotate_left(u32::from(bytes[3]))),
            interface: 0,
            seq: word(8),
            ack: word(8) ^ word(12),
        });
        total += 1;
        if batch.len() == 32 {
            tracker.take(&batch, &mut count);
            batch.clear();
        }
    }
    tracker.take(&batch, &mut count);
    tracker.finish(&mut count);
    assert_eq!(count.0, total);
});
