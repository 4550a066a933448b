//! l
fn main() {}
