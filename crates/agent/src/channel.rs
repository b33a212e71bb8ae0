//! Opens the channel to the controller from inside a machine.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::{sys, vsock};

/// How long to wait for the channel to appear.
const CHANNEL_PATIENCE: Duration = Duration::from_secs(20);

/// A terminal's line discipline holds 4096 bytes and throttles its driver 128 bytes earlier. UML's driver then stops
/// polling its descriptor for good, so the line would never receive anything again.
const TERMINAL_WINDOW: u32 = 3584;

/// The channel to the controller. Input and output may be the same file.
pub struct Channel {
    /// Where requests come from.
    pub input: OwnedFd,
    /// Where answers go.
    pub output: OwnedFd,
    /// Whether the other end may be absent at first (nobody has opened the virtio port yet): an end of file before the
    /// first byte then means "not yet".
    pub may_be_absent: bool,
    /// The most bytes that the channel can hold without losing any; the controller then waits for acknowledgements.
    pub window: Option<u32>,
    /// How often an empty line is written to standard error. If the other side disappears without closing the channel,
    /// as when a network fails, the program that carries the channel notices only when it sends.
    pub alive: Option<Duration>,
    /// Receives the bytes of this channel's next conversation that have been read already.
    pub ahead: Option<File>,
}

pub fn open(spec: &str) -> io::Result<Channel> {
    let (file, window, may_be_absent) = if let Some(name) = spec.strip_prefix("virtio:") {
        (open_port(name)?, None, true)
    } else if let Some(port) = spec.strip_prefix("vsock:") {
        (File::from(open_vsock(port)?), None, false)
    } else {
        let file = File::options()
            .read(true)
            .write(true)
            .open(spec)
            .map_err(|error| sys::add_context(spec, &error))?;
        let mut mode = rustix::termios::tcgetattr(&file)?;
        mode.make_raw();
        rustix::termios::tcsetattr(&file, rustix::termios::OptionalActions::Now, &mode)?;
        (file, Some(TERMINAL_WINDOW), false)
    };
    let output = file.try_clone()?;
    Ok(Channel {
        input: file.into(),
        output: output.into(),
        may_be_absent,
        window,
        alive: None,
        ahead: None,
    })
}

/// Connects to this port of the hypervisor.
pub fn open_vsock(port: &str) -> io::Result<OwnedFd> {
    let number = port.parse().map_err(io::Error::other)?;
    vsock::connect(libc::VMADDR_CID_HOST, number, CHANNEL_PATIENCE)
        .map_err(|error| sys::add_context(format!("vsock port {port}"), &error))
}

/// Opens a virtio-serial port by name. The device announces its ports one by one after its driver has started.
fn open_port(name: &str) -> io::Result<File> {
    let deadline = Instant::now() + CHANNEL_PATIENCE;
    loop {
        for entry in fs::read_dir("/sys/class/virtio-ports")
            .into_iter()
            .flatten()
            .flatten()
        {
            let said = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if said.trim() == name {
                let device = std::path::Path::new("/dev").join(entry.file_name());
                if let Ok(file) = File::options().read(true).write(true).open(&device) {
                    return Ok(file);
                }
            }
        }
        if Instant::now() >= deadline {
            return Err(io::Error::other(format!(
                "no virtio port named {name} within {CHANNEL_PATIENCE:?}"
            )));
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}
