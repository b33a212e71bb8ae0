//! Make text from captures and file names safe for a terminal: escape control characters.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

/// Whether the character is a control, formatting or invisible character, which can mislead a terminal or a reader.
fn is_active(c: char) -> bool {
    matches!(c,
        '\0'..='\x08' | '\x0b'..='\x1f' | '\x7f'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

/// Return the text with such characters escaped as in JSON: `\u001b`. Line feeds and tabs are kept.
#[must_use]
pub fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_active(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Standard output: text is escaped on a terminal, and unchanged for programs and files. Each write must contain whole
/// characters.
pub struct TerminalSafeWriter<W: Write> {
    out: W,
    terminal: bool,
}

impl<W: Write> TerminalSafeWriter<W> {
    /// Create the writer; `out` is buffered standard output.
    pub fn new(out: W) -> Self {
        Self {
            out,
            terminal: io::stdout().is_terminal(),
        }
    }
}

impl<W: Write> Write for TerminalSafeWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.terminal {
            self.out
                .write_all(escape_controls(&String::from_utf8_lossy(bytes)).as_bytes())?;
        } else {
            self.out.write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::{escape_controls, TerminalSafeWriter};
    use std::io::Write;

    #[test]
    fn what_a_terminal_obeys_is_spelled() {
        assert_eq!(
            escape_controls("a\x1b[31mb\u{9b}2J\n\tc\u{202e}"),
            "a\\u001b[31mb\\u009b2J\n\tc\\u202e"
        );
        assert_eq!(
            escape_controls("[::1]:80 → [/bold]é"),
            "[::1]:80 → [/bold]é"
        );
        assert_eq!(escape_controls("\u{e0041}"), "\\udb40\\udc41");
    }

    #[test]
    fn programs_get_the_bytes_and_terminals_get_signs() {
        let (mut piped, mut seen) = (Vec::new(), Vec::new());
        for (out, terminal) in [(&mut piped, false), (&mut seen, true)] {
            TerminalSafeWriter { out, terminal }
                .write_all("a\x1b[2J".as_bytes())
                .unwrap();
        }
        assert_eq!(piped, b"a\x1b[2J");
        assert_eq!(seen, b"a\\u001b[2J");
    }
}
