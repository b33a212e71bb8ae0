//! Heads of messages: what HTTP/1 asks for and how long the body is (RFC 9112, 6.3), and the name that TLS asks for.

const METHODS: [&str; 9] = [
    "GET ", "POST ", "PUT ", "HEAD ", "DELETE ", "OPTIONS ", "PATCH ", "CONNECT ", "TRACE ",
];
const ANSWER: &str = "HTTP/1.";
const MOST_NAME: usize = 120;

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// After so many bytes.
    Known(u64),
    /// With the last of its chunks.
    Chunked,
    /// With the connection, or nobody knows.
    Open,
}

/// What a head says.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// Method and target of a request.
    pub name: String,
    /// The status of an answer.
    pub status: Option<u16>,
    /// The body that follows, unless status or request say that none does.
    pub length: Length,
}

/// Does a request begin here?
#[inline]
#[must_use]
pub fn is_request(bytes: &[u8]) -> bool {
    METHODS
        .iter()
        .any(|method| bytes.starts_with(method.as_bytes()))
}

/// Does an answer begin here?
#[must_use]
pub fn is_answer(bytes: &[u8]) -> bool {
    bytes.starts_with(ANSWER.as_bytes())
}

/// May a request, or an answer, begin with these bytes and others that follow?
#[must_use]
pub fn may_begin(bytes: &[u8], request: bool) -> bool {
    let fits = |start: &str| {
        let length = start.len().min(bytes.len());
        bytes[..length] == start.as_bytes()[..length]
    };
    !bytes.is_empty() && (request && METHODS.into_iter().any(fits) || !request && fits(ANSWER))
}

/// Where a head ends: behind its empty line, which a bare line feed may end, too.
#[must_use]
pub fn end_of(bytes: &[u8]) -> Option<usize> {
    let mut feeds = (0..bytes.len()).filter(|&at| bytes[at] == b'\n');
    feeds.find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// Read a head, whole or as far as it was captured; `None` where it is none.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<Head> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let first = lines.next()?;
    let asks = is_request(bytes);
    if !asks && !is_answer(bytes) {
        return None;
    }
    let (mut length, mut chunked) = (None, false);
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.to_ascii_lowercase().contains("chunked");
        }
    }
    let mut words = first.split_ascii_whitespace();
    let (word, next) = (words.next()?, words.next().unwrap_or(""));
    Some(Head {
        name: if asks {
            let target: String = next.chars().take(MOST_NAME).collect();
            format!("{word} {target}")
        } else {
            String::new()
        },
        status: if asks { None } else { next.parse().ok() },
        length: match (chunked, length) {
            (true, _) => Length::Chunked,
            (false, Some(length)) => Length::Known(length),
            (false, None) if asks => Length::Known(0),
            (false, None) => Length::Open,
        },
    })
}

/// The name in a TLS client's first message, as far as its first segment holds that (RFC 6066, 3).
#[must_use]
pub fn server_name(record: &[u8]) -> Option<String> {
    let two = |at: usize| {
        Some(usize::from(u16::from_be_bytes([
            *record.get(at)?,
            *record.get(at + 1)?,
        ])))
    };
    // Headers of record and message, version, random; then what has lengths.
    let session = 5 + 4 + 2 + 32;
    let ciphers = session + 1 + usize::from(*record.get(session)?);
    let compressions = ciphers + 2 + two(ciphers)?;
    let mut at = compressions + 1 + usize::from(*record.get(compressions)?) + 2;
    loop {
        let (kind, length) = (two(at)?, two(at + 2)?);
        if kind == 0 {
            let name = record.get(at + 9..at + 9 + two(at + 7)?)?;
            let name = String::from_utf8_lossy(name);
            return Some(name.chars().take(MOST_NAME).collect());
        }
        at += 4 + length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_say_how_their_bodies_end() {
        let head = |text: &str| read(text.as_bytes()).unwrap();
        let asked = head("POST /a?b HTTP/1.1\r\nContent-Length: 12\r\n\r\n");
        assert_eq!(
            (asked.name.as_str(), asked.length),
            ("POST /a?b", Length::Known(12))
        );
        assert_eq!(head("GET / HTTP/1.1\r\n\r\n").length, Length::Known(0));
        let both = head("HTTP/1.1 200 OK\ncontent-length: 5\nTransfer-Encoding: gzip, chunked\n\n");
        assert_eq!((both.status, both.length), (Some(200), Length::Chunked));
        assert_eq!(head("HTTP/1.0 404 none\r\n\r\n").length, Length::Open);
        assert_eq!(read(b"SSH-2.0\r\n\r\n"), None);
    }

    #[test]
    fn an_empty_line_ends_a_head() {
        assert_eq!(end_of(b"GET / HTTP/1.1\r\nA: b\r\n\r\nbody"), Some(24));
        assert_eq!(end_of(b"GET / HTTP/1.1\n\nbody"), Some(16));
        assert_eq!(end_of(b"GET / HTTP/1.1\r\nA: b\r\n\r"), None);
    }
}
