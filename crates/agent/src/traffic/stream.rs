//! Sends and receives streams: as much data as the connection carries, counted where it arrives.
//!
//! The receiving end aborts the stream and discards everything in flight, because buffers and queues may hold more than
//! the path carries in minutes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::order::{Received, Sent, Span};
use super::socket::{abort, explain, read_tcp_info, thread_cpu_ns, SILENCE};
use crate::sys::monotonic_ns;

/// Bytes per system call, as in `iperf3`.
const BLOCK: usize = 128 << 10;

/// How long one write may take before the clock is checked again.
const PATIENCE: Duration = Duration::from_millis(100);

/// Sends until the receiver ends the stream, which is an error before the end of the span. One second after twice the
/// span the sender ends the stream itself, since a device on the path may hide that the receiver has closed it.
pub fn send_stream(mut socket: &TcpStream, span: Span) -> io::Result<Sent> {
    socket.set_write_timeout(Some(PATIENCE))?;
    let began_cpu_ns = thread_cpu_ns();
    let block = vec![0; BLOCK];
    let full_ns = span.warm_ns + span.time_ns;
    let began_ns = monotonic_ns();
    let mut moved_ns = began_ns;
    let mut sender = None;
    loop {
        let result = socket.write(&block);
        let now_ns = monotonic_ns();
        let passed_ns = now_ns - began_ns;
        // Read it once and before the stream ends: afterwards the kernel reports on a closed connection.
        if passed_ns >= full_ns && sender.is_none() {
            sender = read_tcp_info(socket);
        }
        match result {
            Ok(_) => moved_ns = now_ns,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock if now_ns - moved_ns < SILENCE.as_nanos() as u64 => {}
                _ if passed_ns < full_ns => return Err(explain(error)),
                _ => break,
            },
        }
        if passed_ns >= 2 * full_ns + 1_000_000_000 {
            break;
        }
    }
    abort(socket)?;
    Ok(Sent {
        cpu_ns: thread_cpu_ns() - began_cpu_ns,
        sender,
    })
}

/// Counts the bytes of the timed part, which begins `warm_ns` after the first byte. Then reads for another eighth of
/// the time, so that simultaneous tests end before the stream does, and ends the stream.
pub fn receive_stream(mut socket: &TcpStream, span: Span) -> io::Result<Received> {
    let began_cpu_ns = thread_cpu_ns();
    let mut buffer = vec![0; BLOCK];
    let (mut first_ns, mut start_ns) = (0, 0);
    let (mut bytes, mut elapsed_ns) = (0, 0);
    loop {
        let count = match socket.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) => return Err(explain(io::ErrorKind::UnexpectedEof.into())),
            other => other.map_err(explain)?,
        };
        let now_ns = monotonic_ns();
        if first_ns == 0 {
            first_ns = now_ns;
        } else if start_ns == 0 {
            if now_ns >= first_ns + span.warm_ns {
                start_ns = now_ns;
            }
        } else if elapsed_ns < span.time_ns {
            bytes += count as u64;
            elapsed_ns = now_ns - start_ns;
        } else if now_ns >= start_ns + span.time_ns + span.time_ns / 8 {
            break;
        }
    }
    abort(socket)?;
    Ok(Received {
        bytes,
        elapsed_ns,
        cpu_ns: thread_cpu_ns() - began_cpu_ns,
    })
}
