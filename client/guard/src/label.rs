//! The name that a client gives itself.

/// `host:pid`.
pub fn default_label() -> String {
    let uname = rustix::system::uname();
    format!("{}:{}", uname.nodename().to_string_lossy(), std::process::id())
}
