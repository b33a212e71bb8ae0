//! Read the wire format: bytes of a capture → packets → segments.
//!
//! Readers ([`pcap`], [`pcapng`], [`packetlist`], [`live`]) extract packets from an [`input::Source`]; [`decode`] turns
//! each into a [`packet::Segment`]. Modules here process one packet at a time and keep no state, except what a file
//! format requires (sections, interfaces, names of hosts).

pub mod contents;
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
