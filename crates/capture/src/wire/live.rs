//! Read packets of an interface from a ring buffer that the kernel shares with this process (packet(7), `TPACKET_V3`).
//!
//! If headers suffice, a filter truncates the packets, so that the kernel copies only these. The ring is handed over
//! block by block, so a million packets a second take only a few thousand system calls. The kernel counts packets for
//! which there was no room, and the sink is told that count.

use crate::wire::link;
use crate::wire::packet::{Direction, Packet, PacketSink};
use std::ffi::CString;
use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Captured bytes per packet: enough for headers and for messages of DHCP, DNS and TFTP, but not for QUIC's.
const HEADERS: u32 = 320;
/// Captured bytes per packet if messages are followed: the size of the largest packet.
const WHOLE: u32 = 65_535;
const BLOCK: usize = 1 << 20;
const BLOCKS: usize = 128;
const FRAME: usize = 2048;
/// Time after which the kernel hands over a block that is not full, in milliseconds.
const RETIRED_AFTER: u32 = 50;
/// Time within which packets that arrived before the end are handed over, in milliseconds.
const LAST_BLOCK: i32 = 3 * RETIRED_AFTER as i32;
const TOLD_EVERY: Duration = Duration::from_secs(1);
const ALL: &str = "any";

static STOP: AtomicBool = AtomicBool::new(false);

