//! Lets a machine be saved, and makes each machine that continues from the saved one a different one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

use crate::channel::Channel;
use crate::sys;

/// Bytes that are sent to a clone of a saved machine: the time, and random ones that only its controller knows.
const RENEWAL: usize = 8 + ENTROPY;
const ENTROPY: usize = 32;

/// Says on the channel, by one byte, that the machine may be saved, and waits for the renewal there: nanoseconds since
/// 1970 as a little-endian `u64`, then 32 random bytes. Answers with one byte when the clock has been set and the
/// kernel's random generator reseeded.
///
/// If the time is 0, neither is done. Such a machine is a control: the check that clones differ has to fail for it.
pub fn await_renewal(channel: &Channel) -> io::Result<()> {
    let mut input = File::from(channel.input.try_clone()?);
    let mut output = File::from(channel.output.try_clone()?);
    output.write_all(&[0])?;
    let mut renewal = [0; RENEWAL];
    input.read_exact(&mut renewal)?;
    let (now, entropy) = renewal.split_at(8);
    let now = u64::from_le_bytes(now.try_into().map_err(io::Error::other)?);
    if now != 0 {
        rustix::time::clock_settime(
            rustix::time::ClockId::Realtime,
            rustix::time::Timespec {
                tv_sec: (now / 1_000_000_000) as i64,
                tv_nsec: (now % 1_000_000_000) as _,
            },
        )?;
        reseed(entropy.try_into().map_err(io::Error::other)?)?;
    }
    output.write_all(&[0])
}

/// Mixes bytes into the kernel's random generator, credited as random, and makes it draw a new key at once: otherwise
/// it would produce the same bytes as in every other clone.
fn reseed(entropy: [u8; ENTROPY]) -> io::Result<()> {
    /// `RNDADDENTROPY` of `linux/random.h`.
    const ADD_ENTROPY: rustix::ioctl::Opcode =
        rustix::ioctl::opcode::write::<[libc::c_int; 2]>(b'R', 3);
    /// `RNDRESEEDCRNG`.
    const RESEED: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(b'R', 7);
    /// `struct rand_pool_info` of `linux/random.h`.
    #[repr(C)]
    struct Pool {
        bits: libc::c_int,
        size: libc::c_int,
        bytes: [u8; ENTROPY],
    }
    let pool = Pool {
        bits: (ENTROPY * 8) as libc::c_int,
        size: ENTROPY as libc::c_int,
        bytes: entropy,
    };
    let random = File::options().write(true).open("/dev/urandom")?;
    let descriptor = random.as_raw_fd();
    // SAFETY: the pool outlives the call and has the size that it says; the second request has no argument.
    let refused = unsafe {
        libc::ioctl(
            descriptor,
            libc::c_ulong::from(ADD_ENTROPY),
            &raw const pool,
        ) != 0
            || libc::ioctl(descriptor, libc::c_ulong::from(RESEED)) != 0
    };
    if refused {
        return Err(sys::add_context(
            "/dev/urandom",
            &io::Error::last_os_error(),
        ));
    }
    Ok(())
}
