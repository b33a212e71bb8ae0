//! Read the wire format: bytes of a capture → packets → segments.
//!
//! Readers ([`pcap`], [`pcapng`], [`packetlist`], [`live`]) take packets out of a [`input::Source`]; [`decode`] makes a
//! [`packet::Segment`] of each. Modules here look at one packet and remember nothing from one to the next, except what
//! a file format requires (sections, interfaces, names of hosts).

pub mod decode;
pub mod fault;
pub mod filter;
pub mod heads;
pub mod host;
pub mod info;
pub mod input;
pub mod ip;
pub mod link;
pub mod live;
pub mod message;
pub mod options;
pub mod packet;
pub mod packetlist;
pub mod pcap;
pub mod pcapng;
pub mod services;
pub mod tunnels;
pub mod wiretime;
