//! Look up port names, first in the system's services file, then among the built-in ones that published results need.

use std::collections::HashMap;

/// Old Wireshark's name for the port of Python's HTTP server, which no Debian services file lists.
const BUILT_IN: [(&str, u16, &str); 2] = [("irdmi", 8000, "tcp"), ("irdmi", 8000, "udp")];

/// A table of port names.
#[derive(Debug, Default)]
pub struct Services {
    names: HashMap<(u16, bool), String>,
    ports: HashMap<String, u16>,
}

impl Services {
    /// Read the system's services file.
    #[must_use]
    pub fn system() -> Self {
        // A services file has a few hundred lines; without one there are only the built-in names.
        Self::parse(&std::fs::read_to_string("/etc/services").unwrap_or_default())
    }

    /// Parse the text of a services file (see services(5)); the first name of a port wins.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut out = Self::default();
        for line in text.lines() {
            let mut words = line
                .split('#')
                .next()
                .unwrap_or_default()
                .split_whitespace();
            let (Some(name), Some((port, protocol))) =
                (words.next(), words.next().and_then(|w| w.split_once('/')))
            else {
                continue;
            };
            let Ok(port) = port.parse() else { continue };
            out.add(name, port, protocol);
            for alias in words {
                out.ports.entry(alias.to_owned()).or_insert(port);
            }
        }
        for (name, port, protocol) in BUILT_IN {
            out.add(name, port, protocol);
        }
        out
    }

    fn add(&mut self, name: &str, port: u16, protocol: &str) {
        let tcp = protocol == "tcp";
        if tcp || protocol == "udp" {
            self.names
                .entry((port, tcp))
                .or_insert_with(|| name.to_owned());
        }
        self.ports.entry(name.to_owned()).or_insert(port);
    }

    /// Return the port's name, or its number.
    #[must_use]
    pub fn name(&self, port: u16, tcp: bool) -> String {
        self.names
            .get(&(port, tcp))
            .cloned()
            .unwrap_or_else(|| port.to_string())
    }

    /// Return the port with that name or number.
    #[must_use]
    pub fn port(&self, text: &str) -> Option<u16> {
        text.parse().ok().or_else(|| self.ports.get(text).copied())
    }
}
