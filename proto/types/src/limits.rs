//! The bounds of one request. They are no settings: old entries of the log were checked against them.

/// Most names in one request.
///
/// Source: DESIGN §6.
pub const NAMES_MAX: usize = 64;

/// Largest value of a lock, bytes.
///
/// Source: DESIGN §4.
pub const VALUE_BYTES_MAX: usize = 4 * 1024;

/// Most rows of one import. A caller with more rows sends several imports.
///
/// Source: so many names of 512 bytes fit into an entry of the log.
pub const IMPORT_ROWS_MAX: usize = 64;
/// The largest head start of a request, milliseconds: 10 minutes. Nobody who waits is overtaken by one that comes later than
/// that.
///
/// Source: DESIGN §16.
pub const HEAD_START_MAX_MS: u64 = 600_000;