/// Make SIGINT and SIGTERM end the reading of a [`Ring`]; this process is killed when its parent dies.
pub fn end_on_signal() {
    extern "C" fn stop(_: libc::c_int) {
        STOP.store(true, Ordering::Relaxed);
    }
    // SAFETY: all-zero is a valid action; the handler only stores to an atomic. prctl with these arguments touches no
    // memory.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = stop as *const () as usize;
        libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut());
        libc::sigaction(libc::SIGTERM, &raw const action, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// The ring buffer of one interface, or of all.
pub struct Ring {
    socket: OwnedFd,
    start: *mut u8,
    next: usize,
    link: u16,
    loopback: u32,
}

// SAFETY: the mapping belongs to the ring alone, and the ring belongs to one thread at a time.
unsafe impl Send for Ring {}

impl Ring {
    /// Capture from `interface`, or from all interfaces if it is `any`: `whole` packets, or only headers.
    ///
    /// # Errors
    ///
    /// If there is no such interface, or capturing is not permitted.
    pub fn open(interface: &str, whole: bool) -> io::Result<Self> {
        let index = find_index(interface)?;
        let ethernet = index != 0 && is_ethernet(interface)?;
        let kind = if ethernet {
            libc::SOCK_RAW
        } else {
            libc::SOCK_DGRAM
        };
        // SAFETY: socket has no memory arguments; what it returns is a new descriptor, or negative.
        let socket = unsafe {
            let number = libc::socket(libc::AF_PACKET, kind | libc::SOCK_CLOEXEC, 0);
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(number)
        };
        let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
        set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let mut returns = libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: if whole { WHOLE } else { HEADERS },
        };
        let program = libc::sock_fprog {
            len: 1,
            filter: &raw mut returns,
        };
        set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK as u32,
            tp_block_nr: BLOCKS as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: (BLOCK / FRAME * BLOCKS) as u32,
            tp_retire_blk_tov: RETIRED_AFTER,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // SAFETY: a new map at an address that the kernel chooses touches no memory of ours.
        let start = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let length = BLOCK * BLOCKS;
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                flags,
                socket.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = Self {
            socket,
            start: start.cast(),
            next: 0,
            link: if ethernet { link::ETHERNET } else { link::RAW },
            loopback: find_index("lo").unwrap_or(0),
        };
        // SAFETY: all-zero is a valid address, whose fields are set below.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the address has the given length.
        let bound = unsafe {
            let length = size_of::<libc::sockaddr_ll>() as u32;
            libc::bind(ring.socket.as_raw_fd(), (&raw const address).cast(), length)
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(ring)
    }

    /// Deliver packets to `sink` until a signal arrives (see [`end_on_signal`]); `handed` is called after each block.
    ///
    /// # Errors
    ///
    /// If the interface disappears.
    pub fn read<S: PacketSink>(
        &mut self,
        sink: &mut S,
        mut handed: impl FnMut(&mut S),
    ) -> io::Result<()> {
        let mut next = Instant::now() + TOLD_EVERY;
        loop {
            let stopping = STOP.load(Ordering::Relaxed);
            if self.take_block(sink) {
                handed(sink);
            } else if !self.wait(if stopping { LAST_BLOCK } else { 100 })? && stopping {
                sink.dropped(self.count_dropped());
                return Ok(());
            }
            if Instant::now() >= next {
                next += TOLD_EVERY;
                sink.dropped(self.count_dropped());
            }
        }
    }

    /// Wait at most this many milliseconds for a block; return false if there is none.
    fn wait(&self, milliseconds: i32) -> io::Result<bool> {
        let mut poll = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN | libc::POLLERR,
            revents: 0,
        };
        // SAFETY: one entry, which lives longer than the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(true)
            } else {
                Err(error)
            };
        }
        if poll.revents & libc::POLLERR != 0 {
            return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        }
        Ok(ready > 0)
    }

    /// Return the number of packets dropped for lack of room since the last call.
    fn count_dropped(&self) -> u64 {
        // SAFETY: all-zero is a valid value of these counters, and their length is what is said.
        unsafe {
            let mut counts: libc::tpacket_stats_v3 = zeroed();
            let mut length = size_of::<libc::tpacket_stats_v3>() as u32;
            let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
            let socket = self.socket.as_raw_fd();
            libc::getsockopt(
                socket,
                level,
                name,
                (&raw mut counts).cast(),
                &raw mut length,
            );
            u64::from(counts.tp_drops)
        }
    }

    /// Deliver the packets of the next block and return it to the kernel; return false if the kernel still has it.
    fn take_block<S: PacketSink>(&mut self, sink: &mut S) -> bool {
        // SAFETY: `next` is below the number of blocks, so the block is inside the map.
        let block = unsafe { self.start.add(self.next * BLOCK) };
        #[allow(
            clippy::cast_ptr_alignment,
            reason = "a block begins where a page does"
        )]
        let status = block
            .wrapping_add(offset_of!(libc::tpacket_block_desc, hdr))
            .cast::<u32>();
        // SAFETY: the status is the first field of the block's header, aligned as the block is.
        if unsafe { status.read_volatile() } & libc::TP_STATUS_USER == 0 {
            return false;
        }
        fence(Ordering::Acquire);
        // SAFETY: the kernel has handed the block over, and does not touch it until its status is written below.
        let bytes = unsafe { std::slice::from_raw_parts(block, BLOCK) };
        let header = offset_of!(libc::tpacket_block_desc, hdr);
        let word = |at: usize| {
            bytes
                .get(at..at + 4)
                .map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
        };
        let count = word(header + offset_of!(libc::tpacket_hdr_v1, num_pkts));
        let mut at = word(header + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt)) as usize;
        for _ in 0..count {
            let Some(packet) = bytes.get(at..) else { break };
            self.deliver_packet(packet, sink);
            at += word(at + offset_of!(libc::tpacket3_hdr, tp_next_offset)) as usize;
        }
        fence(Ordering::Release);
        // SAFETY: as above; the block is the kernel's again.
        unsafe { status.write_volatile(libc::TP_STATUS_KERNEL) };
        self.next = (self.next + 1) % BLOCKS;
        true
    }

    fn deliver_packet<S: PacketSink>(&self, record: &[u8], sink: &mut S) {
        let word = |at: usize| {
            record
                .get(at..at + 4)
                .map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
        };
        let field = |at: usize| word(at) as usize;
        let address = size_of::<libc::tpacket3_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
        let interface = word(address + offset_of!(libc::sockaddr_ll, sll_ifindex));
        let kind = record.get(address + offset_of!(libc::sockaddr_ll, sll_pkttype));
        let outgoing = kind == Some(&libc::PACKET_OUTGOING);
        // The loopback interface shows every packet twice.
        if outgoing && interface == self.loopback {
            return;
        }
        let length = field(offset_of!(libc::tpacket3_hdr, tp_snaplen));
        let from = field(offset_of!(libc::tpacket3_hdr, tp_mac)) & 0xffff;
        let Some(data) = record.get(from..from + length) else {
            return;
        };
        let seconds = word(offset_of!(libc::tpacket3_hdr, tp_sec));
        let nanos = word(offset_of!(libc::tpacket3_hdr, tp_nsec));
        sink.packet(&Packet {
            link: self.link,
            interface,
            ts: i64::from(seconds) * 1_000_000_000 + i64::from(nanos),
            data,
            wire_len: word(offset_of!(libc::tpacket3_hdr, tp_len)).max(length as u32),
            direction: if outgoing {
                Direction::Out
            } else if interface == self.loopback {
                Direction::Unknown
            } else {
                Direction::In
            },
        });
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping has this length, and nothing borrows from it any more.
        unsafe { libc::munmap(self.start.cast(), BLOCK * BLOCKS) };
    }
}

fn set<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the value has the given length and outlives the call.
    let done = unsafe {
        let length = size_of::<T>() as u32;
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            length,
        )
    };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Return the number of an interface; 0 for all.
fn find_index(interface: &str) -> io::Result<u32> {
    if interface == ALL {
        return Ok(0);
    }
    let name = CString::new(interface).map_err(io::Error::other)?;
    // SAFETY: the name ends with a zero byte.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Whether packets of `interface` begin with an Ethernet header.
///
/// The kernel is queried instead of `/sys`, which shows the network namespace in which it was mounted.
fn is_ethernet(interface: &str) -> io::Result<bool> {
    let name = CString::new(interface).map_err(io::Error::other)?;
    // SAFETY: all-zero is a valid request; the name is truncated to what fits, and a zero byte remains at the end.
    let kind = unsafe {
        let mut request: libc::ifreq = zeroed();
        let room = request.ifr_name.len() - 1;
        for (to, &from) in request.ifr_name[..room].iter_mut().zip(name.as_bytes()) {
            *to = from as libc::c_char;
        }
        let number = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(number);
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) < 0 {
            return Err(io::Error::last_os_error());
        }
        request.ifr_ifru.ifru_hwaddr.sa_family
    };
    Ok([libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&kind))
}
