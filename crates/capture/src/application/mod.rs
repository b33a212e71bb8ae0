//! Follow the messages of protocols inside connections: requests and their answers.
//!
//! Over TCP, [`requests`] reads each direction in order ([`stream`]) and follows HTTP/1 ([`http`]) and TLS handshakes
//! ([`tls`]). Over UDP, [`datagrams`] follows DHCP, TFTP, QUIC handshakes and questions to name servers ([`dns`]).

pub mod datagrams;
pub mod dns;
pub mod exchange;
pub mod flow;
pub mod http;
pub mod requests;
pub mod served;
pub mod stream;
pub mod tls;
