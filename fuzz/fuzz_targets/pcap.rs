//! Any bytes as a classic capture file: the magic number is prepended, so that every input passes its check.
#![no_main]
use libfuzzer_sys::fuzz_target;

#[path = "common.rs"]
mod common;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    let magics: [&[u8]; 5] =
        [&[0xd4, 0xc3, 0xb2, 0xa1], &[0xa1, 0xb2, 0xc3, 0xd4], &[0x4d, 0x3c, 0xb2, 0xa1], &[0xa1, 0xb2, 0x3c, 0x4d], &[]];
    common::analyse(&[magics[usize::from(kind) % magics.len()], rest].concat());
});
