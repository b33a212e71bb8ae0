//! Implements the client's end: connects, measures, and reports to the controller.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use guestmark_wire::traffic::{
    TrafficDatagrams, TrafficEvent, TrafficFlow, TrafficResult, TrafficTask, TrafficTest,
    TrafficTimes,
};
use rustix::time::ClockId;

use super::datagrams::{drain_socket, receive_datagrams, send_datagrams};
use super::exchange::{connect_for_requests, repeat, transact, Messages};
use super::order::{
    DatagramSpan, DatagramsReceived, DatagramsSent, Exchange, Order, Received, Report, Sent,
    ServerReady, Span, Spent,
};
use super::socket::{connect, limit_waits, read_answer, read_frame, write_frame};
use super::stream::{receive_stream, send_stream};
use crate::endpoint::{Address, Endpoint};
use crate::sys;

/// Maximum number of streams in each direction.
const MOST_FLOWS: u32 = 256;

/// The server's addresses.
#[derive(Clone, Copy)]
struct Peer {
    main: Endpoint,
    bare: Endpoint,
}

/// `guestmark-agent traffic measure ADDRESS PORT BARE-PORT` executes the tasks that it reads from standard input.
pub fn measure(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let peer =
        parse(arguments).ok_or_else(|| sys::usage("traffic measure ADDRESS PORT BARE-PORT"))?;
    let mut number = u64::from(std::process::id()) << 32;
    while let Some(task) = read_frame::<TrafficTask>(&mut io::stdin())? {
        number += u64::from(2 * MOST_FLOWS);
        let test = Test { task, peer, number };
        let Some(result) = test.run()? else { break };
        write_frame(&mut io::stdout(), &TrafficEvent::Measured(Box::new(result)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Pause between attempts to reach a server that does not answer yet.
const AGAIN: Duration = Duration::from_millis(5);

/// `guestmark-agent traffic reach ADDRESS PORT MILLISECONDS` succeeds as soon as a connection is accepted, and
/// otherwise fails with the last error.
pub fn reach(mut arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let mut next = || arguments.next()?.into_string().ok();
    let parsed = (|| {
        let to = Endpoint {
            address: next()?.parse().ok()?,
            port: next()?.parse().ok()?,
        };
        Some((to, Duration::from_millis(next()?.parse().ok()?)))
    })();
    let (to, limit) =
        parsed.ok_or_else(|| sys::usage("traffic reach ADDRESS PORT MILLISECONDS"))?;
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(AGAIN);
        match to.connect(Some(left)) {
            Ok(_) => return Ok(ExitCode::SUCCESS),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => std::thread::sleep(AGAIN),
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<Peer> {
    let mut next = || arguments.next()?.into_string().ok();
    let address = next()?.parse().ok()?;
    let mut at_next_port = || {
        let port = next()?.parse().ok()?;
        Some(Endpoint { address, port })
    };
    let peer = Peer {
        main: at_next_port()?,
        bare: at_next_port()?,
    };
    arguments.next().is_none().then_some(peer)
}

/// Clock and processor time at the beginning of a test.
struct Begin {
    at_ns: u64,
    cpu_ns: u64,
}

/// One task, and the numbers of its streams.
struct Test {
    task: TrafficTask,
    peer: Peer,
    number: u64,
}

impl Test {
    /// Runs the test; returns `None` if the controller has disconnected.
    fn run(&self) -> io::Result<Option<TrafficResult>> {
        match self.task.test {
            TrafficTest::Upload => self.run_streams(true, false, false),
            TrafficTest::Download => self.run_streams(false, true, false),
            TrafficTest::Request => self.run_streams(false, false, true),
            TrafficTest::RequestInUpload => self.run_streams(true, false, true),
            TrafficTest::RequestInDownload => self.run_streams(false, true, true),
            TrafficTest::RequestInBoth => self.run_streams(true, true, true),
            TrafficTest::Transaction | TrafficTest::Connect => self.run_connections(),
            TrafficTest::DatagramsUp => self.send_datagrams(),
            TrafficTest::DatagramsDown => self.receive_datagrams(),
        }
    }

    fn make_exchange(&self) -> Exchange {
        if self.task.test == TrafficTest::Connect {
            return Exchange {
                request: 0,
                response: 0,
            };
        }
        Exchange {
            request: self.task.request.max(1),
            response: self.task.response.max(1),
        }
    }

    fn warm_ns(&self) -> u64 {
        self.task.time_ns / 4
    }

    /// Reports that everything is prepared, and waits for the byte to begin; returns `None` if the controller has
    /// disconnected.
    fn wait(&self) -> io::Result<Option<Begin>> {
        write_frame(&mut io::stdout(), &TrafficEvent::Ready(self.task.clone()))?;
        if io::stdin().read(&mut [0])? == 0 {
            return Ok(None);
        }
        Ok(Some(Begin {
            at_ns: sys::monotonic_ns(),
            cpu_ns: sys::clock_ns(ClockId::ProcessCPUTime),
        }))
    }

    fn open(&self, order: &Order) -> io::Result<TcpStream> {
        let mut stream = connect(self.peer.main)?;
        write_frame(&mut stream, order)?;
        Ok(stream)
    }

    /// Runs streams in one or both directions, and requests at the same time if `asks`.
    fn run_streams(&self, up: bool, down: bool, asks: bool) -> io::Result<Option<TrafficResult>> {
        let each = self.task.flows.clamp(1, MOST_FLOWS);
        let mut flows = Vec::new();
        for number in 0..each {
            for upload in [true, false] {
                if (upload && up) || (!upload && down) {
                    let id = self.number + u64::from(2 * number) + u64::from(upload);
                    flows.push((upload, self.make_span(id)));
                }
            }
        }
        let exchange = self.make_exchange();
        let requests = asks
            .then(|| -> io::Result<TcpStream> {
                let mut stream = connect_for_requests(self.peer.main)?;
                write_frame(&mut stream, &Order::Echo(exchange))?;
                Ok(stream)
            })
            .transpose()?;
        // The server sends as soon as it receives the order, so downloads are ordered only after the controller's byte.
        let mut streams = Vec::new();
        for (upload, span) in flows {
            streams.push((upload, span, connect(self.peer.main)?));
        }
        let Some(begin) = self.wait()? else {
            return Ok(None);
        };
        let barrier = Barrier::new(streams.len() + usize::from(asks));
        let mut result = TrafficResult::default();
        let mut ends = Vec::new();
        std::thread::scope(|scope| {
            let running: Vec<_> = streams
                .into_iter()
                .map(|(upload, span, stream)| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        run_end(upload, span, stream)
                    })
                })
                .collect();
            if let Some(stream) = &requests {
                barrier.wait();
                let (times, spent_ns) = self.ask(stream, exchange)?;
                result.times = Some(times);
                result.peer_cpu_ns += spent_ns;
            }
            for end in running {
                ends.push(
                    end.join()
                        .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?,
                );
            }
            Ok::<(), io::Error>(())
        })?;
        finish(&mut result, &begin);
        for (span, ours) in ends {
            let mut stream = self.open(&Order::Report(span.id))?;
            let theirs: Report = read_answer(&mut stream)?;
            if let Some(failure) = theirs.failure {
                return Err(io::Error::other(format!(
                    "the peer's end of a stream failed: {failure}"
                )));
            }
            let (flow, spent_ns) = join_ends(ours, theirs)
                .ok_or_else(|| io::Error::other("the peer mixed up streams"))?;
            result.peer_cpu_ns += spent_ns;
            result.flows.push(flow);
        }
        Ok(Some(result))
    }

    fn make_span(&self, id: u64) -> Span {
        Span {
            id,
            warm_ns: self.warm_ns(),
            time_ns: self.task.time_ns,
        }
    }

    fn ask(&self, mut stream: &TcpStream, exchange: Exchange) -> io::Result<(TrafficTimes, u64)> {
        let mut messages = Messages::new(exchange);
        let (times, elapsed_ns) =
            repeat(self.warm_ns(), self.task.time_ns, || messages.ask(stream))?;
        limit_waits(stream)?;
        messages.ask_last(stream)?;
        let spent: Spent = read_answer(&mut stream)?;
        Ok((times.summarize(elapsed_ns), spent.cpu_ns))
    }

    /// Makes one connection after the other, each with one request and its response or without data.
    fn run_connections(&self) -> io::Result<Option<TrafficResult>> {
        let exchange = self.make_exchange();
        let mut control = self.open(&Order::Accept(exchange))?;
        let _begun: ServerReady = read_answer(&mut control)?;
        let Some(begin) = self.wait()? else {
            return Ok(None);
        };
        let mut messages = Messages::new(exchange);
        let (times, elapsed_ns) = repeat(self.warm_ns(), self.task.time_ns, || {
            transact(self.peer.bare, &mut messages)
        })?;
        let mut result = TrafficResult {
            times: Some(times.summarize(elapsed_ns)),
            ..TrafficResult::default()
        };
        finish(&mut result, &begin);
        control.write_all(&[0])?;
        let spent: Spent = read_answer(&mut control)?;
        result.peer_cpu_ns = spent.cpu_ns;
        Ok(Some(result))
    }

    fn make_datagram_span(&self) -> DatagramSpan {
        DatagramSpan {
            id: self.number,
            size: self.task.size,
            time_ns: self.task.time_ns,
        }
    }

    /// Opens a socket that receives only from the server.
    fn open_datagrams(&self) -> io::Result<UdpSocket> {
        let Address::Ip(address) = self.peer.main.address else {
            return Err(io::Error::other("vsock carries no datagrams"));
        };
        let peer = SocketAddr::new(address, self.peer.main.port);
        let any = if address.is_ipv4() {
            "0.0.0.0:0"
        } else {
            "[::]:0"
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(peer)?;
        Ok(socket)
    }

    fn send_datagrams(&self) -> io::Result<Option<TrafficResult>> {
        let span = self.make_datagram_span();
        let socket = self.open_datagrams()?;
        let mut control = self.open(&Order::ReceiveDatagrams(span))?;
        let _begun: ServerReady = read_answer(&mut control)?;
        let Some(begin) = self.wait()? else {
            return Ok(None);
        };
        let sent = send_datagrams(&socket, None, span)?;
        let mut result = TrafficResult::default();
        finish(&mut result, &begin);
        let received: DatagramsReceived = read_answer(&mut control)?;
        result.peer_cpu_ns = received.cpu_ns;
        result.datagrams = Some(combine_datagrams(sent, received));
        Ok(Some(result))
    }

    fn receive_datagrams(&self) -> io::Result<Option<TrafficResult>> {
        let span = self.make_datagram_span();
        let socket = self.open_datagrams()?;
        drain_socket(&socket)?;
        let mut control = self.open(&Order::SendDatagrams(span))?;
        let Some(begin) = self.wait()? else {
            return Ok(None);
        };
        let received = receive_datagrams(&socket, span, true)?;
        let mut result = TrafficResult::default();
        finish(&mut result, &begin);
        let sent: DatagramsSent = read_answer(&mut control)?;
        result.peer_cpu_ns = sent.cpu_ns;
        result.datagrams = Some(combine_datagrams(sent, received));
        Ok(Some(result))
    }
}

/// The result of a stream at this end.
enum End {
    Received(Received),
    Sent(Sent),
}

fn run_end(upload: bool, span: Span, mut stream: TcpStream) -> io::Result<(Span, End)> {
    if upload {
        write_frame(&mut stream, &Order::Receive(span))?;
        Ok((span, End::Sent(send_stream(&stream, span)?)))
    } else {
        write_frame(&mut stream, &Order::Send(span))?;
        Ok((span, End::Received(receive_stream(&stream, span)?)))
    }
}

/// Combines the results of both ends of a stream; also returns the server's processor time for it. `None` if the other
/// end has no result.
fn join_ends(ours: End, theirs: Report) -> Option<(TrafficFlow, u64)> {
    let upload = matches!(ours, End::Sent(_));
    let (received, sent, spent_ns) = match ours {
        End::Sent(sent) => {
            let received = theirs.received?;
            (received, sent, received.cpu_ns)
        }
        End::Received(received) => {
            let sent = theirs.sent?;
            let spent_ns = sent.cpu_ns;
            (received, sent, spent_ns)
        }
    };
    let flow = TrafficFlow {
        upload,
        bytes: received.bytes,
        elapsed_ns: received.elapsed_ns,
        sender: sent.sender,
    };
    Some((flow, spent_ns))
}

fn finish(result: &mut TrafficResult, begin: &Begin) {
    result.elapsed_ns = sys::monotonic_ns() - begin.at_ns;
    result.cpu_ns = sys::clock_ns(ClockId::ProcessCPUTime) - begin.cpu_ns;
}

fn combine_datagrams(sent: DatagramsSent, received: DatagramsReceived) -> TrafficDatagrams {
    TrafficDatagrams {
        sent: sent.count,
        received: received.count,
        // What waited in queues arrives after the last one was sent.
        elapsed_ns: sent.elapsed_ns.max(received.elapsed_ns),
        overflowed: received.overflowed,
    }
}
