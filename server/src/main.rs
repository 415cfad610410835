//! holdfastd
fn main() {}
