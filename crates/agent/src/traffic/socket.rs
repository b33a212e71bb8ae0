//! Wraps sockets for the tests: frames, a limit on each wait, and the kernel's statistics of a connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use guestmark_wire::traffic::SenderTcpInfo;
use rustix::time::ClockId;
use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::endpoint::Endpoint;
use crate::sys;

/// Maximum wait for the other end; after that it must have died, or its network must have failed. A guest inside an
/// emulated guest is silent for ten seconds now and then if others use the processors.
pub const SILENCE: Duration = Duration::from_secs(20);
/// Maximum length of a frame on a connection.
const LONGEST_FRAME: usize = 4096;

/// Connects to the server.
pub fn connect(to: Endpoint) -> io::Result<TcpStream> {
    let stream = to
        .connect(Some(SILENCE))
        .map_err(|error| io::Error::new(error.kind(), format!("connect to {to}: {error}")))?;
    limit_waits(&stream)?;
    Ok(stream)
}

/// Limits the wait of each read and write.
pub fn limit_waits(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))
}

/// Removes that limit.
pub fn wait_without_limit(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)
}

/// Makes each write leave at once, in place of waiting for more data to send as TCP does; other sockets never wait.
pub fn send_at_once(stream: &TcpStream) -> io::Result<()> {
    match stream.set_nodelay(true) {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Makes the error for a wait that exceeded its limit.
pub fn make_silence_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the other end was silent for {} s", SILENCE.as_secs()),
    )
}

/// Makes the closing of a connection abort it at once and discard everything in flight.
pub fn abort(stream: &TcpStream) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the option's value is valid and has the given length.
    sys::check(unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Describes what happened to the other end: `std` reports a wait that exceeded its limit as "would block".
pub fn explain(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => make_silence_error(),
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => io::Error::new(
            error.kind(),
            format!(
                "the other end closed the connection too early (guestmark's does so after {} s of silence)",
                SILENCE.as_secs()
            ),
        ),
        _ => error,
    }
}

/// Writes one frame: its length, little-endian, and its `MessagePack`.
pub fn write_frame(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = rmp_serde::to_vec_named(message).map_err(io::Error::other)?;
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(body);
    to.write_all(&frame)?;
    to.flush()
}

/// Reads one frame; returns `None` at the end of the stream.
pub fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST_FRAME {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the other end does not speak this protocol",
        ));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    rmp_serde::from_slice(&body)
        .map(Some)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a frame; the end of the stream is an error.
pub fn read_answer<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    read_frame(from)
        .and_then(|answer| answer.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()))
        .map_err(explain)
}

/// Returns the processor time of the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    sys::clock_ns(ClockId::ThreadCPUTime)
}

/// Reads a socket option into `buffer`; returns the number of bytes that this kernel provides.
fn read_option(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    buffer: &mut [u8],
) -> Option<usize> {
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the buffer.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(length as usize)
}

/// Reads `TCP_INFO` of a connection on which we send; returns `None` if the kernel does not provide it.
pub fn read_tcp_info(stream: &TcpStream) -> Option<SenderTcpInfo> {
    let mut buffer = [0; 256];
    let length = read_option(stream, libc::IPPROTO_TCP, libc::TCP_INFO, &mut buffer)?;
    let mut name = [0; 16];
    let named =
        read_option(stream, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name).unwrap_or(0);
    let name = name[..named]
        .split(|&byte| byte == 0)
        .next()
        .unwrap_or_default();
    parse_tcp_info(&buffer[..length], &String::from_utf8_lossy(name))
}

/// Parses `struct tcp_info` of `linux/tcp.h`, which is only ever extended and has the same layout on all architectures.
fn parse_tcp_info(info: &[u8], congestion_control: &str) -> Option<SenderTcpInfo> {
    let word = |at: usize| {
        Some(u64::from(u32::from_ne_bytes(
            info.get(at..at + 4)?.try_into().ok()?,
        )))
    };
    let long = |at: usize| Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?));
    Some(SenderTcpInfo {
        congestion_control: congestion_control.to_owned(),
        retransmits: word(100)?,
        rtt_us: word(68)?,
        window: word(80)?,
        segment: word(16)?,
        unsent: word(144),
        busy_us: long(168),
        receiver_us: long(176),
        buffer_us: long(184),
    })
}

/// Returns how many datagrams the socket has dropped since it was opened because they were not read in time.
pub fn count_overflows(socket: &impl AsRawFd) -> Option<u64> {
    /// `SK_MEMINFO_DROPS` of `linux/sock_diag.h`.
    const DROPS: usize = 8;
    let mut buffer = [0; 64];
    let length = read_option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut buffer)?;
    let drops = buffer[..length].get(DROPS * 4..DROPS * 4 + 4)?;
    Some(u64::from(u32::from_ne_bytes(drops.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn frames_come_back_and_garbage_is_refused() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &"hello").unwrap();
        assert_eq!(
            read_frame::<String>(&mut &bytes[..]).unwrap().unwrap(),
            "hello"
        );
        assert!(read_frame::<String>(&mut &b""[..]).unwrap().is_none());
        assert!(read_frame::<String>(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).is_err());
        assert!(read_frame::<u64>(&mut &bytes[..]).is_err());
    }

    #[test]
    fn the_kernel_tells_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let mut stream = connect(at.parse().unwrap()).unwrap();
        stream.write_all(b"x").unwrap();
        let (mut other, _) = listener.accept().unwrap();
        other.read_exact(&mut [0]).unwrap();
        let sender = read_tcp_info(&stream).unwrap();
        assert!(!sender.congestion_control.is_empty());
        assert!(sender.segment > 500 && sender.window > 0, "{sender:?}");
    }

    #[test]
    fn a_short_tcp_info_lacks_what_is_newer() {
        let old = parse_tcp_info(&[1; 104], "reno").unwrap();
        assert_eq!((old.busy_us, old.unsent), (None, None));
        assert!(parse_tcp_info(&[1; 103], "reno").is_none());
    }
}
