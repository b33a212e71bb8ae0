//! A server on smoltcp's stack, over a tap device, at 10.9.0.2: `smoltcp-server DEVICE PORT THINK_MS REPLY` answers every 64 bytes
//! with REPLY bytes after THINK_MS.

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{wait, Medium, TunTapInterface};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use std::os::fd::AsRawFd;

const QUESTION: usize = 64;
const BUFFER: usize = 65_535;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let (port, think, reply) = (
        number(2) as u16,
        Duration::from_millis(number(3)),
        number(4) as usize,
    );
    let mut device = TunTapInterface::new(&words[1], Medium::Ethernet).expect("a tap device");
    let fd = device.as_raw_fd();
    let config = Config::new(EthernetAddress([2, 0, 0, 0, 0, 2]).into());
    let mut interface = Interface::new(config, &mut device, Instant::now());
    interface.update_ip_addrs(|addresses| {
        let own = IpCidr::new(IpAddress::v4(10, 9, 0, 2), 24);
        addresses.push(own).expect("room for an address");
    });
    let buffer = || SocketBuffer::new(vec![0; BUFFER]);
    let mut sockets = SocketSet::new(Vec::new());
    let handle = sockets.add(Socket::new(buffer(), buffer()));
    let content = vec![b'a'; BUFFER];
    // Bytes of the question that have come, of the answer that are left, and when that begins.
    let (mut asked, mut left, mut due) = (0, 0, None);
    println!("ready");
    loop {
        let now = Instant::now();
        interface.poll(now, &mut device, &mut sockets);
        let socket = sockets.get_mut::<Socket>(handle);
        if !socket.is_open() {
            (asked, left, due) = (0, 0, None);
            socket.listen(port).expect("a port");
        }
        while socket.can_recv() {
            asked += socket
                .recv(|data| (data.len(), data.len()))
                .expect("a question");
        }
        if asked >= QUESTION && due.is_none() && left == 0 {
            asked -= QUESTION;
            due = Some(now + think);
        }
        if due.is_some_and(|due| due <= now) {
            (due, left) = (None, reply);
        }
        while left > 0 && socket.can_send() {
            left -= socket
                .send_slice(&content[..left.min(BUFFER)])
                .expect("an answer");
        }
        if socket.state() == State::CloseWait && left == 0 {
            socket.close();
        }
        let waits = [
            interface.poll_delay(now, &sockets),
            due.map(|due| if due > now { due - now } else { Duration::ZERO }),
            Some(Duration::from_millis(50)),
        ];
        let least = waits.into_iter().flatten().min();
        wait(fd, least).expect("a device to wait for");
    }
}
