//! Datagrams: as many as the sender can send, one by one, and how many of them arrive.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::order::{DatagramSpan, DatagramsReceived, DatagramsSent};
use super::socket::{count_overflows, thread_cpu_ns, SILENCE};
use crate::sys::monotonic_ns;

/// What every datagram begins with: the number of its test and its own.
pub const SMALLEST: u32 = 16;
/// The largest of UDP over IPv4.
pub const LARGEST: u32 = 65_507;
/// After so long a silence no more will come.
const LAST: Duration = Duration::from_millis(300);
/// So long after the end of the test's time not one has come: all are lost.
const BEGINNING: Duration = Duration::from_secs(2);
/// How often the receiver says where it is, until it has heard something.
const GREETING: Duration = Duration::from_millis(50);
/// How many numbers of datagrams are remembered, to count none twice: older ones count as late, not as new.
const REMEMBERED: usize = 1 << 16;

/// Sends to where the socket is connected, or to `to`.
pub fn send_datagrams(
    socket: &UdpSocket,
    to: Option<SocketAddr>,
    span: DatagramSpan,
) -> io::Result<DatagramsSent> {
    let began_cpu_ns = thread_cpu_ns();
    socket.set_write_timeout(Some(SILENCE))?;
    let mut datagram = vec![0; span.size.clamp(SMALLEST, LARGEST) as usize];
    datagram[..8].copy_from_slice(&span.id.to_le_bytes());
    let began_ns = monotonic_ns();
    let (mut count, mut now_ns) = (0_u64, began_ns);
    while now_ns < began_ns + span.time_ns {
        datagram[8..16].copy_from_slice(&count.to_le_bytes());
        let result = match to {
            Some(to) => socket.send_to(&datagram, to),
            None => socket.send(&datagram),
        };
        match result {
            Ok(_) => count += 1,
            Err(error) => match error.raw_os_error() {
                // The device's queue is full: the kernel has dropped it, and said so.
                Some(libc::ENOBUFS) => {}
                // gVisor's does not wait either.
                Some(libc::EAGAIN) => std::thread::yield_now(),
                _ => return Err(error),
            },
        }
        now_ns = monotonic_ns();
    }
    Ok(DatagramsSent {
        count,
        elapsed_ns: now_ns - began_ns,
        cpu_ns: thread_cpu_ns() - began_cpu_ns,
    })
}

/// Throws away what has come for an earlier test.
pub fn drain_socket(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    while socket.recv(&mut [0]).is_ok() {}
    socket.set_nonblocking(false)
}

/// Counts the datagrams of a test until there is silence. With `greet`, says so long that it is there until the first
/// has come.
pub fn receive_datagrams(
    socket: &UdpSocket,
    span: DatagramSpan,
    greet: bool,
) -> io::Result<DatagramsReceived> {
    let began_cpu_ns = thread_cpu_ns();
    let before = count_overflows(socket);
    let mut buffer = vec![0; LARGEST as usize];
    let mut seen = Seen::new();
    // Time to begin, which another machine may need; afterwards silence means the end.
    let patience_ns = monotonic_ns() + span.time_ns + BEGINNING.as_nanos() as u64;
    loop {
        let begun = seen.count > 0;
        if greet && !begun {
            socket.send(&span.id.to_le_bytes())?;
        }
        socket.set_read_timeout(Some(if begun { LAST } else { GREETING }))?;
        match receive_one(socket, &mut buffer, span.id)? {
            Some(number) => seen.add(number),
            None if begun || monotonic_ns() > patience_ns => break,
            None => {}
        }
    }
    let overflowed = count_overflows(socket)
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    Ok(DatagramsReceived {
        count: seen.count,
        overflowed,
        cpu_ns: thread_cpu_ns() - began_cpu_ns,
    })
}

/// Waits for whoever asks for a test, and returns where that is.
pub fn await_greeting(socket: &UdpSocket, id: u64) -> io::Result<SocketAddr> {
    socket.set_read_timeout(Some(SILENCE))?;
    let mut buffer = [0; SMALLEST as usize];
    loop {
        let (count, from) = socket
            .recv_from(&mut buffer)
            .map_err(super::socket::explain)?;
        if count == 8 && buffer[..8] == id.to_le_bytes() {
            return Ok(from);
        }
    }
}

/// The number of the next datagram of that test; `None` for silence.
fn receive_one(socket: &UdpSocket, buffer: &mut [u8], id: u64) -> io::Result<Option<u64>> {
    loop {
        match socket.recv(buffer) {
            Ok(count) if count >= SMALLEST as usize && buffer[..8] == id.to_le_bytes() => {
                let number = buffer[8..16].try_into().map(u64::from_le_bytes);
                return Ok(number.ok());
            }
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Ok(None),
                _ => return Err(error),
            },
        }
    }
}

/// Which of the latest numbers have come, to tell duplicates.
struct Seen {
    latest: Vec<u64>,
    count: u64,
}

impl Seen {
    fn new() -> Self {
        Self {
            latest: vec![u64::MAX; REMEMBERED],
            count: 0,
        }
    }

    fn add(&mut self, number: u64) {
        let place = &mut self.latest[number as usize % REMEMBERED];
        if *place != number {
            *place = number;
            self.count += 1;
        }
    }
}
