//! Placeholder
pub mod storage;
