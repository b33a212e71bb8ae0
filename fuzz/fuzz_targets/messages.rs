//! Any messages over few connections, in any order and cut anywhere: HTTP/1 requests, TLS handshakes, and messages of
//! the supported protocols over UDP.
#![no_main]
use guestmark_capture::application::datagrams::Datagrams;
use guestmark_capture::wire::packet::{flag, Direction, Family, FlowKey, Options, Segment, TCP, UDP};
use guestmark_capture::application::requests::Requests;
use guestmark_capture::application::served::Served;
use libfuzzer_sys::fuzz_target;

/// Server ports by which the supported protocols over UDP are recognised.
const PORTS: [u16; 4] = [53, 67, 69, 443];

/// Checks the properties that must hold for every capture.
fn check(all: &[Served]) {
    for served in all {
        assert_eq!(served.first_byte.count + served.unanswered, served.count);
        assert!(served.last_byte.count <= served.first_byte.count);
        assert!(served.failed <= served.count);
        assert!(served.longest.len() <= 16);
        for request in &served.longest {
            assert_eq!(request.first_byte_s.is_some(), request.answer_frames.is_some());
            assert!(request.last_byte_s.is_none() || request.first_byte_s <= request.last_byte_s);
            assert!(request.name.chars().count() <= 4 * 120);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let (mut requests, mut datagrams) = (Requests::default(), Datagrams::default());
    let (mut next, mut ts, mut frame, mut rest) = ([[100_u32; 2]; 4], 0_i64, 0, data);
    // Each segment begins with four bytes: its kind, its distance from the expected position, its length and its
    // captured length. Its payload follows.
    while let [kind, place, length, cut, more @ ..] = rest {
        let payload = &more[..usize::from(*length).min(more.len())];
        rest = &more[payload.len()..];
        let (from, flow) = (usize::from(kind & 1), usize::from(kind >> 1 & 3));
        let protocol = if kind & 8 == 0 { TCP } else { UDP };
        let server = if protocol == TCP { 80 } else { PORTS[flow] };
        let ends = [([1, 0], 4000 + flow as u16), ([2, 0], server)];
        let (key, from_end) = FlowKey::new(Family::V4, protocol, ends[from], ends[1 - from]);
        let seq = next[flow][from].wrapping_add(*place as i8 as u32);
        let wire = payload.len() as u32 + if *cut > 250 { u32::from(*cut) << 8 } else { 0 };
        let flags = [flag::ACK, flag::ACK | flag::FIN, flag::SYN, flag::RST][usize::from(kind >> 4 & 3)];
        let acknowledged = if kind & 0x40 == 0 { next[flow][1 - from] } else { next[flow][1 - from].wrapping_add(u32::from(*cut)) };
        if *place == 0 {
            next[flow][from] = seq.wrapping_add(wire);
        }
        ts += i64::from(*cut) * 1000;
        frame += 1;
        let mut segment = Segment {
            key,
            from: from_end,
            flags: if protocol == TCP { flags } else { 0 },
            options: Options::default(),
            direction: Direction::Unknown,
            frame,
            seq_known: kind & 0x80 == 0,
            ts,
            wire_len: wire,
            payload: wire,
            seq,
            ack: acknowledged,
            ..Segment::EMPTY
        };
        if protocol == TCP {
            requests.process(&segment, payload);
        } else {
            datagrams.process(&mut segment, payload, |name| Some(name.len() as u64));
        }
    }
    check(&requests.finish());
    let (exchanges, names) = datagrams.finish();
    check(&names);
    assert!(exchanges.iter().all(|exchange| exchange.duration_s >= 0.0 && exchange.messages.len() <= 16));
    serde_json::to_vec(&(exchanges, names)).expect("memory can be written");
});
