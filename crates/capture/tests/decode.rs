//! The decoder against itself (fast path, general path) and against etherparse, on packets that etherparse builds.

use etherparse::{LaxNetSlice, LaxSlicedPacket, PacketBuilder, TransportSlice};
use guestmark_capture::wire::decode::{decode, decode_fast, decode_general};
use guestmark_capture::wire::link::{self, SkipReason};
use guestmark_capture::wire::packet::{Direction, Family, Packet, Segment};
use proptest::prelude::*;

fn packet(data: &[u8], wire_len: u32) -> Packet<'_> {
    Packet {
        link: link::ETHERNET,
        interface: 0,
        ts: 7,
        data,
        wire_len,
        direction: Direction::Unknown,
    }
}

fn shown(segment: &Segment) -> String {
    format!("{segment:?}")
}

/// What a frame is built from.
#[derive(Clone, Debug)]
struct Spec {
    v6: bool,
    vlan: u8,
    udp: bool,
    src: [u8; 16],
    dst: [u8; 16],
    ports: (u16, u16),
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    mss: Option<u16>,
    payload: usize,
}

fn specs() -> impl Strategy<Value = Spec> {
    let addresses = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<(u16, u16)>());
    let numbers = (
        any::<u32>(),
        any::<u32>(),
        0_u8..32,
        any::<u16>(),
        prop::option::of(any::<u16>()),
        0_usize..1400,
    );
    ((any::<bool>(), 0_u8..3, any::<bool>()), addresses, numbers).prop_map(
        |((v6, vlan, udp), (src, dst, ports), (seq, ack, flags, window, mss, payload))| Spec {
            v6,
            vlan,
            udp,
            src,
            dst,
            ports,
            seq,
            ack,
            flags,
            window,
            mss,
            payload,
        },
    )
}

