//! Nodes that join by themselves (`join = "auto"`, DESIGN §15), as a `StatefulSet` runs them: each comes back under its own
//! address, with the volume it had or with an empty one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast::Client;
use holdfast_runtime::Runtime;
use holdfast_tests::admin::metric;
use holdfast_tests::cluster::Place;
use holdfast_tests::program::{Program, run};
use serde_json::Value;

const LIMIT: Duration = Duration::from_mins(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// A leader that was acknowledged by a majority within this time, milliseconds, has one.
const QUORUM_LATELY_MS: u64 = 3_000;
/// The exit code of a node that is no member any more.
const REMOVED: Option<i32> = Some(77);

/// One ordinal of a set.
struct Pod {
    place: Place,
    volume: PathBuf,
    process: Option<Program>,
}

struct Pods {
    pods: Vec<Pod>,
    folder: tempfile::TempDir,
}

/// A member, as the leader shows it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    node: u64,
    votes: bool,
    peer: String,
}

impl Pods {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pod = |number: u32| Pod {
            place: Place::on_loopback(),
            volume: folder.path().join(format!("volume-{number}")),
            process: None,
        };
        Self { pods: (0..3).map(pod).collect(), folder }
    }

    /// What every process of an ordinal is started with.
    fn settings(&self, ordinal: usize) -> Vec<String> {
        let Pod { place, volume, .. } = &self.pods[ordinal];
        let member = |pod: &Pod| format!("{}/{}", pod.place.advertise, pod.place.peer_advertise);
        let members: Vec<String> = self.pods.iter().map(member).collect();
        let flag = |name: &str, value: &str| format!("--{name}={value}");
        vec![
            flag("join", "auto"),
            flag("members", &members.join(",")),
            flag("listen", &place.listen),
            flag("peer-listen", &place.peer_listen),
            flag("admin-listen", &place.admin_listen),
            flag("advertise", &place.advertise),
            flag("peer-advertise", &place.peer_advertise),
            flag("data-dir", &volume.display().to_string()),
            flag("reserve-bytes", "0"),
        ]
    }

    fn start(&mut self, ordinal: usize) {
        let settings = self.settings(ordinal);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        self.pods[ordinal].process = Some(Program::start("holdfastd", &settings));
    }

    fn kill(&mut self, ordinal: usize) {
        // Dropping it kills it.
        self.pods[ordinal].process = None;
    }

    fn lose_volume(&self, ordinal: usize) {
        std::fs::remove_dir_all(&self.pods[ordinal].volume).unwrap();
    }

    /// Says at the first ordinal that it forms the cluster; the exit code.
    async fn init(&self) -> Option<i32> {
        let settings = self.settings(0);
        let arguments = ["init"].into_iter().chain(settings.iter().map(String::as_str));
        run("holdfastd", &arguments.collect::<Vec<_>>()).await.code
    }

    fn endpoints(&self) -> String {
        let all: Vec<&str> = self.pods.iter().map(|pod| pod.place.listen.as_str()).collect();
        all.join(",")
    }

    fn peer(&self, ordinal: usize) -> String {
        self.pods[ordinal].place.peer_advertise.clone()
    }

    /// The members, while some node leads and hears a majority.
    async fn members(&self) -> Option<BTreeSet<Shown>> {
        let endpoints = self.endpoints();
        let arguments =
            ["--endpoints", &endpoints, "cluster", "status", "--json", "--timeout", "2s"];
        let ended = run("holdfast", &arguments).await;
        let status: Value = serde_json::from_str(&ended.out).ok()?;
        if status["quorum_ms"].as_u64()? > QUORUM_LATELY_MS {
            return None;
        }
        let shown = |member: &Value| {
            Some(Shown {
                node: member["node"].as_u64()?,
                votes: member["role"].as_str()? != "learner",
                peer: member["peer_advertise"].as_str()?.to_owned(),
            })
        };
        status["members"].as_array()?.iter().map(shown).collect()
    }

    /// Waits until the members are as wanted.
    async fn until(&self, wanted: impl Fn(&BTreeSet<Shown>) -> bool) -> BTreeSet<Shown> {
        let runtime = Runtime::system();
        let give_up_at = runtime.clock.now() + LIMIT;
        loop {
            let members = self.members().await;
            match members {
                Some(members) if wanted(&members) => return members,
                other => {
                    let in_time = runtime.clock.now() < give_up_at;
                    assert!(in_time, "{other:?}\n{}", self.logs());
                }
            }
            runtime.sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Waits until the ordinals vote under these ids, and there is no other member.
    async fn until_voters(&self, expected: [u64; 3]) {
        let voter = |(ordinal, node)| Shown { node, votes: true, peer: self.peer(ordinal) };
        let voters: BTreeSet<Shown> = (0..).zip(expected).map(voter).collect();
        self.until(|members| *members == voters).await;
    }

    /// Waits until all three vote; their ids.
    async fn until_three_vote(&self) -> [u64; 3] {
        let all_vote = |members: &BTreeSet<Shown>| {
            members.len() == 3 && members.iter().all(|member| member.votes)
        };
        let members = self.until(all_vote).await;
        [0, 1, 2].map(|ordinal| {
            let peer = self.peer(ordinal);
            let found = members.iter().find(|member| member.peer == peer);
            found.unwrap_or_else(|| panic!("{peer} is not among {members:?}")).node
        })
    }

    fn logs(&self) -> String {
        let said = |pod: &Pod| pod.process.as_ref().map(Program::err).unwrap_or_default();
        self.pods.iter().map(said).collect::<Vec<_>>().join("\n---\n")
    }

    async fn is_ready(&self, ordinal: usize) -> bool {
        metric(&self.pods[ordinal].place.admin_listen, "ready").await == 1
    }

    async fn until_ready(&self) {
        let runtime = Runtime::system();
        for ordinal in 0..3 {
            let ready = async {
                while !self.is_ready(ordinal).await {
                    runtime.sleep(BETWEEN_LOOKS).await;
                }
            };
            assert!(runtime.timeout(LIMIT, ready).await.is_ok(), "{}", self.logs());
        }
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(path, target).unwrap();
        }
    }
}

