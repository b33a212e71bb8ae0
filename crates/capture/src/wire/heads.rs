//! Find where the heads of HTTP/1 messages begin and end, and how their bodies end (RFC 9112, 6.3).

const METHODS: [&str; 9] = [
    "GET ", "POST ", "PUT ", "HEAD ", "DELETE ", "OPTIONS ", "PATCH ", "CONNECT ", "TRACE ",
];
const ANSWER: &str = "HTTP/1.";
/// How the end of a body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// After this many bytes.
    Known(u64),
    /// By its last chunk.
    Chunked,
    /// By the end of the connection, or not known.
    Open,
}

/// Whether a request begins here.
#[inline]
#[must_use]
pub fn is_request(bytes: &[u8]) -> bool {
    METHODS
        .iter()
        .any(|method| bytes.starts_with(method.as_bytes()))
}

/// Whether an answer begins here.
#[must_use]
pub fn is_answer(bytes: &[u8]) -> bool {
    bytes.starts_with(ANSWER.as_bytes())
}

/// Whether these bytes may be the beginning of a request or, if `request` is false, of an answer.
#[must_use]
pub fn may_begin(bytes: &[u8], request: bool) -> bool {
    let fits = |start: &str| {
        let length = start.len().min(bytes.len());
        bytes[..length] == start.as_bytes()[..length]
    };
    !bytes.is_empty() && (request && METHODS.into_iter().any(fits) || !request && fits(ANSWER))
}

/// Return the end of a head: the position behind its empty line. Lines may also end with a bare line feed.
#[must_use]
pub fn find_end(bytes: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', bytes).find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// Return how the body after a complete head ends, unless its request excludes a body.
#[must_use]
pub fn find_body_length(head: &[u8]) -> Length {
    let mut lines = head.split_inclusive(|&byte| byte == b'\n');
    let first = lines.next().unwrap_or(&[]);
    let mut length = None;
    for line in lines {
        // Only few lines are examined, and none are copied.
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            length = std::str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse().ok());
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let chunked = value.to_ascii_lowercase();
            if chunked.windows(7).any(|word| word == b"chunked") {
                return Length::Chunked;
            }
        }
    }
    let status = first
        .strip_prefix(ANSWER.as_bytes())
        .and_then(|rest| rest.get(2..5));
    match (status, length) {
        (Some([b'1', ..] | b"204" | b"304"), _) | (None, None) => Length::Known(0),
        (_, Some(length)) => Length::Known(length),
        (Some(_), None) => Length::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_line_ends_a_head() {
        assert_eq!(find_end(b"GET / HTTP/1.1\r\nA: b\r\n\r\nbody"), Some(24));
        assert_eq!(find_end(b"GET / HTTP/1.1\n\nbody"), Some(16));
        assert_eq!(find_end(b"GET / HTTP/1.1\r\nA: b\r\n\r"), None);
    }
}
