//! Exchanges requests and responses, on one connection or each on a connection of its own.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};

use super::histogram::Histogram;
use super::order::Exchange;
use super::socket::{
    connect, explain, make_silence_error, send_at_once, wait_without_limit, SILENCE,
};
use crate::endpoint::Endpoint;
use crate::sys::monotonic_ns;

/// Largest size of a request and of a response.
pub const LARGEST: u32 = 1 << 20;

/// First byte of the last request of a connection. The client says so, as some hypervisors (Firecracker 1.17) do not pass
/// on to their host that a guest has closed one direction.
const LAST: u8 = 1;

/// One request and one response buffer, reused for every exchange.
pub struct Messages {
    request: Vec<u8>,
    response: Vec<u8>,
}

impl Messages {
    /// Creates messages of these sizes.
    pub fn new(exchange: Exchange) -> Self {
        Self {
            request: vec![0; exchange.request.min(LARGEST) as usize],
            response: vec![0; exchange.response.min(LARGEST) as usize],
        }
    }

    /// Sends one request and waits for its response.
    pub fn ask(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        stream.write_all(&self.request)?;
        stream.read_exact(&mut self.response)
    }

    /// Sends a request that the server knows to be the last, and waits for its response.
    pub fn ask_last(&mut self, stream: &TcpStream) -> io::Result<()> {
        self.request[0] = LAST;
        self.ask(stream)
    }

    /// Answers one request; returns `false` after the last one and at the end of the stream.
    pub fn answer(&mut self, mut stream: &TcpStream) -> io::Result<bool> {
        if let Err(error) = stream.read_exact(&mut self.request) {
            return match error.kind() {
                io::ErrorKind::UnexpectedEof => Ok(false),
                _ => Err(error),
            };
        }
        stream.write_all(&self.response)?;
        Ok(self.request[0] != LAST)
    }
}

/// Connects, and configures the connection for requests: none of them waits for more data to send.
pub fn connect_for_requests(to: Endpoint) -> io::Result<TcpStream> {
    let stream = connect(to)?;
    configure_for_requests(&stream)?;
    Ok(stream)
}

/// Configures a connection for requests. Its waits have no time limit: the kernel would set a timer for each, which
/// takes time. [`repeat`] watches the time instead, and a server's wait ends with its client.
pub fn configure_for_requests(stream: &TcpStream) -> io::Result<()> {
    wait_without_limit(stream)?;
    send_at_once(stream)
}

/// Exits the program if the counter that `work` updates stays unchanged for too long.
fn watch<T>(work: impl FnOnce(&AtomicU64) -> T) -> T {
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (ended, watched) = channel::<()>();
        let done = &done;
        scope.spawn(move || {
            let mut before = 0;
            while watched.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
                let now = done.load(Ordering::Relaxed);
                if now == before {
                    eprintln!("guestmark-agent: {}", make_silence_error());
                    std::process::exit(125);
                }
                before = now;
            }
        });
        let result = work(done);
        drop(ended);
        result
    })
}

/// Repeats an action for `warm_ns`, then for `time_ns`, and records the times of those begun in the second part. Also
/// returns the length of the timed part.
pub fn repeat(
    warm_ns: u64,
    time_ns: u64,
    once: impl FnMut() -> io::Result<()>,
) -> io::Result<(Histogram, u64)> {
    watch(|done| repeat_watched(warm_ns, time_ns, once, done))
}

fn repeat_watched(
    warm_ns: u64,
    time_ns: u64,
    mut once: impl FnMut() -> io::Result<()>,
    done: &AtomicU64,
) -> io::Result<(Histogram, u64)> {
    let began_ns = monotonic_ns();
    while monotonic_ns() < began_ns + warm_ns {
        once().map_err(explain)?;
        done.store(monotonic_ns(), Ordering::Relaxed);
    }
    let mut times = Histogram::new();
    let start_ns = monotonic_ns();
    loop {
        let before_ns = monotonic_ns();
        if before_ns >= start_ns + time_ns {
            return Ok((times, before_ns - start_ns));
        }
        once().map_err(explain)?;
        let now_ns = monotonic_ns();
        times.record(now_ns - before_ns);
        done.store(now_ns, Ordering::Relaxed);
    }
}

/// Makes one connection, sends one request if it has a size, and waits for the peer to close. The peer, not this end,
/// therefore keeps the connection in `TIME_WAIT` for a minute.
pub fn transact(to: Endpoint, messages: &mut Messages) -> io::Result<()> {
    let mut stream = to.connect(None)?;
    if !messages.request.is_empty() {
        send_at_once(&stream)?;
        messages.ask(&stream)?;
    }
    match stream.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer sent more than it was asked for",
        )),
    }
}
