//! `docs/security.md`, followed as an operator does: its code blocks as they stand. No secret is told meanwhile.

use std::error::Error;
use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::v1::client_frame::Body;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::{
    ClientFrame, ClientFrames, KeepAliveRequest, Open, OpenSessionRequest, OpenSessionResponse,
    Resume, SessionKey,
};
use holdfast_tests::cluster::{binary, end_with_parent};
use holdfast_tls::Dialler;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;

use super::secured::{channel, get, side};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// What takes more looks hangs. An operator is promised ten minutes, with the reading.
const LOOKS: usize = 1_000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// The ports of the guide's nodes, for clients and for `/metrics`.
const NODES: [(u16, u16); 3] = [(7420, 7422), (7430, 7432), (7440, 7442)];
/// The script waits before its last block, which ends the nodes, until this test has looked at them.
const SERVED: &str = "served";
const LOOKED: &str = "looked";
/// So many bytes of a session's secret are searched: the beginning, which a message may have too that shortens it.
const SEARCHED: usize = 12;
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

/// The blocks of shell commands, in their order, with a pause before the last.
fn script(guide: &str) -> String {
    let parts = guide.split("```sh\n").skip(1);
    let block = |part: &str| part.split_once("```").map(|(block, _)| block.to_owned());
    let mut blocks: Vec<String> = parts.filter_map(block).collect();
    let pause = format!("touch {SERVED}\nuntil [ -e {LOOKED} ]; do sleep 0.1; done\n");
    blocks.insert(blocks.len().saturating_sub(1), pause);
    blocks.concat()
}

#[test]
fn the_security_guide_works_as_it_stands() -> Result {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let script = script(&fs::read_to_string(guide)?);
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

    let (mut looks, mut secret) = (0..LOOKS, None);
    let status = loop {
        let ended = shell.0.try_wait()?;
        if ended.is_some() || looks.next().is_none() {
            break ended;
        }
        if secret.is_none() && folder.path().join(SERVED).exists() {
            secret = Some(look(folder.path())?);
            fs::write(folder.path().join(LOOKED), "")?;
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
    nothing_tells_a_secret(folder.path(), &secret.ok_or("nobody has looked")?)
}

/// Looks at the nodes while they serve: writes their metrics into the folder, and uses a session in each way that shows its
/// secret. Returns the secret.
fn look(folder: &Path) -> Result<Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(look_as_operator(&folder.join("certs"), folder))
}

async fn look_as_operator(certs: &Path, folder: &Path) -> Result<Bytes> {
    let (ca, ops) = (certs.join("ca.pem"), certs.join("ops.pem"));
    for (_, admin) in NODES {
        let side = side(&ca, Some(&ops), "http/1.1");
        let metrics = get(&format!("127.0.0.1:{admin}"), &side, "/metrics", None).await;
        assert!(metrics.contains("holdfast_ready"), "{metrics}");
        fs::write(folder.join(format!("metrics-{admin}")), metrics)?;
    }
    let dialler = Dialler::to_servers(side(&ca, Some(&ops), "h2"), None);
    let (client, opened) = open_at_the_leader(&dialler).await?;
    let key = opened.session.ok_or("a session without a key")?;
    show(client, &key, opened.cluster_id).await?;
    Ok(key.secret)
}

async fn open_at_the_leader(
    dialler: &Dialler,
) -> Result<(LockServiceClient<Channel>, OpenSessionResponse)> {
    for _ in 0..LOOKS {
        for (clients, _) in NODES {
            let channel = channel(&format!("127.0.0.1:{clients}"), dialler.clone()).await?;
            let mut client = LockServiceClient::new(channel);
            // The other nodes refuse.
            if let Ok(answer) = client.open_session(OpenSessionRequest::default()).await {
                return Ok((client, answer.into_inner()));
            }
        }
        sleep(BETWEEN_LOOKS);
    }
    Err("no node leads".into())
}

/// Shows a session's key: as it is, with a secret that is wrong and one that is too short, and on a stream.
async fn show(
    mut client: LockServiceClient<Channel>,
    key: &SessionKey,
    cluster_id: Bytes,
) -> Result {
    let SessionKey { session_id, secret } = key.clone();
    let short = secret.slice(..SEARCHED);
    let wrong = [&short[..], &[0; 16][SEARCHED..]].concat();
    for (shown, is_right) in [(secret.clone(), true), (short, false), (wrong.into(), false)] {
        let session = Some(SessionKey { session_id, secret: shown });
        let answer = client.keep_alive(KeepAliveRequest { session }).await;
        assert_eq!(answer.is_ok(), is_right, "{answer:?}");
    }
    let resume = Resume { session_id, secret, cluster_id, ..Resume::default() };
    let open = Body::Open(Open { resume: Some(resume), ..Open::default() });
    let frames = vec![ClientFrame { done_below: 0, body: Some(open) }];
    let first = tokio_stream::once(ClientFrames { frames });
    // An end of the stream would overtake the answer.
    let mut answers = client.session(first.chain(tokio_stream::pending())).await?.into_inner();
    answers.message().await?.ok_or("no answer to a resume")?;
    Ok(())
}

/// Each form in which a log, an error or a metric would have the beginning of a session's secret.
fn forms(secret: &Bytes) -> [Vec<u8>; 4] {
    let start = secret.slice(..SEARCHED);
    let numbers = format!("{:?}", start.to_vec());
    let quoted = format!("{start:?}");
    let within = |text: &str, first: &str, last: &str| {
        text.trim_start_matches(first).trim_end_matches(last).as_bytes().to_vec()
    };
    [
        hex::encode(&start).into_bytes(),
        within(&numbers, "[", "]"),
        within(&quoted, "b\"", "\""),
        start.to_vec(),
    ]
}

/// No file but their own has a private key, a token or a session's secret: neither a log, nor an answer, nor the metrics
/// or the data of a node.
fn nothing_tells_a_secret(folder: &Path, of_session: &Bytes) -> Result {
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
    // A token without its prefix, too.
    let lines = lines.into_iter().map(|line| line.strip_prefix("hft_").unwrap_or(line));
    let secrets = lines.map(|line| line.as_bytes().to_vec()).chain(forms(of_session));
    for secret in secrets {
        for (file, text) in &others {
            let told = text.windows(secret.len()).any(|part| part == secret);
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
