//! Any bytes as the input of the agent: decoded as frames, piece by piece, and each frame as a request.
#![no_main]
#![allow(dead_code)] // only parts of the agent's modules are used here
use guestmark_wire::Request;
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/agent/src/frame.rs"]
mod frame;
#[path = "../../crates/agent/src/sys.rs"]
mod sys;

fuzz_target!(|data: &[u8]| {
    let Some((&piece, mut left)) = data.split_first() else { return };
    let mut decoder = frame::Decoder::new();
    loop {
        let space = decoder.space();
        assert!(!space.is_empty(), "a complete frame was not taken");
        let count = (usize::from(piece) + 1).min(space.len()).min(left.len());
        space[..count].copy_from_slice(&left[..count]);
        decoder.note_received(count);
        left = &left[count..];
        while let Ok(frame) = decoder.next_frame() {
            let Some(frame) = frame else { break };
            if let Ok(request) = rmp_serde::from_slice::<Request<'_>>(frame) {
                let again = rmp_serde::to_vec_named(&request).expect("what was read can be written");
                assert_eq!(rmp_serde::from_slice::<Request<'_>>(&again).expect("and read again"), request);
            }
        }
        if left.is_empty() || decoder.next_frame().is_err() {
            break;
        }
    }
});
