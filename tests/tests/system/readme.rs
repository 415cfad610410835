//! The README, followed as a reader does: the server without settings, a first lock, the example.

use std::error::Error;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output};
use std::thread::sleep;
use std::time::Duration;

use holdfast_tests::cluster::{binary, end_with_parent};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The address on which the README's server listens.
const DEFAULT_ADDRESS: &str = "127.0.0.1:7420";

/// `holdfastd` without any settings, in a folder of its own; dropping this ends it.
struct Server {
    process: Child,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start() -> Result<Self> {
        if let Err(error) = TcpListener::bind(DEFAULT_ADDRESS) {
            return Err(format!("the README's {DEFAULT_ADDRESS} is needed: {error}").into());
        }
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(binary("holdfastd"));
        end_with_parent(&mut command);
        let process = command.current_dir(&folder).spawn()?;
        let server = Self { process, _folder: folder };
        for _ in 0..100 {
            match TcpStream::connect(DEFAULT_ADDRESS) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                other => return Ok(other.map(|_| server)?),
            }
            sleep(Duration::from_millis(100));
        }
        Err("holdfastd did not listen within 10 s".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The output of a command, if it succeeded.
fn said(output: Output) -> Result<String> {
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("it ended with {}: {errors}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn the_readme_works_as_it_stands() -> Result {
    let _server = Server::start()?;

    let script = r#"echo "the lock is mine, token $HOLDFAST_TOKEN""#;
    let first_lock = Command::new(binary("holdfast"))
        .args(["lock", "nightly", "--", "sh", "-c", script])
        .output()?;
    let first_lock = said(first_lock)?;
    let token = first_lock.trim_end().strip_prefix("the lock is mine, token ");
    assert!(token.is_some_and(|token| token.parse::<u64>().is_ok()), "it said {first_lock:?}");

    let example = said(Command::new(binary("examples/readme")).output()?)?;
    assert!(example.contains("orders/42"), "it said {example:?}");
    Ok(())
}