/// Nothing is lost, and no id is used twice, whatever becomes of the volumes one after the other (I20, I22).
#[tokio::test]
async fn ordinals_of_a_set_come_back_with_their_volume_or_without() {
    let runtime = Runtime::system();
    let mut pods = Pods::new();
    (0..3).for_each(|ordinal| pods.start(ordinal));
    runtime.sleep(Duration::from_secs(2)).await;
    assert_eq!(pods.members().await, None, "nobody forms a cluster by itself");
    assert_eq!(pods.init().await, Some(0));
    // Which of the others comes first is open.
    let mut ids = pods.until_three_vote().await;
    assert_eq!(ids[0], 1);
    pods.until_ready().await;
    assert_eq!(pods.init().await, Some(73), "it is a node's folder");
    let client = Client::connect([pods.endpoints()]).await.unwrap();
    let guard = client.lock("held/all/along").wait(LIMIT).await.unwrap();

    // With the volume it had.
    pods.kill(1);
    pods.start(1);
    pods.until_voters(ids).await;

    // With an empty one: another member, in the place of the one before.
    let (kept, aside) = (pods.folder.path().join("kept"), pods.folder.path().join("aside"));
    pods.kill(2);
    copy(&pods.pods[2].volume, &kept);
    pods.lose_volume(2);
    pods.start(2);
    ids[2] = 4;
    pods.until_voters(ids).await;
    pods.until_ready().await;

    // Its old disk comes back, when the id is spent.
    pods.kill(2);
    std::fs::rename(&pods.pods[2].volume, &aside).unwrap();
    copy(&kept, &pods.pods[2].volume);
    pods.start(2);
    let old = pods.pods[2].process.take().unwrap().end(LIMIT).await;
    assert_eq!(old.code, REMOVED, "{old:?}");
    pods.lose_volume(2);
    std::fs::rename(&aside, &pods.pods[2].volume).unwrap();
    pods.start(2);
    pods.until_voters(ids).await;

    // Under another address, with the same volume.
    pods.kill(1);
    pods.pods[1].place = Place::on_loopback();
    pods.start(1);
    pods.until_voters(ids).await;

    // Empty twice within a moment: who came first is no member, or a learner whose place the next takes.
    for _ in 0..2 {
        pods.kill(0);
        pods.lose_volume(0);
        pods.start(0);
        runtime.sleep(Duration::from_secs(2)).await;
    }
    pods.until(|members| members.iter().all(|member| member.node != ids[0])).await;
    let newest = pods.until_three_vote().await[0];
    assert!(newest >= 5, "{newest}");
    pods.until_ready().await;
    assert!(guard.is_safe(), "what was held before is held");
}

