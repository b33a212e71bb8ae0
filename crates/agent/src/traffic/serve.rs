//! Implements the server's end of every test, with a thread for each connection.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use guestmark_wire::traffic::{TrafficEvent, TrafficPorts};

use super::datagrams::{await_greeting, drain_socket, receive_datagrams, send_datagrams};
use super::exchange::{configure_for_requests, Messages};
use super::order::{Exchange, Order, Report, ServerReady, Spent};
use super::socket::{limit_waits, read_frame, send_at_once, thread_cpu_ns, write_frame, SILENCE};
use super::stream::{receive_stream, send_stream};
use crate::endpoint::{Address, Endpoint, Listener};
use crate::sys;

/// Maximum number of connections at a time; more than any test needs.
const MOST: usize = 1024;

/// State that the threads share.
struct Server {
    /// `None` by vsock, which carries no datagrams.
    datagrams: Option<UdpSocket>,
    /// Held during a test of datagrams, because only one can run at a time.
    turn: Mutex<()>,
    /// Results of streams by number, until they are requested.
    reports: Mutex<HashMap<u64, Report>>,
    reported: Condvar,
    /// Streams being sent, by number.
    sending: Mutex<HashMap<u64, TcpStream>>,
    /// Sizes of requests and responses on the other port.
    bare: Mutex<Exchange>,
    bare_cpu_ns: AtomicU64,
    open: AtomicUsize,
}

impl Server {
    fn require_datagrams(&self) -> io::Result<&UdpSocket> {
        let socket = self.datagrams.as_ref();
        socket.ok_or_else(|| io::Error::other("vsock carries no datagrams"))
    }

    fn report(&self, id: u64, report: Report) {
        let mut reports = lock(&self.reports);
        // Clients that have died never request their reports.
        if reports.len() >= MOST {
            reports.clear();
        }
        reports.insert(id, report);
        self.reported.notify_all();
    }

