//! `guestmark-agent network vsock`: describes a guest's virtio device for sockets to its hypervisor's kernel.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use guestmark_wire::network::VsockState;

use crate::sys::add_context;
use crate::vsock::read_cid;

const DEVICES: &str = "/sys/bus/virtio/devices";
/// `VIRTIO_ID_VSOCK` of `linux/virtio_ids.h`, as in sysfs.
const DEVICE_ID: &str = "0x0013";

/// Prints the device of this machine; fails if it has none.
pub fn describe() -> io::Result<ExitCode> {
    let cid = read_cid().map_err(|error| add_context("/dev/vsock", &error))?;
    let state = find(Path::new(DEVICES), cid)?;
    let encoded = rmp_serde::to_vec_named(&state).map_err(io::Error::other)?;
    io::stdout().write_all(&encoded)?;
    Ok(ExitCode::SUCCESS)
}

fn find(devices: &Path, cid: u32) -> io::Result<VsockState> {
    for entry in fs::read_dir(devices)?.flatten() {
        let directory = entry.path();
        let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        if read("device").trim() != DEVICE_ID {
            continue;
        }
        let driver = fs::read_link(directory.join("driver"))
            .ok()
            .and_then(|target| Some(target.file_name()?.to_string_lossy().into_owned()));
        return Ok(VsockState {
            cid,
            driver: driver.unwrap_or_default(),
            virtio: read("features").trim().to_owned(),
        });
    }
    Err(io::Error::other(
        "this machine has no virtio device for vsock",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_found_by_its_kind() {
        let root = std::env::temp_dir().join(format!("guestmark-vsock-{}", std::process::id()));
        for (name, kind) in [("virtio0", "0x0001"), ("virtio1", "0x0013")] {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join("device"), format!("{kind}\n")).unwrap();
            fs::write(root.join(name).join("features"), "011\n").unwrap();
        }
        std::os::unix::fs::symlink("../../drivers/its_driver", root.join("virtio1/driver"))
            .unwrap();
        let found = find(&root, 7).unwrap();
        fs::remove_dir_all(root.join("virtio1")).unwrap();
        let missing = find(&root, 7);
        fs::remove_dir_all(&root).unwrap();
        let wanted = VsockState {
            cid: 7,
            driver: "its_driver".to_owned(),
            virtio: "011".to_owned(),
        };
        assert_eq!(found, wanted);
        assert!(missing.is_err());
    }
}