fn build(spec: &Spec) -> Vec<u8> {
    let payload = vec![0xa5; spec.payload];
    let ethernet = PacketBuilder::ethernet2([1; 6], [2; 6]);
    let four = |a: &[u8; 16]| [a[0], a[1], a[2], a[3]];
    let id = |n: u16| etherparse::VlanId::try_new(n).expect("a small number");
    macro_rules! on {
        ($step:expr) => {{
            let step = $step;
            let ip = if spec.v6 {
                step.ipv6(spec.src, spec.dst, 64)
            } else {
                step.ipv4(four(&spec.src), four(&spec.dst), 64)
            };
            let mut out = Vec::new();
            if spec.udp {
                ip.udp(spec.ports.0, spec.ports.1)
                    .write(&mut out, &payload)
                    .expect("memory");
                return out;
            }
            let mut tcp = ip.tcp(spec.ports.0, spec.ports.1, spec.seq, spec.window);
            if spec.flags & 1 != 0 {
                tcp = tcp.fin();
            }
            if spec.flags & 2 != 0 {
                tcp = tcp.syn();
            }
            if spec.flags & 4 != 0 {
                tcp = tcp.rst();
            }
            if spec.flags & 8 != 0 {
                tcp = tcp.psh();
            }
            if spec.flags & 16 != 0 {
                tcp = tcp.ack(spec.ack);
            }
            if let Some(mss) = spec.mss {
                use etherparse::TcpOptionElement::{MaximumSegmentSize, Noop};
                tcp = tcp
                    .options(&[Noop, MaximumSegmentSize(mss)])
                    .expect("they fit");
            }
            tcp.write(&mut out, &payload).expect("memory");
            out
        }};
    }
    match spec.vlan {
        0 => on!(ethernet),
        1 => on!(ethernet.single_vlan(id(5))),
        _ => on!(ethernet.double_vlan(id(5), id(6))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whichever path decodes a frame, the result is what the frame was built from.
    #[test]
    fn decodes_what_etherparse_builds(spec in specs()) {
        let frame = build(&spec);
        let packet = packet(&frame, frame.len() as u32);
        let segment = decode_general(&packet).expect("a good frame");
        prop_assert_eq!(segment.payload as usize, spec.payload);
        let sent_by = usize::from(segment.from);
        prop_assert_eq!((segment.key.port[sent_by], segment.key.port[1 - sent_by]), spec.ports);
        prop_assert_eq!(segment.key.family, if spec.v6 { Family::V6 } else { Family::V4 });
        let words = |a: [u8; 16]| if spec.v6 {
            let whole = u128::from_be_bytes(a);
            [(whole >> 64) as u64, whole as u64]
        } else {
            [u64::from(u32::from_be_bytes([a[0], a[1], a[2], a[3]])), 0]
        };
        prop_assert_eq!((segment.key.addr[sent_by], segment.key.addr[1 - sent_by]), (words(spec.src), words(spec.dst)));
        if !spec.udp {
            prop_assert_eq!((segment.seq, segment.window, segment.flags), (spec.seq, spec.window, spec.flags));
            let announced = if spec.flags & 2 != 0 { spec.mss.unwrap_or(0) } else { 0 };
            prop_assert_eq!(segment.options.mss, announced);
        }
    }

    /// Whatever the fast path accepts, the general path decodes to the same segment.
    #[test]
    fn the_fast_path_is_the_general_path(spec in specs(), cut in 0_usize..1600, at in 0_usize..60, with: u8, more in 0_u32..3000) {
        let mut frame = build(&spec);
        let at = at.min(frame.len() - 1);
        frame[at] = with;
        let wire = frame.len() as u32 + more.saturating_sub(2900);
        let packet = packet(&frame[..cut.min(frame.len())], wire);
        let quick = decode_fast(&packet);
        if let Some(segment) = &quick {
            prop_assert_eq!(shown(segment), shown(&decode_general(&packet).expect("fast took it")));
        }
        prop_assert_eq!(decode(&packet).map(|s| shown(&s)), decode_general(&packet).map(|s| shown(&s)));
    }

    /// Frames that are cut and damaged anywhere yield the same ports and flags as etherparse's lax slices, or nothing.
    #[test]
    fn agrees_with_etherparse_on_damaged_frames(spec in specs(), cut in 14_usize..1600, at in 12_usize..60, with: u8) {
        let mut frame = build(&spec);
        let at = at.min(frame.len() - 1);
        frame[at] = with;
        let data = &frame[..cut.min(frame.len())];
        let (Ok(ours), Ok(theirs)) = (decode_general(&packet(data, frame.len() as u32)), LaxSlicedPacket::from_ethernet(data)) else {
            return Ok(());
        };
        // Damage may turn the frame into a tunnel, which etherparse does not decode.
        prop_assume!(ours.tunnels == 0);
        let sent_by = usize::from(ours.from);
        let ports = (ours.key.port[sent_by], ours.key.port[1 - sent_by]);
        match theirs.transport {
            Some(TransportSlice::Tcp(tcp)) => {
                prop_assert_eq!(ports, (tcp.source_port(), tcp.destination_port()));
                prop_assert_eq!((ours.seq, ours.window), (tcp.sequence_number(), tcp.window_size()));
            }
            Some(TransportSlice::Udp(udp)) => prop_assert_eq!(ports, (udp.source_port(), udp.destination_port())),
            _ => {}
        }
        if let Some(LaxNetSlice::Ipv4(ip)) = theirs.net {
            let word = u64::from(u32::from_be_bytes(ip.header().source()));
            prop_assert_eq!(ours.key.addr[sent_by], [word, 0]);
        }
    }

    /// Noise never panics.
    #[test]
    fn noise_is_no_matter(data in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u16..300, wire in any::<u32>()) {
        let _ = decode(&Packet { link: kind, interface: 0, ts: 0, data: &data, wire_len: wire.max(data.len() as u32), direction: Direction::Unknown });
    }
}

#[test]
fn later_fragments_have_no_ports() {
    let mut frame = build(&Spec {
        v6: false,
        vlan: 0,
        udp: false,
        src: [1; 16],
        dst: [2; 16],
        ports: (1, 2),
        seq: 0,
        ack: 0,
        flags: 16,
        window: 1,
        mss: None,
        payload: 9,
    });
    frame[21] = 5;
    assert_eq!(
        decode(&packet(&frame, frame.len() as u32)).err(),
        Some(SkipReason::Fragment)
    );
}
