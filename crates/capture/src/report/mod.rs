//! Write the report: documents and rows, as connections end.

pub mod csv;
pub mod escape;
pub mod output;