/// Of three, one is down and another's volume is empty: nothing is decided until the first is back.
#[tokio::test]
async fn nothing_is_replaced_without_a_majority() {
    let mut pods = Pods::new();
    assert_eq!(pods.init().await, Some(0), "before the node is started");
    (0..3).for_each(|ordinal| pods.start(ordinal));
    let ids = pods.until_three_vote().await;

    pods.kill(1);
    pods.kill(2);
    pods.lose_volume(2);
    pods.start(2);
    Runtime::system().sleep(Duration::from_secs(8)).await;
    assert_eq!(pods.members().await, None, "nobody leads");
    assert!(!pods.is_ready(2).await && !pods.is_ready(0).await);

    pods.start(1);
    pods.until_voters([ids[0], ids[1], 4]).await;
}

/// A leader gave it its id in the moment in which an operator said that it forms the cluster: there is a cluster already.
#[tokio::test]
async fn a_node_that_was_admitted_forms_no_cluster() {
    let mut pods = Pods::new();
    let Pod { place, volume, .. } = &pods.pods[0];
    let members = format!(
        "--members=5={}/{},6=127.0.0.1:1/127.0.0.1:2",
        place.advertise, place.peer_advertise
    );
    let mut before = pods.settings(0);
    before.retain(|flag| !flag.starts_with("--join") && !flag.starts_with("--members"));
    before.extend(["--join".to_owned(), "--node-id=5".to_owned(), members]);
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let admitted = Program::start("holdfastd", &before);
    let (guard, init) = (volume.join("guard"), volume.join("init"));
    let runtime = Runtime::system();
    let made = async {
        while !guard.exists() {
            runtime.sleep(BETWEEN_LOOKS).await;
        }
    };
    assert!(runtime.timeout(LIMIT, made).await.is_ok(), "{}", admitted.err());
    drop(admitted);
    std::fs::write(&init, "").unwrap();

    pods.start(0);
    runtime.sleep(Duration::from_secs(3)).await;
    assert_eq!(pods.members().await, None, "it forms none");
    assert!(!guard.exists() && !init.exists(), "its folder began anew");
}

#[tokio::test]
async fn settings_with_which_no_node_can_join_by_itself_are_refused_by_what_is_wrong() {
    let refused = async |arguments: &[&str]| {
        let ended = run("holdfastd", &[&["check-config"], arguments].concat()).await;
        assert!(matches!(ended.code, Some(64 | 78)), "{arguments:?}: {ended:?}");
        ended.err
    };
    let members = "--members=a:1/a:2,b:1/b:2,c:1/c:2";
    let open =
        ["--join=auto", members, "--insecure", "--peer-listen=0.0.0.0:1", "--peer-advertise=a:2"];
    for (arguments, words) in [
        (&["--join=auto"][..], "needs `members`, without node ids"),
        (&["--join=auto", members, "--node-id=3"], "the cluster gives the node its id"),
        (&["--join=auto", "--members=1=a:1/a:2"], "the cluster gives each node its own"),
        (&open, "outside loopback a node asks for a place under a certificate alone"),
        (&[members], "is not among them"),
        (&["--join=perhaps", members], "true, false or auto"),
    ] {
        let told = refused(arguments).await;
        assert!(told.contains(words), "{arguments:?}: {told}");
    }
    let init = run("holdfastd", &["init"]).await;
    assert!(init.code == Some(73) && init.err.contains("`join` is not \"auto\""), "{init:?}");
}
