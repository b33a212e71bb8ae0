//! `guestmark-agent share DIRECTORY`: serves a directory read-only over 9P on standard input and output.
//!
//! Some hypervisors cannot share directories, and other servers identify files by inode numbers, which are ambiguous
//! below a root with several mounts and not stable on an overlay. Here a file is identified by its path. The protocol's
//! messages are described in Linux's `net/9p` and in diod's description of 9P2000.L.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, FileType, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::io::Errno;

use crate::sys;

/// The largest message size that a client may request.
const MOST: u32 = 1 << 20;
/// Size, type and tag.
const HEADER: usize = 7;
/// Size of the header of an answer with data, as the protocol counts it.
const DATA_HEAD: u32 = 24;
const ERROR: u8 = 7;
/// `P9_GETATTR_BASIC`.
const BASIC: u64 = 0x7ff;
const MAGIC: u32 = 0x0102_1997;

struct Node {
    path: PathBuf,
    open: Open,
}

enum Open {
    Not,
    File(File),
    Directory(Vec<(OsString, FileType)>),
}

/// Serves until the client disconnects.
pub fn share(mut arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let (Some(root), None) = (arguments.next(), arguments.next()) else {
        return Err(sys::usage("share DIRECTORY"));
    };
    let mut server = Server {
        root: root.into(),
        nodes: HashMap::new(),
        most: MOST,
    };
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let (mut request, mut answer) = (Vec::new(), Vec::new());
    loop {
        let mut size = [0; 4];
        match input.read_exact(&mut size) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(ExitCode::SUCCESS)
            }
            other => other?,
        }
        let size = u32::from_le_bytes(size);
        if !(HEADER as u32..=MOST).contains(&size) {
            return Err(io::Error::other(format!(
                "the client announced a message of {size} bytes"
            )));
        }
        request.resize(size as usize - 4, 0);
        input.read_exact(&mut request)?;
        server.answer(&request, &mut answer);
        output.write_all(&answer)?;
        output.flush()?;
    }
}

struct Server {
    root: PathBuf,
    nodes: HashMap<u32, Node>,
    most: u32,
}

impl Server {
    fn answer(&mut self, request: &[u8], answer: &mut Vec<u8>) {
        let (kind, tag, body) = (request[0], &request[1..3], &request[3..]);
        answer.clear();
        answer.extend_from_slice(&[0; 4]);
        answer.push(kind.wrapping_add(1));
        answer.extend_from_slice(tag);
        if let Err(error) = self.dispatch(kind, &mut Message(body), answer) {
            answer.truncate(HEADER);
            answer[4] = ERROR;
            let number = error.raw_os_error().unwrap_or(libc::EIO);
            put_u32(answer, number as u32);
        }
        let size = answer.len() as u32;
        answer[..4].copy_from_slice(&size.to_le_bytes());
    }

    fn dispatch(
        &mut self,
        kind: u8,
        request: &mut Message,
        answer: &mut Vec<u8>,
    ) -> io::Result<()> {
        match kind {
            100 => self.version(request, answer),
            104 => self.attach(request, answer),
            110 => self.walk(request, answer),
            24 => self.describe_attributes(request, answer),
            12 => self.open(request, answer),
            116 => self.read(request, answer),
            40 => self.list_entries(request, answer),
            22 => self.read_link_target(request, answer),
            8 => self.describe_filesystem(request, answer),
            120 => {
                self.nodes.remove(&request.take_u32()?);
                Ok(())
            }
            // Every request is answered before the next is read, so there is none to cancel.
            108 => Ok(()),
            // Extended attributes, locks, authentication.
            30 | 52 | 54 | 102 => Err(Errno::OPNOTSUPP.into()),
            _ => Err(Errno::ROFS.into()),
        }
    }

    fn version(&mut self, request: &mut Message, answer: &mut Vec<u8>) -> io::Result<()> {
        let most = request.take_u32()?;
        let known = request.take_text()? == b"9P2000.L";
        self.nodes.clear();
        self.most = most.min(MOST);
        put_u32(answer, self.most);
        put_text(answer, if known { b"9P2000.L" } else { b"unknown" })
    }

    fn attach(&mut self, request: &mut Message, answer: &mut Vec<u8>) -> io::Result<()> {
        let number = request.take_u32()?;
        put_qid(
            answer,
            &self.root,
            self.root.symlink_metadata()?.file_type(),
        );
        self.keep_node(number, self.root.clone());
        Ok(())
    }

    fn keep_node(&mut self, number: u32, path: PathBuf) {
        let open = Open::Not;
        self.nodes.insert(number, Node { path, open });
    }

