//! From objects to what a person reads. Pure: fixed objects and a fixed time give the
//! same text.

pub mod advice;
pub mod drain;
pub mod removal;
pub mod status;
#[cfg(test)]
mod tests;
