//! Settings, as an operator uses them: `holdfastd check-config` with files, variables and flags.
#![expect(clippy::unwrap_used, reason = "a helper that fails ends its test")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tls::{NodeName, make};
use tempfile::TempDir;

/// The exit code of bad settings (`holdfast_server::exit`).
const SETTINGS: i32 = 78;
/// The exit code of a bad command line.
const USAGE: i32 = 64;

/// A call of `check-config`, built up by a test.
struct Question {
    folder: TempDir,
    file: Option<PathBuf>,
    command: Command,
}

impl Question {
    fn new() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfastd"));
        command.env_clear().arg("check-config");
        Self { folder: TempDir::new().unwrap(), file: None, command }
    }

    fn file(mut self, text: &str) -> Self {
        let path = self.folder.path().join("node.toml");
        std::fs::write(&path, text).unwrap();
        self.file = Some(path);
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    fn flags(mut self, flags: &[&str]) -> Self {
        self.command.args(flags);
        self
    }

    fn ask(mut self) -> Output {
        if let Some(file) = &self.file {
            self.command.arg(file);
        }
        self.command.output().unwrap()
    }

    /// The effective settings; fails if they are refused.
    #[track_caller]
    fn accepted(self) -> String {
        let output = self.ask();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Why the settings are refused: one line, with the code for settings.
    #[track_caller]
    fn refused(self) -> String {
        let output = self.ask();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(SETTINGS), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(output.stdout.is_empty());
        said
    }
}

#[track_caller]
fn assert_holds(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[test]
fn without_any_settings_a_node_serves_itself_on_loopback() {
    let said = Question::new().accepted();

    let expected = [
        "node_id = 1  # default",
        "listen = \"127.0.0.1:7420\"  # default",
        "advertise = \"127.0.0.1:7420\"  # default",
        "admin_listen = \"127.0.0.1:7422\"  # default",
        "data_dir = \"./holdfast-data\"  # default",
        "insecure = false  # default",
        "reserve_bytes = 536870912  # default",
        "ttl_default_ms = 10000  # default",
    ];
    assert_holds(&said, &expected);
}

#[test]
fn a_flag_wins_over_a_variable_and_a_variable_over_the_file_and_the_file_over_the_default() {
    let file = "heartbeat_ms = 101\n";
    let question = || Question::new().file(file).variable("HOLDFAST_DATA_DIR", "elsewhere");

    let said = question().accepted();
    assert_holds(&said, &["heartbeat_ms = 101  # settings file", "node_id = 1  # default"]);
    assert_holds(&said, &["data_dir = \"elsewhere\"  # environment"]);

    let said = question().variable("HOLDFAST_HEARTBEAT_MS", "102").accepted();
    assert_holds(&said, &["heartbeat_ms = 102  # environment"]);

    let flag = ["--heartbeat-ms", "103"];
    let said = question().variable("HOLDFAST_HEARTBEAT_MS", "102").flags(&flag).accepted();
    assert_holds(&said, &["heartbeat_ms = 103  # command line"]);
}

#[test]
fn the_file_is_found_by_its_variable() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("node.toml");
    std::fs::write(&path, "node_id = 7").unwrap();

    let said = Question::new().variable("HOLDFAST_CONFIG", path.to_str().unwrap()).accepted();

    assert_holds(&said, &["node_id = 7  # settings file"]);
}

#[test]
fn what_is_printed_is_a_settings_file_that_gives_the_same_settings() {
    let flags =
        ["--insecure", "--listen", "0.0.0.0:1", "--advertise", "[::1]:2", "--log-format=json"];
    let cluster = ["--members", "1=[::1]:2/b:3 2=c:4/d:5", "--ttl-max-ms", "20000"];
    let said = Question::new().flags(&flags).flags(&cluster).accepted();

    let again = Question::new().file(&said).accepted();

    let values = |text: &str| {
        text.lines().map(|line| line.split("  #").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(values(&said), values(&again));
}

/// It stands in the settings of every node that began with the sample file of 0.1.
#[test]
fn a_setting_that_decides_nothing_any_more_is_taken_and_named() {
    let said =
        |origin: &str| format!("# snapshot_every ({origin}) decides nothing any more: snapshots");
    let file = Question::new().file("snapshot_every = 10000\nnode_id = 2").accepted();
    assert_holds(&file, &[&said("settings file"), "node_id = 2", "snapshot_log_bytes = 16777216"]);
    // Bounds went with it.
    let variable = Question::new().variable("HOLDFAST_SNAPSHOT_EVERY", "9").accepted();
    assert_holds(&variable, &[&said("environment")]);
    let flag = Question::new().flags(&["--snapshot-every", "100"]).accepted();
    assert_holds(&flag, &[&said("command line")]);

    assert!(!Question::new().accepted().contains("snapshot_every"));
}

#[test]
fn a_member_takes_its_addresses_from_the_list_of_members() {
    let members = "[cluster]\nmembers = [\
        { node_id = 2, advertise = \"two:7420\", peer_advertise = \"two:7421\" },\
        { node_id = 1, advertise = \"one:7420\", peer_advertise = \"one:7421\" }]";

    let said = Question::new().file(&format!("node_id = 2\n{members}")).accepted();

    assert_holds(&said, &["advertise = \"two:7420\"", "peer_advertise = \"two:7421\""]);
}

/// Each line: the contents of the file, and what the answer must name.
#[test]
fn a_setting_that_cannot_be_used_gets_an_error_that_names_it() {
    let cases: &[(&str, &[&str])] = &[
        ("listn = \"127.0.0.1:1\"", &["unknown key `listn`", "did you mean listen at the top?"]),
        ("[cluster]\nttl_max = 60000", &["unknown key `ttl_max`", "ttl_max_ms in [cluster]"]),
        ("ttl_max_ms = 60000", &["unknown key `ttl_max_ms`", "ttl_max_ms in [cluster]"]),
        ("[cluster]\nnode_id = 4", &["unknown key `node_id`", "node_id at the top"]),
        ("[cluster]\ncluster = 4", &["unknown key `cluster`"]),
        ("entirely = 4", &["unknown key `entirely`", "--help"]),
        ("a = [", &["node.toml:1", "a = ["]),
        ("\nnode_id = 'x'", &["node.toml:2", "node_id = 'x'", "u64"]),
        ("node_id = 0", &["node_id = 0", "settings file", "from 1 to"]),
        ("listen = \"localhost:1\"", &["`localhost:1` is not an IP address and port"]),
        ("listen = \"127.0.0.1:0\"", &["`127.0.0.1:0` has port 0"]),
        ("advertise = \"0.0.0.0:7420\"", &["`0.0.0.0:7420` is no address anybody can connect to"]),
        ("advertise = \"a\"", &["`a` is not a host and a port"]),
        ("admin_listen = \"127.0.0.1:7420\"", &["admin_listen = 127.0.0.1:7420", "listen is the"]),
        ("heartbeat_ms = 9", &["heartbeat_ms = 9", "from 10 to 5000"]),
        ("round_trip_ms = 301", &["round_trip_ms = 301", "from 1 to 300"]),
        ("election_min_ms = 299", &["election_min_ms = 299", "300 (three times heartbeat_ms)"]),
        ("election_max_ms = 300", &["election_max_ms = 300", "above election_min_ms"]),
        ("propose_deadline_ms = 599", &["propose_deadline_ms = 599", "600 (election_max_ms)"]),
        ("max_pending_commands = 0", &["max_pending_commands = 0", "from 1 to"]),
        ("max_pending_bytes = 1048575", &["max_pending_bytes = 1048575", "from 1048576 to"]),
        ("max_connections = 63", &["max_connections = 63", "from 64 to 10000000"]),
        ("max_attached_streams = 0", &["max_attached_streams = 0", "from 1 to"]),
        ("max_unopened_streams = 0", &["max_unopened_streams = 0", "from 1 to"]),
        ("resumes_per_second = 9", &["resumes_per_second = 9", "from 10 to 1000000"]),
        ("max_watches = 0", &["max_watches = 0", "from 1 to 1000000"]),
        ("watch_backlog = 15", &["watch_backlog = 15", "from 16 to 1000000"]),
        ("watch_states = 0", &["watch_states = 0", "from 1 to 10000"]),
        ("watch_recent_changes = 10000001", &["watch_recent_changes", "from 0 to 10000000"]),
        ("watch_recent_bytes = 65535", &["watch_recent_bytes = 65535", "from 65536 to"]),
        ("outbox_bytes = 1048575", &["outbox_bytes = 1048575", "from 1048576 to"]),
        (
            "outbox_bytes_total = 8388607",
            &["outbox_bytes_total = 8388607", "at least 8388608 (outbox_bytes)"],
        ),
        ("arriving_bytes_total = 1048575", &["arriving_bytes_total = 1048575", "from 1048576 to"]),
        ("max_waiting_calls = 0", &["max_waiting_calls = 0", "from 1 to"]),
        ("snapshot_log_bytes = 4095", &["snapshot_log_bytes = 4095", "from 4096 to"]),
        ("max_log_bytes = 1048575", &["max_log_bytes = 1048575", "from 1048576 to"]),
        ("disk_stall_ms = 999", &["disk_stall_ms = 999", "from 1000 to 600000"]),
        ("log_level = \"a=b=c\"", &["log_level = a=b=c", "'b=c' is neither off, error,"]),
        ("log_level = \"inof\"", &["log_level = inof", "'inof' is neither off, error,"]),
        ("log_level = \"a[span]=info\"", &["'a[span]' is no part of the program"]),
        ("spin_us = 1001", &["spin_us = 1001", "from 0 to 1000"]),
        ("history_bytes = 4096", &["history_bytes = 4096", "from 1048576 to 1099511627776"]),
        ("history_days = 0", &["history_days = 0", "from 1 to 36500"]),
        ("session_thread = \"two\"", &["session_thread = \"two\"", "auto"]),
        ("log_format = \"xml\"", &["log_format = \"xml\"", "text"]),
    ];
    assert_refused(cases);
}

#[test]
fn a_setting_of_the_fallback_that_cannot_be_used_gets_an_error_that_names_it() {
    let cases: &[(&str, &[&str])] = &[
        ("[fallback]\nholdms = 4", &["unknown key `holdms`", "hold_ms in [fallback]"]),
        ("[fallback]\nhold_ms = 999", &["hold_ms = 999", "from 1000 to"]),
        (
            "[fallback]\ntake_over_ms = 19499",
            &["take_over_ms = 19499", "holds of 15s (V)", "1.3 times V"],
        ),
        ("[fallback]\ndrain_limit_ms = 15001", &["drain_limit_ms = 15001", "from 0 to 15000"]),
        ("[fallback]\nswitch_every_ms = 86400001", &["switch_every_ms", "from 0 to 86400000"]),
        ("[fallback]\nlease_partitions = 4097", &["lease_partitions = 4097", "from 0 to 4096"]),
        ("[fallback]\ncassandra_user = 'a'", &["cassandra_user = a", "cassandra_password_file"]),
        ("[fallback]\ncassandra_cert = 'a'", &["cassandra_cert = a", "cassandra_key"]),
        (
            "[fallback]\ncassandra_cert = 'a'\ncassandra_key = 'b'",
            &["cassandra_cert = a", "cassandra_ca"],
        ),
        ("[fallback]\ncassandra_server_name = 'a'", &["cassandra_server_name = a", "cassandra_ca"]),
    ];
    assert_refused(cases);
}

/// Each line: the contents of the file, and what the answer must name.
#[test]
fn a_setting_of_what_is_measured_and_logged_of_locks_gets_an_error_that_names_it() {
    assert_refused(&[
        ("log_waits_over_ms = 2592000001", &["log_waits_over_ms = 2592000001", "from 0 to"]),
        ("log_holds_over_ms = 2592000001", &["log_holds_over_ms = 2592000001", "from 0 to"]),
        (
            "metrics_prefixes = ['a/', 'b/', 'a/']",
            &["metrics_prefixes = a/,b/,a/", "settings file", "\"a/\" stands twice"],
        ),
        ("metrics_prefixes = ['']", &["metrics_prefixes = ", "a lock name cannot be empty"]),
        ("metrics_prefixes = ['other']", &["metrics_prefixes = other", "without a prefix"]),
        ("metrics_prefixes = 'a/'", &["metrics_prefixes = 'a/'"]),
    ]);
}

/// With the feature, anything but a host and a port without TLS; without it, anything.
#[test]
fn an_endpoint_for_traces_that_cannot_be_used_gets_an_error_that_names_it() {
    let why = if cfg!(feature = "otel") { "must be http://HOST:PORT" } else { "--features otel" };
    for endpoint in
        ["https://a:4317", "127.0.0.1:4317", "http://a", "http://:4317", "http://a:4317/v1", "x"]
    {
        let line = format!("otlp_endpoint = \"{endpoint}\"");
        let named = format!("otlp_endpoint = {endpoint}");
        assert_refused(&[(line.as_str(), &[named.as_str(), why])]);
    }
    let good = Question::new().file("otlp_endpoint = \"http://[::1]:4317\"");
    if cfg!(feature = "otel") {
        assert_holds(&good.accepted(), &["otlp_endpoint = \"http://[::1]:4317\""]);
    }
}

#[test]
fn prefixes_for_metrics_are_given_as_a_list_or_separated_by_commas() {
    let list = "metrics_prefixes = [\"orders/\", \"a,b\"]";
    assert_holds(&Question::new().file(list).accepted(), &[list]);
    let flags = ["--metrics-prefixes", "orders/,jobs"];
    let said = Question::new().flags(&flags).accepted();
    assert_holds(&said, &["metrics_prefixes = [\"orders/\", \"jobs\"]  # command line"]);
}

/// Each line: the contents of the file, and what the answer must name.
#[test]
fn a_setting_of_the_cluster_that_cannot_be_used_gets_an_error_that_names_it() {
    assert_refused(&[
        ("[cluster]\nttl_max_ms = 86400001", &["ttl_max_ms = 86400001", "from 1000 to 86400000"]),
        ("[cluster]\nttl_default_ms = 0", &["ttl_default_ms = 0", "from 1000"]),
        ("[cluster]\nttl_max_ms = 5000", &["ttl_default_ms = 10000", "ttl_max_ms, which is 5000"]),
        ("[cluster]\nmax_sessions = 0", &["max_sessions = 0", "from 1 to"]),
        ("[cluster]\nmax_value_bytes = 17179869185", &["max_value_bytes", "from 0 to 17179869184"]),
        (
            "[cluster]\nmax_table_bytes = 1048575",
            &["max_table_bytes = 1048575", "from 1048576 to 1099511627776"],
        ),
        ("[cluster]\noutbox_frames = 1", &["outbox_frames = 1", "from 16 to"]),
        ("[cluster]\nframes_per_second = 127", &["frames_per_second = 127", "from 128 to"]),
        (
            "[cluster]\nmax_requests_per_session = 25001",
            &["frames_per_second = 50000 (default)", "at least 50002", "max_requests_per_session"],
        ),
    ]);
}

#[track_caller]
fn assert_refused(cases: &[(&str, &[&str])]) {
    for (file, parts) in cases {
        assert_holds(&Question::new().file(file).refused(), parts);
    }
}

/// No node would grant in a scope with fallback that this build cannot maintain.
#[cfg(not(feature = "fallback"))]
#[test]
fn a_fallback_without_its_driver_is_refused_with_the_command_that_builds_it() {
    let file = "[fallback]\ncassandra = '127.0.0.1'";
    assert_holds(
        &Question::new().file(file).refused(),
        &["cassandra = 127.0.0.1", "--features fallback"],
    );
}

#[cfg(feature = "fallback")]
#[test]
fn a_fallback_is_taken_where_the_driver_is() {
    let file = "[fallback]\ncassandra = '127.0.0.1'";
    let shown = Question::new().file(file).accepted();
    assert_holds(&shown, &["cassandra = \"127.0.0.1\"  # settings file"]);
}

/// Each line: the settings of node 1, the second member, and what the answer must name.
#[test]
fn a_list_of_members_that_contradicts_itself_or_the_node_is_refused() {
    let cases = [
        (
            "node_id = 3",
            "node_id = 2, advertise = 'b:1', peer_advertise = 'b:2'",
            "node_id 3 is not",
        ),
        ("advertise = 'b:1'", "node_id = 2, advertise = 'c:1', peer_advertise = 'c:2'", "has a:1"),
        ("", "node_id = 1, advertise = 'b:1', peer_advertise = 'b:2'", "node_id 1 stands twice"),
        ("", "node_id = 2, advertise = 'a:2', peer_advertise = 'b:2'", "address a:2 stands twice"),
        ("", "node_id = 2, advertise = 'b:1', peer_advertise = 'b:1'", "address b:1 stands twice"),
        ("", "node_id = 0, advertise = 'b:1', peer_advertise = 'b:2'", "node ids begin at 1"),
        ("", "node_id = 2, advertise = 'b:1', peer = 'b:2'", "unknown field `peer`"),
        ("", "node_id = 2, advertise = 'b:1'", "missing field `peer_advertise`"),
    ];
    for (node, second, part) in cases {
        let first = "{ node_id = 1, advertise = 'a:1', peer_advertise = 'a:2' }";
        let file = format!("{node}\n[cluster]\nmembers = [{first}, {{ {second} }}]");
        assert_holds(&Question::new().file(&file).refused(), &[part]);
    }
}

/// Without TLS any client that can connect can take every lock.
#[test]
fn nothing_listens_outside_loopback_without_tls_or_insecure() {
    let members = "1=10.0.0.1:7420/10.0.0.1:7421 2=10.0.0.2:7420/10.0.0.2:7421";
    let keys = [
        ("listen", "--listen"),
        ("peer_listen", "--peer-listen"),
        ("admin_listen", "--admin-listen"),
    ];
    for (key, flag) in keys {
        for address in ["0.0.0.0:9000", "10.0.0.1:9000", "[::]:9000"] {
            let flags = [flag, address, "--members", members];
            let said = Question::new().flags(&flags).refused();
            assert_holds(&said, &[&format!("{key} = {address} (command line)"), "--insecure"]);

            Question::new().flags(&flags).flags(&["--insecure"]).accepted();
        }
    }
}

/// A folder with the certificates of a node, and the flags that name them.
fn certificates() -> (TempDir, [String; 3]) {
    let folder = TempDir::new().unwrap();
    let now = Runtime::system().clock.wall();
    let term = make::Term { now, lasts: Duration::from_hours(10 * 24) };
    let ca = make::ca("CA", term).unwrap();
    let signs = make::Ca::read(&ca.cert_pem, &ca.key_pem).unwrap();
    let name = NodeName { cluster: "holdfast".parse().unwrap(), id: Some(1) };
    let node = signs.node(&name, &["10.0.0.1".to_owned()], term).unwrap();
    let written = |file: &str, flag: &str, text: &str| {
        let path = folder.path().join(file);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        format!("--{flag}={}", path.display())
    };
    let flags = [
        written("node.pem", "tls-cert", &node.cert_pem),
        written("node.key", "tls-key", &node.key_pem),
        written("ca.pem", "tls-ca", &ca.cert_pem),
    ];
    (folder, flags)
}

#[test]
fn with_a_certificate_a_node_listens_anywhere_and_check_config_says_when_it_ends() {
    let (_folder, flags) = certificates();
    let [cert, key, ca] = &flags;
    let anywhere = ["--listen", "10.0.0.1:7420", "--admin-listen", "10.0.0.1:7422"];

    let said = Question::new().flags(&anywhere).flags(&[cert, key, ca]).accepted();

    assert_holds(&said, &["node.pem ends in 9 days", "ca.pem ends in 9 days"]);
    // As the test's files are made.
    assert_holds(&said, &["node.key can be read by everybody on this machine (644): chmod 600"]);
    let required = "--client-certs=required";
    Question::new().flags(&anywhere).flags(&[cert, key, ca, required]).accepted();
    Question::new().flags(&[cert, key]).accepted();
}

#[test]
fn check_config_warns_of_what_is_legal_and_unwise() {
    let two = "--members=1=10.0.0.1:7420/10.0.0.1:7421, 2=10.0.0.1:7430/10.0.0.1:7431";
    let listen = ["--insecure", "--listen=0.0.0.0:7420", "--peer-listen=0.0.0.0:7421"];
    let others = ["--admin-listen=0.0.0.0:7422", "--log-level=debug", "--ttl-default-ms=1000"];
    let advertise = ["--advertise=10.0.0.1:7420", "--peer-advertise=10.0.0.1:7421"];
    let question = Question::new().flags(&[two]).flags(&listen).flags(&others).flags(&advertise);

    let said = question.flags(&["--data-dir=/dev/shm/holdfast"]).accepted();

    let warned = [
        "# members: 2 members go on without 0 of them",
        "# members: more than one is on 10.0.0.1",
        "# insecure: whoever reaches these ports",
        "# ttl_default_ms: a change of leader may take longer than 1000 ms",
        "# log_level: debug writes lines for every request",
        "# admin_listen: whoever reaches it reads the metrics",
        "# data_dir: /dev/shm/holdfast is on tmpfs",
    ];
    assert_holds(&said, &warned);
    let away = ["--insecure", "--listen=0.0.0.0:7420", "--advertise=127.0.0.1:7420"];
    let said = Question::new().flags(&away).accepted();
    assert_holds(&said, &["# advertise: clients are sent to 127.0.0.1:7420, which is their own"]);
}

#[test]
fn check_config_warns_of_nothing_in_three_members_on_one_machine_for_a_trial() {
    let three = "--members=1=127.0.0.1:7420/127.0.0.1:7421,2=127.0.0.1:7430/127.0.0.1:7431,\
                 3=127.0.0.1:7440/127.0.0.1:7441";

    let said = Question::new().flags(&[three]).accepted();

    let warned = |line: &&str| line.starts_with("# ") && line.contains(": ");
    let about = said.lines().filter(warned).filter(|line| !line.contains("data_dir"));
    assert_eq!(about.count(), 0, "{said}");
}

#[test]
fn settings_of_tls_stand_together() {
    let (folder, flags) = certificates();
    let [cert, key, ca] = &flags;
    let members = "--members=1=127.0.0.1:7420/127.0.0.1:7421";
    let missing = format!("--tls-key={}", folder.path().join("nowhere").display());
    let required = "--client-certs=required";
    for (flags, says) in [
        (vec![cert.as_str()], "needs `tls_key`"),
        (vec![key], "needs `tls_cert`"),
        (vec![ca], "needs `tls_cert` and `tls_key`"),
        (vec![cert, key, members], "needs `tls_ca`"),
        (vec![required], "needs `tls_cert`, `tls_key` and `tls_ca`"),
        (vec![cert, key, ca, required, "--insecure"], "`insecure` lets clients in without TLS"),
        (vec![cert, &missing, ca], "No such file"),
    ] {
        assert_holds(&Question::new().flags(&flags).refused(), &[says]);
    }
}

/// A member that the others would not take for itself is found before it is started.
#[test]
fn a_certificate_of_another_node_is_refused_where_there_are_members() {
    let (_folder, flags) = certificates();
    let [cert, key, ca] = &flags;
    let question = |flags: &[&str]| Question::new().flags(&[cert, key, ca]).flags(flags);
    let members = "--members=1=127.0.0.1:7420/127.0.0.1:7421 2=127.0.0.1:7430/127.0.0.1:7431";

    let said = question(&["--node-id=2", members]).refused();
    assert_holds(&said, &["node 2 of cluster holdfast", "names are holdfast:node:holdfast:1"]);
    let said = question(&["--cluster-name=shop", members]).refused();
    assert_holds(&said, &["node 1 of cluster shop", "names are holdfast:node:holdfast:1"]);
    question(&[members]).accepted();
    // Nobody else looks at its names.
    question(&["--node-id=2"]).accepted();
}

/// The peer port stays closed, so its address does no harm.
#[test]
fn a_cluster_of_one_is_not_asked_about_its_peer_port() {
    Question::new().flags(&["--peer-listen", "10.0.0.1:7421"]).accepted();
}

/// A node whose settings name members, if only itself, may have other members one day.
#[test]
fn a_node_that_names_members_opens_its_peer_port_also_when_it_is_the_only_one() {
    let alone = ["--members", "1=127.0.0.1:7420/10.0.0.1:7421"];
    let said = Question::new().flags(&alone).flags(&["--peer-listen", "10.0.0.1:7421"]).refused();
    assert_holds(&said, &["peer_listen = 10.0.0.1:7421", "--insecure"]);

    // The settings printed without any input name no members, and mean the same when read again.
    let printed = Question::new().accepted();
    assert_holds(&printed, &["# members = "]);
    Question::new().file(&printed).flags(&["--peer-listen", "10.0.0.1:7421"]).accepted();
}

#[test]
fn a_node_joins_only_where_it_knows_somebody_to_ask() {
    let said = Question::new().flags(&["--join"]).refused();
    assert_holds(&said, &["join = true (command line)", "needs `members`"]);
    let itself = ["--node-id", "4", "--members", "4=c:1/p:1"];
    Question::new().flags(&["--join"]).flags(&itself).refused();

    let others = ["--node-id", "4", "--members", "1=a:1/b:1 4=c:1/p:1"];
    let said = Question::new().flags(&["--join"]).flags(&others).accepted();
    assert_holds(&said, &["join = true  # command line"]);
}

#[test]
fn listening_everywhere_needs_an_address_to_tell_others() {
    let said = Question::new().flags(&["--insecure", "--listen", "0.0.0.0:7420"]).refused();

    assert_holds(&said, &["listen = 0.0.0.0:7420", "set advertise as well"]);
}

#[test]
fn a_variable_that_is_nearly_a_setting_is_refused_and_others_are_left_alone() {
    let said = Question::new().variable("HOLDFAST_LISTN", "127.0.0.1:1").refused();
    assert_holds(&said, &["HOLDFAST_LISTN", "did you mean HOLDFAST_LISTEN?"]);

    for other in ["HOLDFAST_ENDPOINTS", "HOLDFAST_LOCK", "HOLDFAST_TOKEN", "HOLDFAST_SERVICE_PORT"]
    {
        Question::new().variable(other, "x").accepted();
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let said = Question::new().flags(&["/nowhere/node.toml"]).refused();

    assert_holds(&said, &["/nowhere/node.toml", "No such file"]);
}

#[test]
fn a_flag_or_variable_that_cannot_be_read_is_named() {
    let flags = |flags: &[&str]| Question::new().flags(flags).ask();
    let cases = [
        (flags(&["--listn", "a"]), "--listn"),
        (flags(&["--node-id", "x"]), "--node-id"),
        (flags(&["--insecure=maybe"]), "--insecure"),
        (Question::new().variable("HOLDFAST_HEARTBEAT_MS", "soon").ask(), "--heartbeat-ms"),
        (Question::new().variable("HOLDFAST_LISTEN", "").ask(), "--listen"),
    ];
    for (output, part) in cases {
        assert_eq!(output.status.code(), Some(USAGE));
        assert_holds(&String::from_utf8(output.stderr).unwrap(), &[part]);
    }
}

#[test]
fn every_setting_is_in_the_help_with_its_variable() {
    let output = Command::new(env!("CARGO_BIN_EXE_holdfastd")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let said = Question::new().accepted();

    let keys = said.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key);
    for key in keys.map(|key| key.trim_start_matches("# ")) {
        let flag = format!("--{}", key.replace('_', "-"));
        assert_holds(&help, &[&flag, &format!("[env: HOLDFAST_{}]", key.to_uppercase())]);
    }
    assert_holds(&help, &["Exit codes:", "78"]);
}
