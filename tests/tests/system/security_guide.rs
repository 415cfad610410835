//! `docs/security.md`, followed as an operator does: its code blocks as they stand.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use holdfast_tests::cluster::{binary, end_with_parent};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// What takes more looks hangs. An operator is promised ten minutes, with the reading.
const LOOKS: usize = 1_000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// What the blocks have to say, in this order.
const SAID: [&str; 11] = [
    "ca.pem",
    "tls_cert",
    "127.0.0.1:7430",
    "you are cn:ops, an administrator",
    "not allowed: acquire on pay/1",
    "the lock is mine",
    "refused: 122",
    "no lock is held",
    "jobs/2 is held by",
    "is ending",
    "its lock was taken away: 121",
];

/// A shell and all that it started, which end with this.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        // Fails only if all of them have ended by themselves.
        let _ = killpg(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// The blocks of shell commands, in their order.
fn blocks(guide: &str) -> String {
    let mut parts = guide.split("```sh\n").skip(1);
    let block = |part: &str| part.split_once("```").map(|(block, _)| block.to_owned());
    parts.by_ref().filter_map(block).collect()
}

#[test]
fn the_security_guide_works_as_it_stands() -> Result<(), Box<dyn std::error::Error>> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let script = blocks(&fs::read_to_string(guide)?);
    assert!(script.lines().count() > 40, "these are not its blocks: {script}");
    let folder = tempfile::tempdir()?;
    let programs = binary("holdfast");
    let programs = programs.parent().ok_or("the programs lie in no folder")?;
    let path = format!("{}:{}", programs.display(), std::env::var("PATH")?);
    let log = folder.path().join("said");
    let say = || fs::File::options().create(true).append(true).open(&log);
    let mut command = Command::new("bash");
    end_with_parent(&mut command);
    command
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(&folder)
        .env("PATH", path)
        // Whatever a library logs, no secret may be in it.
        .env("HOLDFAST_LOG_LEVEL", "trace")
        .stdin(Stdio::null())
        .stdout(say()?)
        .stderr(say()?)
        .process_group(0);
    let mut shell = Shell(command.spawn()?);

    let mut looks = 0..LOOKS;
    let status = loop {
        let ended = shell.0.try_wait()?;
        if ended.is_some() || looks.next().is_none() {
            break ended;
        }
        sleep(BETWEEN_LOOKS);
    };
    let mut said = String::new();
    fs::File::open(&log)?.read_to_string(&mut said)?;
    assert!(status.is_some_and(|status| status.success()), "{status:?}: {said}");
    let mut rest = said.as_str();
    for words in SAID {
        let Some((_, after)) = rest.split_once(words) else {
            return Err(format!("{words:?} is not said in its place: {said}").into());
        };
        rest = after;
    }
    nothing_tells_a_secret(folder.path())
}

/// No file but their own has a private key or a token: neither a log, nor an answer, nor the data of a node.
fn nothing_tells_a_secret(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let (mut secrets, mut others) = (Vec::new(), Vec::new());
    for file in files_in(folder)? {
        let text = fs::read(&file)?;
        match file.extension().and_then(|kind| kind.to_str()) {
            Some("key" | "token") => secrets.push(String::from_utf8(text)?),
            _ => others.push((file, text)),
        }
    }
    let lines = secrets.iter().flat_map(|secret| secret.lines());
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("-----")).collect();
    assert!(lines.len() >= 13 && others.len() > 20, "{} lines, {others:?}", lines.len());
    for secret in lines {
        // A token without its prefix, too.
        let secret = secret.strip_prefix("hft_").unwrap_or(secret);
        for (file, text) in &others {
            let told = text.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!told, "{} has a secret of {}", file.display(), folder.display());
        }
    }
    Ok(())
}

fn files_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => files.extend(files_in(&entry.path())?),
            kind if kind.is_file() => files.push(entry.path()),
            // A socket.
            _ => {}
        }
    }
    Ok(files)
}
