//! Attribute the time between two packets to causes.
//!
//! [`update`] counts a packet and asks [`attribution`] to explain the time before it. That asks, in this order, whether
//! a loss was repaired ([`recovery`]), what released the sender ([`explanation`]), whether it waited for the other
//! end's [`window`] or was held up by path or buffer ([`sender`]), and, if neither sent, which end owed the next packet
//! ([`debt`]).

pub mod attribution;
pub mod debt;
pub mod explanation;
pub mod recovery;
pub mod sender;
pub mod update;
pub mod window;
