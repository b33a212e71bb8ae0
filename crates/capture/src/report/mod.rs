//! The report: documents and rows, written as connections end.

pub mod csv;
pub mod escape;
pub mod output;
