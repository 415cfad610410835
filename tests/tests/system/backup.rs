//! A backup is taken, the cluster is lost, another one is restored: nobody holds beside a client of the old one, and
//! tokens rise (DESIGN §15; I3, I6, I22).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast::{Client, FencingToken};
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup, binary, free_port};
use holdfast_tests::program::{Ended, Program, run};
use nix::sys::signal::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_mins(1);
/// The longest lease that the clusters here allow.
const TTL_MAX: Duration = Duration::from_secs(3);

fn setup() -> Setup {
    Setup::nodes(3).cluster("ttl_default_ms", 2_000).cluster("ttl_max_ms", TTL_MAX.as_millis())
}

async fn client(cluster: &Cluster) -> Client {
    Client::connect(cluster.endpoints().split(',')).await.unwrap()
}

/// Starts `holdfast …` for this cluster.
fn begin(cluster: &Cluster, arguments: &[&str]) -> Program {
    Program::start("holdfast", &[&["--endpoints", &cluster.endpoints()], arguments].concat())
}

async fn holdfast(cluster: &Cluster, arguments: &[&str]) -> Ended {
    begin(cluster, arguments).end(LIMIT).await
}

async fn backup(cluster: &Cluster, file: &Path) -> Value {
    let ended = holdfast(cluster, &["--json", "cluster", "backup", file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.out).unwrap()
}

/// Runs `holdfastd restore` with the settings of the first node, whose data was lost.
async fn restore(cluster: &mut Cluster, file: &Path, more: &[&str]) -> Ended {
    cluster.wipe(0);
    let config = cluster.nodes()[0].config.to_str().unwrap().to_owned();
    let arguments = ["restore", file.to_str().unwrap(), "--config", &config];
    run("holdfastd", &[&arguments, more].concat()).await
}

/// Values of many locks, all at once: about four kilobytes each.
async fn fill(client: &Client, locks: usize) {
    let set = |number: usize| async move {
        let guard = client.lock(format!("fill/{number:06}")).await.unwrap();
        guard.set_value(vec![7; 4_096]).await.unwrap();
        guard.release().await.unwrap();
    };
    for first in (0..locks).step_by(256) {
        futures_util::future::join_all((first..locks.min(first + 256)).map(set)).await;
    }
}

#[tokio::test]
async fn a_cluster_that_was_lost_goes_on_from_its_backup_without_a_second_holder() {
    let mut cluster = Cluster::start(&setup()).await;
    let old = client(&cluster).await;
    let held = old.lock("jobs/1").await.unwrap();
    held.set_value("half way").await.unwrap();
    let file = cluster.folder().join("day-1.hfb");
    let told = backup(&cluster, &file).await;
    assert_eq!((&told["sessions"], &told["values"]), (&1.into(), &1.into()));
    // The old cluster goes on for a while: tokens that the backup does not know.
    let mut last = held.token();
    for _ in 0..20 {
        let guard = old.lock("jobs/2").await.unwrap();
        last = guard.token();
        guard.release().await.unwrap();
    }
    (0..3).for_each(|index| cluster.kill(index));

    // Tokens begin with the second, those of the old cluster did as well.
    Runtime::system().sleep(Duration::from_millis(1_100)).await;
    let made = restore(&mut cluster, &file, &[]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(made.out.contains("It grants no lock for 3 s from its first leader on"), "{made:?}");
    for index in [1, 2] {
        cluster.retire(index);
    }
    cluster.start_node(0);
    cluster.leader().await;
    let clock = Runtime::system().clock;
    let begun = clock.now();
    // Tries are refused and waits queue; the client of the old cluster has lost its hold before they pass.
    let tried = holdfast(&cluster, &["try", "jobs/1", "--", "true"]).await;
    assert_eq!(tried.code, Some(122), "{tried:?}");
    assert!(tried.err.contains("restored from a backup"), "{tried:?}");
    let shown = holdfast(&cluster, &["cluster", "status"]).await;
    assert!(shown.out.contains("it grants no lock for another"), "{shown:?}");
    let new = client(&cluster).await;
    let guard = new.lock("jobs/1").await.unwrap();
    let waited = clock.now().saturating_since(begun);
    assert!(!held.is_safe(), "the old holder relies on its lock beside the new one");
    assert!(guard.token() > last, "{} after {last}", guard.token());
    let value = guard.value().unwrap();
    assert_eq!((&*value.bytes, value.is_suspect), (&b"half way"[..], true));
    // The part of the wait before the first look is not seen here.
    assert!(waited > TTL_MAX / 2, "{waited:?}");
    guard.set_value("checked").await.unwrap();
    assert!(held.release().await.is_err(), "the new cluster does not know the old grant");
    join_others(&mut cluster).await;
    let third = new.lock("jobs/3").await.unwrap();
    assert!(third.token() > guard.token());
}

/// Two more nodes with empty folders; then any one of the three may be lost.
async fn join_others(cluster: &mut Cluster) {
    for (index, id) in [(1, 2), (2, 3)] {
        cluster.prepare_again(index, id);
        cluster.start_node(index);
        let (node, (listen, peers)) = (id.to_string(), cluster.addresses(index));
        let add = ["cluster", "add", &node, "--advertise", &listen, "--peer-advertise", &peers];
        until_done(cluster, &add).await;
        until_done(cluster, &["cluster", "promote", &node]).await;
    }
    cluster.all_ready().await;
    cluster.kill(0);
    cluster.leader().await;
}

async fn until_done(cluster: &Cluster, arguments: &[&str]) {
    for _ in 0..100 {
        if holdfast(cluster, arguments).await.code == Some(0) {
            return;
        }
        Runtime::system().sleep(Duration::from_millis(100)).await;
    }
    let ended = holdfast(cluster, arguments).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// I3, I37: the same backup twice, an older one after it, and the newer one again; and one from before the sequence began.
#[tokio::test]
async fn tokens_and_numbers_rise_whichever_backup_is_restored_next() {
    let mut cluster = Cluster::prepare(&Setup { nodes: 1, ..setup() });
    cluster.start_node(0);
    cluster.leader().await;
    let files = ["empty.hfb", "older.hfb", "newer.hfb"].map(|name| cluster.folder().join(name));
    let (mut last, mut number) = (FencingToken::from_raw(0), 0);
    assert_eq!(backup(&cluster, &files[0]).await["sequences"], 0);
    for file in &files[1..] {
        last = token_of_a_grant(&cluster).await;
        number = next_number(&cluster).await;
        assert_eq!(backup(&cluster, file).await["sequences"], 1);
    }
    for file in [&files[2], &files[2], &files[1], &files[2], &files[0]] {
        // Tokens begin with the second: a restore is apart from what was before it by one at least.
        Runtime::system().sleep(Duration::from_millis(1_100)).await;
        cluster.kill(0);
        let made = restore(&mut cluster, file, &["--now"]).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        cluster.start_node(0);
        cluster.leader().await;
        let token = token_of_a_grant(&cluster).await;
        assert!(token > last, "{}: {token} after {last}", file.display());
        last = token;
        let next = next_number(&cluster).await;
        assert!(next > number, "{}: {next} after {number}", file.display());
        number = next;
    }
}

async fn next_number(cluster: &Cluster) -> u64 {
    let ended = holdfast(cluster, &["sequence", "next", "a"]).await;
    ended.out.trim().parse().unwrap_or_else(|_| panic!("{ended:?}"))
}

async fn token_of_a_grant(cluster: &Cluster) -> FencingToken {
    let client = client(cluster).await;
    let guard = client.lock("a").await.unwrap();
    let token = guard.token();
    client.close().await.unwrap();
    token
}

/// The backup is under way: its client stands still, the leader dies, and the client goes on.
#[tokio::test]
async fn a_backup_whose_leader_dies_is_whole_or_is_not_there() {
    let mut cluster = Cluster::start(&setup()).await;
    let filler = client(&cluster).await;
    fill(&filler, 2_500).await;
    let mut broke_off = 0;
    for round in 0..3 {
        let folder = cluster.folder().join(format!("round-{round}"));
        fs::create_dir(&folder).unwrap();
        let file = folder.join("night.hfb");
        let leader = cluster.leader().await;
        let mut taking = begin(&cluster, &["cluster", "backup", file.to_str().unwrap()]);
        until_some_came(&folder).await;
        taking.signal(Signal::SIGSTOP);
        cluster.kill(leader);
        taking.signal(Signal::SIGCONT);
        assert!(taking.ends_within(LIMIT).await);
        let ended = taking.end(LIMIT).await;
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|one| one.unwrap().path()).collect();
        if ended.code == Some(0) {
            assert_eq!(left, std::slice::from_ref(&file));
            let verified = run("holdfast", &["backup", "verify", file.to_str().unwrap()]).await;
            assert_eq!(verified.code, Some(0), "{verified:?}");
        } else {
            broke_off += 1;
            assert_eq!(ended.code, Some(123), "{ended:?}");
            assert!(ended.err.contains("the backup broke off after"), "{ended:?}");
            assert_eq!(left, Vec::<PathBuf>::new());
        }
        cluster.start_node(leader);
        cluster.all_ready().await;
    }
    assert!(broke_off > 0, "no leader died in the middle of a backup");
    filler.close().await.unwrap();
}

/// The file beside the place of the backup has bytes.
async fn until_some_came(folder: &Path) {
    let size = |entry: fs::DirEntry| entry.metadata().map_or(0, |found| found.len());
    for _ in 0..10_000 {
        let sizes = fs::read_dir(folder).unwrap().filter_map(Result::ok).map(size);
        if sizes.sum::<u64>() > 0 {
            return;
        }
        Runtime::system().sleep(Duration::from_micros(200)).await;
    }
    panic!("no backup came");
}

/// Each is one clear error, with nothing half-done.
#[tokio::test]
async fn bad_backups_and_bad_places_for_them_are_refused_by_name() {
    let mut cluster = Cluster::prepare(&Setup { nodes: 1, ..setup() });
    cluster.start_node(0);
    cluster.leader().await;
    let filler = client(&cluster).await;
    fill(&filler, 100).await;
    filler.close().await.unwrap();
    let folder = cluster.folder().to_owned();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (good, cut, flipped) = (path("good.hfb"), path("cut.hfb"), path("flipped.hfb"));
    backup(&cluster, Path::new(&good)).await;
    let again = holdfast(&cluster, &["cluster", "backup", &good]).await;
    assert_refused(&again, 125, "good.hfb is there; give another name, or --force");
    assert_eq!(holdfast(&cluster, &["cluster", "backup", &good, "--force"]).await.code, Some(0));
    let nowhere = path("nowhere/good.hfb");
    let away = holdfast(&cluster, &["cluster", "backup", &nowhere]).await;
    assert_refused(&away, 125, "nowhere/good.hfb was not written: No such file or directory");
    assert_full_disk(&cluster).await;
    assert_eq!(mode_of(&good), 0o600);

    let mut bytes = fs::read(&good).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&flipped, &bytes).unwrap();
    cluster.kill(0);
    for (file, text) in [
        (cut.clone(), "cut.hfb: the backup is cut off"),
        (flipped, "flipped.hfb: the backup is damaged: a checksum does not match"),
        (path("node-1.toml"), "node-1.toml: not a backup of a Holdfast cluster"),
    ] {
        assert_refused(&run("holdfast", &["backup", "verify", &file]).await, 122, text);
        let restored = restore(&mut cluster, Path::new(&file), &[]).await;
        assert_refused(&restored, 65, text);
        assert!(!cluster.nodes()[0].data.exists(), "something was made");
    }
    let data = path("other");
    let into = |more: &[&str]| {
        let arguments = ["restore", &good, "--data-dir", &data];
        Program::start("holdfastd", &[&arguments, more].concat()).end(LIMIT)
    };
    assert_refused(&into(&["--epoch", "1"]).await, 65, "--epoch 1 is not above");
    fs::create_dir(&data).unwrap();
    fs::write(Path::new(&data).join("mine"), "").unwrap();
    assert_refused(&into(&[]).await, 73, "other is not empty; a restore makes a new folder");
    fs::remove_file(Path::new(&data).join("mine")).unwrap();
    fs::create_dir(path("other/restoring")).unwrap();
    assert_refused(&into(&[]).await, 73, "is left from a restore that was interrupted");
    fs::remove_dir(path("other/restoring")).unwrap();
    // Tokens begin with the second, and those of this cluster began in the same one.
    Runtime::system().sleep(Duration::from_millis(1_100)).await;
    assert_eq!(into(&[]).await.code, Some(0), "an empty folder is as good as none");
    let left: BTreeSet<_> =
        fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        left.contains(OsStr::new("guard")) && !left.contains(OsStr::new("restoring")),
        "{left:?}"
    );
    // Interrupted before its last step, it is none that a node starts with.
    fs::remove_file(Path::new(&data).join("guard")).unwrap();
    let [listen, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let places = ["--data-dir", &data, "--listen", &listen, "--admin-listen", &admin];
    let started = run("holdfastd", &places).await;
    assert_eq!(started.code, Some(73), "{started:?}");
}

fn assert_refused(ended: &Ended, code: i32, text: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.err.contains(text), "{ended:?}");
    assert_eq!(ended.err.trim().lines().count(), 1, "{ended:?}");
}

fn mode_of(path: &str) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// On a disk that has room for a part of the backup; it is mounted for this one command only.
async fn assert_full_disk(cluster: &Cluster) {
    let (disk, program) = (cluster.folder().join("small"), binary("holdfast"));
    fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=64k small \"$1\" && \"$2\" --endpoints \"$3\" cluster backup \
                  \"$1/night.hfb\"; code=$?; ls -A \"$1\"; exit $code";
    let (disk, program) = (disk.to_str().unwrap(), program.to_str().unwrap());
    let endpoints = cluster.endpoints();
    let mounted = ["--mount", "sh", "-c", script, "sh", disk, program, &endpoints];
    let ended = Program::start_at(&PathBuf::from("/usr/bin/unshare"), &mounted).end(LIMIT).await;
    assert_refused(&ended, 125, "night.hfb was not written: No space left on device");
    assert_eq!(ended.out, "", "a part of it was left");
}