    fn walk(&mut self, request: &mut Message, answer: &mut Vec<u8>) -> io::Result<()> {
        let (number, new, steps) = (
            request.take_u32()?,
            request.take_u32()?,
            request.take_u16()?,
        );
        let mut path = self.find_node(number)?.path.clone();
        let counted = answer.len();
        put_u16(answer, 0);
        for step in 0..steps {
            let found = self.step(&path, request.take_text()?).and_then(|next| {
                let kind = next.symlink_metadata()?.file_type();
                Ok((next, kind))
            });
            match found {
                Ok((next, kind)) => {
                    put_qid(answer, &next, kind);
                    path = next;
                }
                Err(error) if step == 0 => return Err(error),
                // The answer contains the files up to here; the new number stays unused.
                Err(_) => {
                    answer[counted..counted + 2].copy_from_slice(&step.to_le_bytes());
                    return Ok(());
                }
            }
        }
        answer[counted..counted + 2].copy_from_slice(&steps.to_le_bytes());
        self.keep_node(new, path);
        Ok(())
    }

    fn find_parent(&self, path: &Path) -> PathBuf {
        let above = path.parent().filter(|_| path != self.root);
        above.unwrap_or(path).to_owned()
    }

    /// Resolves one name; never leads above the root.
    fn step(&self, path: &Path, name: &[u8]) -> io::Result<PathBuf> {
        match name {
            b".." => Ok(self.find_parent(path)),
            b"" | b"." => Err(Errno::INVAL.into()),
            name if name.contains(&b'/') || name.contains(&0) => Err(Errno::INVAL.into()),
            // Following links is up to the client.
            _ if !path.symlink_metadata()?.is_dir() => Err(Errno::NOTDIR.into()),
            name => Ok(path.join(std::ffi::OsStr::from_bytes(name))),
        }
    }

    fn describe_attributes(
        &mut self,
        request: &mut Message,
        answer: &mut Vec<u8>,
    ) -> io::Result<()> {
        let path = &self.find_node(request.take_u32()?)?.path;
        let of = path.symlink_metadata()?;
        put_u64(answer, BASIC);
        put_qid(answer, path, of.file_type());
        put_u32(answer, of.mode());
        put_u32(answer, of.uid());
        put_u32(answer, of.gid());
        for number in [of.nlink(), of.rdev(), of.size(), of.blksize(), of.blocks()] {
            put_u64(answer, number);
        }
        for time in [
            [of.atime(), of.atime_nsec()],
            [of.mtime(), of.mtime_nsec()],
            [of.ctime(), of.ctime_nsec()],
        ]
        .as_flattened()
        {
            put_u64(answer, *time as u64);
        }
        // Creation time, generation and version are not known.
        answer.resize(answer.len() + 32, 0);
        Ok(())
    }

    fn open(&mut self, request: &mut Message, answer: &mut Vec<u8>) -> io::Result<()> {
        let (number, flags) = (request.take_u32()?, request.take_u32()? as libc::c_int);
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
            return Err(Errno::ROFS.into());
        }
        let node = self.nodes.get_mut(&number).ok_or(Errno::BADF)?;
        let of = node.path.symlink_metadata()?;
        node.open = open_node(&node.path, &of)?;
        put_qid(answer, &node.path, of.file_type());
        put_u32(answer, 0);
        Ok(())
    }

    fn read(&mut self, request: &mut Message, answer: &mut Vec<u8>) -> io::Result<()> {
        let (number, offset, count) = (
            request.take_u32()?,
            request.take_u64()?,
            request.take_u32()?,
        );
        let count = count.min(self.most.saturating_sub(DATA_HEAD)) as usize;
        let Open::File(file) = &self.find_node(number)?.open else {
            return Err(Errno::BADF.into());
        };
        answer.resize(HEADER + 4 + count, 0);
        let mut got = 0;
        while got < count {
            match file.read_at(&mut answer[HEADER + 4 + got..], offset + got as u64) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        answer.truncate(HEADER + 4 + got);
        answer[HEADER..HEADER + 4].copy_from_slice(&(got as u32).to_le_bytes());
        Ok(())
    }

    fn list_entries(&mut self, request: &mut Message, answer: &mut Vec<u8>) -> io::Result<()> {
        let (number, offset, count) = (
            request.take_u32()?,
            request.take_u64()?,
            request.take_u32()?,
        );
        let count = count.min(self.most.saturating_sub(DATA_HEAD)) as usize;
        let node = self.find_node(number)?;
        let Open::Directory(entries) = &node.open else {
            return Err(Errno::NOTDIR.into());
        };
        put_u32(answer, 0);
        let first = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (name, kind)) in entries.iter().enumerate().skip(first) {
            let before = answer.len();
            let path = match name.as_bytes() {
                b"." => node.path.clone(),
                b".." => self.find_parent(&node.path),
                _ => node.path.join(name),
            };
            put_qid(answer, &path, *kind);
            put_u64(answer, index as u64 + 1);
            answer.push(encode_type(*kind));
            put_text(answer, name.as_bytes())?;
            if answer.len() > HEADER + 4 + count {
                answer.truncate(before);
                break;
            }
        }
        let size = (answer.len() - HEADER - 4) as u32;
        answer[HEADER..HEADER + 4].copy_from_slice(&size.to_le_bytes());
        Ok(())
    }

    fn read_link_target(&mut self, request: &mut Message, answer: &mut Vec<u8>) -> io::Result<()> {
        let target = self.find_node(request.take_u32()?)?.path.read_link()?;
        put_text(answer, target.as_os_str().as_bytes())
    }

    fn describe_filesystem(
        &mut self,
        request: &mut Message,
        answer: &mut Vec<u8>,
    ) -> io::Result<()> {
        let found = rustix::fs::statvfs(&self.find_node(request.take_u32()?)?.path)?;
        put_u32(answer, MAGIC);
        put_u32(answer, found.f_bsize as u32);
        let sizes = [found.f_blocks, found.f_bfree, found.f_bavail];
        for number in sizes.into_iter().chain([found.f_files, found.f_ffree, 0]) {
            put_u64(answer, number);
        }
        put_u32(answer, found.f_namemax as u32);
        Ok(())
    }

    fn find_node(&self, number: u32) -> io::Result<&Node> {
        Ok(self.nodes.get(&number).ok_or(Errno::BADF)?)
    }
}

