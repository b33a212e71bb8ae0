//! Who is slow in this trace: exact statistics of every connection in a packet capture, in one pass and bounded memory.
//!
//! A reader ([`pcap`], [`pcapng`], [`packetlist`]) takes packets out of a [`input::Source`], [`decode`] makes segments of
//! them, the [`tracker`] counts them into connections ([`conn`]), and a connection that is over becomes a [`summary`].
//! [`analysis`] ties these together; [`truth`] says what limits the result.

pub mod ahead;
pub mod analysis;
pub mod cause;
pub mod clocks;
pub mod command;
pub mod conn;
pub mod csv;
pub mod datagrams;
pub mod decode;
pub mod dns;
pub mod endpoint;
pub mod evidence;
pub mod exchange;
pub mod explanation;
pub mod fault;
pub mod figures;
pub mod filter;
pub mod front;
pub mod guilty;
pub mod half;
pub mod hist;
pub mod host;
pub mod http;
pub mod inert;
pub mod info;
pub mod input;
pub mod ip;
pub mod largest;
pub mod latency;
pub mod live;
pub mod loss;
pub mod mapped;
pub mod memory;
pub mod numbering;
pub mod options;
pub mod output;
pub mod packet;
pub mod packetlist;
pub mod pages;
pub mod path;
pub mod pcap;
pub mod pcapng;
pub mod points;
pub mod queue;
pub mod requests;
pub mod room;
pub mod sent;
pub mod seqspace;
pub mod served;
pub mod services;
pub mod side;
pub mod summary;
pub mod tls;
pub mod tracker;
pub mod truth;
pub mod tunnels;
pub mod twins;
pub mod view;
pub mod watch;
pub mod wiretime;
pub mod young;