    /// Ends the stream if it is still being sent (a device on the path may hide that the client has closed it), and
    /// returns its report.
    fn take_report(&self, id: u64) -> Report {
        if let Some(stream) = lock(&self.sending).remove(&id) {
            // This fails if the stream has just ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let (mut reports, _) = self
            .reported
            .wait_timeout_while(lock(&self.reports), SILENCE / 2, |reports| {
                !reports.contains_key(&id)
            })
            .unwrap_or_else(PoisonError::into_inner);
        reports.remove(&id).unwrap_or_else(|| {
            Report::of_failure(&io::Error::other("the stream did not end in time"))
        })
    }
}

/// `guestmark-agent traffic serve [--address ADDRESS] [--port PORT] [--bare-port PORT]` serves until standard input
/// ends.
pub fn serve(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let (address, ports) = parse(arguments).ok_or_else(|| {
        sys::usage("traffic serve [--address ADDRESS] [--port PORT] [--bare-port PORT]")
    })?;
    let open =
        |port| Listener::bind(Endpoint { address, port }).map_err(|error| name_port(port, &error));
    let (main, bare) = (open(ports.main)?, open(ports.bare)?);
    let ports = TrafficPorts {
        main: main.port()?,
        bare: bare.port()?,
    };
    let datagrams = match address {
        Address::Ip(address) => Some(
            UdpSocket::bind((address, ports.main))
                .map_err(|error| name_port(ports.main, &error))?,
        ),
        Address::Vsock(_) | Address::Unix(_) => None,
    };
    let server = Arc::new(Server {
        datagrams,
        turn: Mutex::new(()),
        reports: Mutex::new(HashMap::new()),
        reported: Condvar::new(),
        sending: Mutex::new(HashMap::new()),
        bare: Mutex::new(Exchange {
            request: 0,
            response: 0,
        }),
        bare_cpu_ns: AtomicU64::new(0),
        open: AtomicUsize::new(0),
    });
    let bare_server = Arc::clone(&server);
    std::thread::spawn(move || accept_bare(&bare, &bare_server));
    std::thread::spawn(move || accept_orders(&main, &server));
    write_frame(&mut io::stdout(), &TrafficEvent::Listening(ports))?;
    // If the parent process dies, its end of this pipe is closed.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(ExitCode::SUCCESS)
}

fn name_port(port: u16, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("port {port}: {error}"))
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Option<(Address, TrafficPorts)> {
    use lexopt::prelude::*;
    let mut address = Address::Ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let mut ports = TrafficPorts { main: 0, bare: 0 };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().ok()? {
        match argument {
            Long("address") => address = parser.value().ok()?.parse().ok()?,
            Long("port") => ports.main = parser.value().ok()?.parse().ok()?,
            Long("bare-port") => ports.bare = parser.value().ok()?.parse().ok()?,
            _ => return None,
        }
    }
    Some((address, ports))
}

/// Serves every connection that begins with an order, in a thread of its own.
fn accept_orders(listener: &Listener, server: &Arc<Server>) {
    loop {
        let Ok(stream) = listener.accept() else {
            continue;
        };
        if server.open.fetch_add(1, Ordering::Relaxed) >= MOST {
            server.open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let server = Arc::clone(server);
        std::thread::spawn(move || {
            // The client notices that the connection was closed, and reports it.
            let _ = execute_order(&stream, &server);
            server.open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn execute_order(mut stream: &TcpStream, server: &Server) -> io::Result<()> {
    limit_waits(stream)?;
    let Some(order) = read_frame::<Order>(&mut stream)? else {
        return Ok(());
    };
    match order {
        Order::Receive(span) => {
            let report = match receive_stream(stream, span) {
                Ok(received) => Report {
                    received: Some(received),
                    ..Report::default()
                },
                Err(error) => Report::of_failure(&error),
            };
            server.report(span.id, report);
            Ok(())
        }
        Order::Send(span) => {
            lock(&server.sending).insert(span.id, stream.try_clone()?);
            let result = send_stream(stream, span);
            lock(&server.sending).remove(&span.id);
            let report = match result {
                Ok(sent) => Report {
                    sent: Some(sent),
                    ..Report::default()
                },
                Err(error) => Report::of_failure(&error),
            };
            server.report(span.id, report);
            Ok(())
        }
        Order::Report(id) => write_frame(&mut stream, &server.take_report(id)),
        Order::Echo(exchange) => {
            configure_for_requests(stream)?;
            let mut messages = Messages::new(exchange);
            let began_ns = thread_cpu_ns();
            while messages.answer(stream)? {}
            write_frame(
                &mut stream,
                &Spent {
                    cpu_ns: thread_cpu_ns() - began_ns,
                },
            )
        }
        Order::Accept(exchange) => {
            *lock(&server.bare) = exchange;
            let began_ns = server.bare_cpu_ns.load(Ordering::Relaxed);
            write_frame(&mut stream, &ServerReady {})?;
            // The test may take longer than the limit of a wait; a byte ends it.
            stream.set_read_timeout(None)?;
            io::copy(&mut stream.take(1), &mut io::sink())?;
            let spent_ns = server.bare_cpu_ns.load(Ordering::Relaxed) - began_ns;
            write_frame(&mut stream, &Spent { cpu_ns: spent_ns })
        }
        Order::ReceiveDatagrams(span) => {
            let datagrams = server.require_datagrams()?;
            let _turn = lock(&server.turn);
            drain_socket(datagrams)?;
            write_frame(&mut stream, &ServerReady {})?;
            let received = receive_datagrams(datagrams, span, false)?;
            write_frame(&mut stream, &received)
        }
        Order::SendDatagrams(span) => {
            let datagrams = server.require_datagrams()?;
            let _turn = lock(&server.turn);
            // Nobody else can have datagrams sent to a third.
            let to = await_greeting(datagrams, span.id, stream.peer_addr()?.ip())?;
            let sent = send_datagrams(datagrams, Some(to), span)?;
            write_frame(&mut stream, &sent)
        }
    }
}

/// Serves connections that begin with a request or carry no data, one after the other.
fn accept_bare(listener: &Listener, server: &Server) {
    let (mut exchange, mut messages) = (None, None);
    loop {
        let Ok(stream) = listener.accept() else {
            continue;
        };
        let wanted = *lock(&server.bare);
        if exchange != Some(wanted) {
            exchange = Some(wanted);
            messages = (wanted.request > 0).then(|| Messages::new(wanted));
        }
        if let Some(messages) = &mut messages {
            // A client reports its failures itself. A silent client must not delay the others.
            let _ = limit_waits(&stream)
                .and_then(|()| send_at_once(&stream))
                .and_then(|()| messages.answer(&stream));
        }
        drop(stream);
        server.bare_cpu_ns.store(thread_cpu_ns(), Ordering::Relaxed);
    }
}

/// Locks a mutex even if a thread has panicked, since no lock is held while a value is inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
