//! Read a file or standard input, plain or compressed, through one buffer that fits into the second-level cache.
//!
//! The file is not mapped into memory: each record has to be read to find the next one, so waiting for main memory at
//! every step would take longer than copying, for which the processor prefetches.

use std::fs::File;
use std::io::{self, Read};

const BUFFER: usize = 256 * 1024;
/// Maximum size of the buffer, which may grow to hold one record.
pub const MAX_RECORD: usize = 16 * 1024 * 1024;

/// How the input was compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip, any number of members.
    Gzip,
    /// Zstandard, any number of frames.
    Zstd,
    /// xz, any number of streams.
    Xz,
    /// bzip2, any number of streams.
    Bzip2,
}

impl Compression {
    /// Recognise the compression by the first bytes.
    fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Self::Bzip2,
            _ => Self::None,
        }
    }

    /// Return its name in the JSON document.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
            Self::Xz => Some("xz"),
            Self::Bzip2 => Some("bzip2"),
        }
    }
}

/// A file that must not become shorter while it is read.
struct NonShrinkingFile {
    file: File,
    expected: u64,
}

impl Read for NonShrinkingFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read(buffer)?;
        if got == 0 && self.expected > 0 {
            return Err(io::Error::other(
                "the file became shorter while it was read",
            ));
        }
        self.expected = self.expected.saturating_sub(got as u64);
        Ok(got)
    }
}

/// Memory limit for the dictionary of an xz stream.
const XZ_MEMORY: u64 = 128 << 20;

/// A reader with a window of unread bytes, which knows its offset.
pub struct Source<'a> {
    inner: Box<dyn Read + 'a>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    offset: u64,
    ended: bool,
    failed: Option<(io::ErrorKind, String)>,
    /// How the input was compressed; offsets count decompressed bytes.
    pub compression: Compression,
}

impl<'a> Source<'a> {
    /// Open a file, or standard input for `-`.
    pub fn open(name: &str) -> io::Result<Source<'static>> {
        if name == "-" {
            return Source::new(Box::new(io::stdin().lock()));
        }
        let file = File::open(name)?;
        let about = file.metadata()?;
        if about.is_dir() {
            return Err(io::Error::other("is a directory, not a capture file"));
        }
        let expected = if about.is_file() { about.len() } else { 0 };
        Source::new(Box::new(NonShrinkingFile { file, expected }))
    }

    /// Read from any source; the input is decompressed if it begins like a compressed file.
    pub fn new(inner: Box<dyn Read + 'a>) -> io::Result<Self> {
        let mut source = Self {
            inner,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            offset: 0,
            ended: false,
            failed: None,
            compression: Compression::None,
        };
        source.need(6)?;
        let compression = Compression::of(source.data());
        if compression == Compression::None {
            return Ok(source);
        }
        let head = io::Cursor::new(source.data().to_vec());
        let whole = head.chain(source.inner);
        let inner: Box<dyn Read + 'a> = match compression {
            Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(whole)),
            Compression::Zstd => Box::new(zstd::stream::read::Decoder::new(whole)?),
            Compression::Bzip2 => Box::new(bzip2::read::MultiBzDecoder::new(whole)),
            _ => {
                let flags = liblzma::stream::CONCATENATED;
                let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, flags)?;
                Box::new(liblzma::read::XzDecoder::new_stream(whole, stream))
            }
        };
        Ok(Self {
            inner,
            buffer: source.buffer,
            start: 0,
            end: 0,
            offset: 0,
            ended: false,
            failed: None,
            compression,
        })
    }

    /// Return the unread bytes in the buffer.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Return the offset of the first unread byte.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Mark the first `n` unread bytes as used.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        let n = n.min(self.end - self.start);
        self.start += n;
        self.offset += n as u64;
    }

    /// Read until the buffer has at least `n` bytes; return `false` if the input ends before. At most [`MAX_RECORD`].
    ///
    /// An error of the input is returned only if fewer than `n` bytes precede it, and then on every call.
    pub fn need(&mut self, n: usize) -> io::Result<bool> {
        if n > MAX_RECORD {
            return Err(io::Error::other("a record is larger than 16 MiB"));
        }
        while self.end - self.start < n && !self.ended {
            self.fill(n);
        }
        match &self.failed {
            Some((kind, text)) if self.end - self.start < n => {
                Err(io::Error::new(*kind, text.clone()))
            }
            _ => Ok(self.end - self.start >= n),
        }
    }

    fn fill(&mut self, n: usize) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.buffer.len() < n {
            self.buffer.resize(n, 0);
        }
        match self.inner.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.ended = true,
            Ok(got) => self.end += got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                self.failed = Some((e.kind(), e.to_string()));
                self.ended = true;
            }
        }
    }
}