/// Opens a file or directory; the client's kernel opens anything else by itself.
fn open_node(path: &Path, of: &Metadata) -> io::Result<Open> {
    if of.is_dir() {
        let own = [".", ".."].map(|name| Ok((name.into(), of.file_type())));
        let others = std::fs::read_dir(path)?.map(|entry| {
            let entry = entry?;
            Ok((entry.file_name(), entry.file_type()?))
        });
        let all = own.into_iter().chain(others).collect::<io::Result<_>>()?;
        return Ok(Open::Directory(all));
    }
    if !of.is_file() {
        return Err(Errno::NXIO.into());
    }
    let mut options = File::options();
    options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    Ok(Open::File(options.open(path)?))
}

fn encode_type(kind: FileType) -> u8 {
    match kind {
        kind if kind.is_dir() => libc::DT_DIR,
        kind if kind.is_symlink() => libc::DT_LNK,
        kind if kind.is_file() => libc::DT_REG,
        kind if kind.is_fifo() => libc::DT_FIFO,
        kind if kind.is_socket() => libc::DT_SOCK,
        kind if kind.is_char_device() => libc::DT_CHR,
        _ => libc::DT_BLK,
    }
}

/// The unread part of a request.
struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    fn take_bytes(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count).ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(first)
    }

    fn take_number<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.take_bytes(N)?.try_into().map_err(io::Error::other)
    }

    fn take_u16(&mut self) -> io::Result<u16> {
        Ok(u16::from_le_bytes(self.take_number()?))
    }

    fn take_u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(self.take_number()?))
    }

    fn take_u64(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.take_number()?))
    }

    fn take_text(&mut self) -> io::Result<&'a [u8]> {
        let size = self.take_u16()?;
        self.take_bytes(size.into())
    }
}

fn put_u16(answer: &mut Vec<u8>, number: u16) {
    answer.extend_from_slice(&number.to_le_bytes());
}

fn put_u32(answer: &mut Vec<u8>, number: u32) {
    answer.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(answer: &mut Vec<u8>, number: u64) {
    answer.extend_from_slice(&number.to_le_bytes());
}

fn put_text(answer: &mut Vec<u8>, text: &[u8]) -> io::Result<()> {
    put_u16(answer, text.len().try_into().map_err(io::Error::other)?);
    answer.extend_from_slice(text);
    Ok(())
}

/// Appends the qid, which tells a client a file's type and identity.
fn put_qid(answer: &mut Vec<u8>, path: &Path, kind: FileType) {
    const DIRECTORY: u8 = 0x80;
    const LINK: u8 = 0x02;
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    answer.push(match kind {
        kind if kind.is_dir() => DIRECTORY,
        kind if kind.is_symlink() => LINK,
        _ => 0,
    });
    put_u32(answer, 0);
    put_u64(answer, hasher.finish());
}
