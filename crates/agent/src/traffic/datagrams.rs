//! Sends datagrams one by one as fast as the sender can, and counts how many of them arrive.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::order::{DatagramSpan, DatagramsReceived, DatagramsSent};
use super::socket::{count_overflows, thread_cpu_ns, SILENCE};
use crate::sys::monotonic_ns;

/// Size of the start of every datagram: the number of its test and its own number.
pub const SMALLEST: u32 = 16;
/// The largest datagram of UDP over IPv4.
pub const LARGEST: u32 = 65_507;
/// After a pause of this length, no more datagrams are expected.
const LAST: Duration = Duration::from_millis(300);
/// If no datagram has arrived this long after the end of the test, all are considered lost.
const BEGINNING: Duration = Duration::from_secs(2);
/// How often the receiver announces its address until it has received something.
const GREETING: Duration = Duration::from_millis(50);
/// How many datagram numbers are remembered to recognise duplicates.
const REMEMBERED: usize = 1 << 16;

/// Sends to the connected peer, or to `to`.
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
                // The device's queue is full: the kernel has dropped the datagram and reported it.
                Some(libc::ENOBUFS) => {}
                // gVisor's kernel does not block either.
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

/// Discards datagrams of an earlier test.
pub fn drain_socket(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    while socket.recv(&mut [0]).is_ok() {}
    socket.set_nonblocking(false)
}

/// Counts the datagrams of a test until no more arrive. With `greet`, announces its address repeatedly until the first
/// one has arrived.
pub fn receive_datagrams(
    socket: &UdpSocket,
    span: DatagramSpan,
    greet: bool,
) -> io::Result<DatagramsReceived> {
    let began_cpu_ns = thread_cpu_ns();
    let before = count_overflows(socket);
    let mut buffer = vec![0; LARGEST as usize];
    let mut seen = RecentNumbers::new();
    // The other machine may need time to begin. A pause means the end only once all must have been sent: a machine may
    // pause, too.
    let mut until_ns = monotonic_ns() + span.time_ns + BEGINNING.as_nanos() as u64;
    let (mut first_ns, mut last_ns) = (0, 0);
    socket.set_read_timeout(Some(GREETING))?;
    loop {
        let begun = seen.count > 0;
        if greet && !begun {
            socket.send(&span.id.to_le_bytes())?;
        }
        let number = receive_one(socket, &mut buffer, span.id)?;
        let now_ns = monotonic_ns();
        match number {
            Some(number) => {
                seen.add(number);
                last_ns = now_ns;
                if !begun {
                    first_ns = now_ns;
                    until_ns = now_ns + span.time_ns;
                    socket.set_read_timeout(Some(LAST))?;
                }
            }
            None if now_ns > until_ns => break,
            None => {}
        }
    }
    let overflowed = count_overflows(socket)
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    Ok(DatagramsReceived {
        count: seen.count,
        elapsed_ns: last_ns - first_ns,
        overflowed,
        cpu_ns: thread_cpu_ns() - began_cpu_ns,
    })
}

/// Waits for a greeting of this test from `machine`, and returns the sender's address.
pub fn await_greeting(socket: &UdpSocket, id: u64, machine: IpAddr) -> io::Result<SocketAddr> {
    socket.set_read_timeout(Some(SILENCE))?;
    let mut buffer = [0; SMALLEST as usize];
    loop {
        let (count, from) = socket
            .recv_from(&mut buffer)
            .map_err(super::socket::explain)?;
        if from.ip() == machine && count == 8 && buffer[..8] == id.to_le_bytes() {
            return Ok(from);
        }
    }
}

/// Returns the number of the next datagram of this test; `None` if none arrives in time.
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

/// Which of the latest datagram numbers have arrived, to recognise duplicates.
struct RecentNumbers {
    latest: Vec<u64>,
    count: u64,
}

impl RecentNumbers {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn connect() -> (UdpSocket, UdpSocket) {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        (receiver, sender)
    }

    #[test]
    fn a_pause_of_a_machine_is_no_loss() {
        let (ours, sender) = connect();
        let span = DatagramSpan {
            id: 7,
            size: SMALLEST,
            time_ns: 1_500_000_000,
        };
        let sending = std::thread::spawn(move || {
            for number in 0..20_u64 {
                if number == 10 {
                    std::thread::sleep(Duration::from_millis(700));
                }
                let datagram = [span.id.to_le_bytes(), number.to_le_bytes()].concat();
                sender.send(&datagram).unwrap();
            }
        });
        let received = receive_datagrams(&ours, span, false).unwrap();
        sending.join().unwrap();
        assert_eq!(received.count, 20);
        assert!(received.elapsed_ns >= 500_000_000);
    }
}
