//! Failures of calls, in the form that the controller gets.

use std::io;

use guestmark_wire::{Failure, Kind};

/// Makes a failure that no system call caused.
pub fn failure(kind: Kind, message: &str) -> Failure {
    Failure {
        kind,
        message: message.to_owned(),
        errno: None,
    }
}

/// Makes the failure of a system call.
pub fn os_failure(what: &str, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => Kind::NotFound,
        io::ErrorKind::PermissionDenied => Kind::PermissionDenied,
        _ => Kind::Os,
    };
    Failure {
        kind,
        message: format!("{what}: {error}"),
        errno: error.raw_os_error(),
    }
}

/// Makes the failure of a source that has fewer bytes than requested.
pub fn source_too_short(name: &str, found: u64, wanted: u64) -> Failure {
    failure(
        Kind::BadRequest,
        &format!("{name} is too short: it has {found} of the {wanted} bytes requested"),
    )
}
