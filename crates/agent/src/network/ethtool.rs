//! Queries and configures an interface's driver through the requests of `ethtool(8)` (`linux/ethtool.h`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys::check;

const SIOCETHTOOL: libc::c_int = 0x8946;
const GDRVINFO: u32 = 0x03;
const GRINGPARAM: u32 = 0x10;
const SRINGPARAM: u32 = 0x11;
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
const GCHANNELS: u32 = 0x3c;
const SCHANNELS: u32 = 0x3d;
/// The set of strings that names features.
const SET_OF_FEATURES: u32 = 4;
const NAME: usize = 32;
/// Upper bound of the number of features; no kernel has so many.
const MOST_FEATURES: u32 = 1024;

/// Offloads: work on packets that the device, or a later layer, does instead of the sender or receiver.
pub const OFFLOADS: [&str; 12] = [
    "tx-checksum-ipv4",
    "tx-checksum-ip-generic",
    "tx-checksum-ipv6",
    "tx-generic-segmentation",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-udp-segmentation",
    "rx-gro",
    "rx-lro",
    "rx-gro-hw",
];

/// One feature of an interface.
pub struct Feature {
    /// Its name.
    pub name: String,
    /// Whether it is on.
    pub on: bool,
    /// Whether it cannot be changed.
    pub fixed: bool,
}

/// Numbers of queues or descriptors: those in use and the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Number in use.
    pub now: u32,
    /// Maximum number.
    pub most: u32,
}

/// The driver of an interface.
pub struct Ethtool {
    socket: OwnedFd,
    name: String,
}

impl Ethtool {
    /// Opens the interface with this name in this process's network namespace.
    pub fn open(name: &str) -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: a plain system call; the descriptor is new.
        let socket = unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, kind, 0))?) };
        Ok(Self {
            socket,
            name: name.to_owned(),
        })
    }

    /// Sends the words of a request, which the kernel overwrites with its answer.
    fn ask(&self, words: &mut [u32]) -> io::Result<()> {
        if self.name.len() >= libc::IFNAMSIZ {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        // SAFETY: `request` is fully initialised, its name ends with a zero byte, and `words`, to which the kernel
        // writes as much as the request's own numbers say, outlives the call.
        unsafe {
            let mut request = std::mem::zeroed::<libc::ifreq>();
            for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
                *to = from as libc::c_char;
            }
            request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
            check(libc::ioctl(
                self.socket.as_raw_fd(),
                SIOCETHTOOL as _,
                &raw mut request,
            ))?;
        }
        Ok(())
    }

    /// Returns the name of the driver and the bus address of its device.
    pub fn driver(&self) -> io::Result<(String, String)> {
        // `struct ethtool_drvinfo`: driver, version, firmware and bus, 32 characters each, then unused fields.
        let mut words = [0; 49];
        words[0] = GDRVINFO;
        self.ask(&mut words)?;
        Ok((decode_text(&words[1..9]), decode_text(&words[25..33])))
    }

    /// Returns all features and their state in the order of their numbers; a number without a feature has an empty
    /// name.
    fn all_features(&self) -> io::Result<Vec<Feature>> {
        let mut count = [GSSET_INFO, 0, 1 << SET_OF_FEATURES, 0, 0];
        self.ask(&mut count)?;
        let number = count[4].min(MOST_FEATURES);
        let mut names = vec![0; 3 + number as usize * NAME / 4];
        names[..3].copy_from_slice(&[GSTRINGS, SET_OF_FEATURES, number]);
        self.ask(&mut names)?;
        let blocks = number.div_ceil(32);
        let mut states = vec![0; 2 + blocks as usize * 4];
        states[..2].copy_from_slice(&[GFEATURES, blocks]);
        self.ask(&mut states)?;
        let of_bit = |bit: usize| {
            let block = &states[2 + bit / 32 * 4..][..4];
            let has = |word: u32| word >> (bit % 32) & 1 == 1;
            Feature {
                name: decode_text(&names[3 + bit * NAME / 4..][..NAME / 4]),
                on: has(block[2]),
                fixed: !has(block[0]) || has(block[3]),
            }
        };
        Ok((0..number as usize).map(of_bit).collect())
    }

    /// Returns all features and their state.
    pub fn features(&self) -> io::Result<Vec<Feature>> {
        let mut found = self.all_features()?;
        found.retain(|feature| !feature.name.is_empty());
        Ok(found)
    }

    /// Turns those of the named features on or off that can be changed.
    pub fn switch(&self, wanted: &[&str], on: bool) -> io::Result<()> {
        let features = self.all_features()?;
        let blocks = features.len().div_ceil(32);
        let mut request = vec![0; 2 + blocks * 2];
        request[..2].copy_from_slice(&[SFEATURES, blocks as u32]);
        for (bit, feature) in features.iter().enumerate() {
            if !feature.fixed && wanted.contains(&feature.name.as_str()) {
                request[2 + bit / 32 * 2] |= 1 << (bit % 32);
                request[3 + bit / 32 * 2] |= u32::from(on) << (bit % 32);
            }
        }
        self.ask(&mut request)
    }

    /// Returns the number of queues.
    pub fn channels(&self) -> io::Result<Capacity> {
        let mut words = [0; 9];
        words[0] = GCHANNELS;
        self.ask(&mut words)?;
        Ok(Capacity {
            now: words[8].max(words[5]),
            most: words[4].max(words[1]),
        })
    }

    /// Sets the number of queues.
    pub fn set_channels(&self, number: u32) -> io::Result<()> {
        let mut words = [0; 9];
        words[0] = GCHANNELS;
        self.ask(&mut words)?;
        words[0] = SCHANNELS;
        if words[4] == 0 {
            (words[5], words[6]) = (number, number);
        } else {
            words[8] = number;
        }
        self.ask(&mut words)
    }

    /// Returns the number of descriptors in the receive ring and in the transmit ring.
    pub fn rings(&self) -> io::Result<(Capacity, Capacity)> {
        let mut words = [0; 9];
        words[0] = GRINGPARAM;
        self.ask(&mut words)?;
        let used = |at: usize| Capacity {
            now: words[at + 4],
            most: words[at],
        };
        Ok((used(1), used(4)))
    }

    /// Sets the number of descriptors in both rings.
    pub fn set_rings(&self, number: u32) -> io::Result<()> {
        let mut words = [0; 9];
        words[0] = GRINGPARAM;
        self.ask(&mut words)?;
        words[0] = SRINGPARAM;
        (words[5], words[8]) = (number, number);
        self.ask(&mut words)
    }
}

/// Decodes the text in the kernel's words, up to its zero byte.
fn decode_text(words: &[u32]) -> String {
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
