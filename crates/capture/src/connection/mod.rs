//! Keep the state of an open connection, in constant space.
//!
//! [`conn::Conn`] is one connection. It has a [`sent::Sent`] and a [`path::Path`] for each end, and an
//! [`account::Account`] of what its time was spent on. This layer stores state and answers questions about it; the
//! layers above decide what a packet means.

pub mod account;
pub mod conn;
pub mod copies;
pub mod hist;
pub mod latency;
pub mod losses;
pub mod numbers;
pub mod pages;
pub mod path;
pub mod queue;
pub mod sent;
pub mod seqspace;
pub mod spent;
pub mod view;
pub mod wait;
pub mod young;
