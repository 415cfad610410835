//! `holdfast`, `holdfast-migrate` and `holdfastd` on a real node of Cassandra that speaks TLS, wants certificates and logins, and lets
//! each role do what it was granted.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::time::Duration;

use holdfast::{Client, Tls};
use holdfast_recipes::{Contact, Credentials, Recipe, open};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::Nodes;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::fallback::settings;
use holdfast_tests::program::{Ended, Program};
use holdfast_tls::make::{Ca, Pair, Term, ca};

const DAY: Duration = Duration::from_hours(24);
const KEYSPACE: &str = "secured";
/// Those that `schema --grants` names, and two more.
const ROLES: [&str; 9] = [
    "holdfast_client",
    "holdfast_clock",
    "holdfast_doctor",
    "holdfast_housekeeper",
    "holdfast_migrate",
    "holdfast_schema",
    "holdfast_server",
    "nobody",
    "reader",
];

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A node that takes nobody without TLS, a certificate and a login.
struct Secured {
    nodes: Nodes,
    points: String,
}

impl Secured {
    async fn start() -> Self {
        let nodes = Nodes::start_one_secured().await;
        let points = nodes.contact_points().await;
        Self { nodes, points }
    }

    fn file(&self, name: &str) -> String {
        self.nodes.tls_folder().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, pair: &Pair) {
        std::fs::write(self.nodes.tls_folder().join(format!("{name}.pem")), &pair.cert_pem)
            .unwrap();
        std::fs::write(self.nodes.tls_folder().join(format!("{name}.key")), &pair.key_pem).unwrap();
    }

    /// As the superuser, who proves itself with the pair `own`; `ca` vouches for the node.
    async fn run_with(&self, program: &str, ca: &str, own: Option<&str>, rest: &[&str]) -> Ended {
        let own =
            own.map(|own| [self.file(&format!("{own}.pem")), self.file(&format!("{own}.key"))]);
        let mut line = vec!["--contact-points", &self.points, "--keyspace", KEYSPACE];
        let ca = self.file(ca);
        line.extend(["--cassandra-ca", &ca]);
        if let Some([cert, key]) = &own {
            line.extend(["--cassandra-cert", cert, "--cassandra-key", key]);
        }
        log_in("cassandra", "cassandra", program, &[&line[..], rest].concat()).await
    }

    /// As everything wants it, but for the password.
    async fn run_over_tls(&self, user: &str, password: &str, rest: &[&str]) -> Ended {
        let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| self.file(name));
        let place =
            ["--contact-points", &self.points, "--keyspace", KEYSPACE, "--cassandra-ca", &ca];
        let own = ["--cassandra-cert", &cert, "--cassandra-key", &key];
        log_in(user, password, "holdfast", &[&place[..], &own, rest].concat()).await
    }

    /// `holdfast-migrate` as that role.
    async fn migrate(&self, role: &str, rest: &[&str]) -> Ended {
        let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| self.file(name));
        let place =
            ["--contact-points", &self.points, "--keyspace", KEYSPACE, "--cassandra-ca", &ca];
        let own = ["--cassandra-cert", &cert, "--cassandra-key", &key];
        log_in(role, role, "holdfast-migrate", &[&place[..], &own, rest].concat()).await
    }

    /// Executes statements as the superuser.
    async fn cql(&self, statements: &[&str]) {
        let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| self.file(name));
        let login = Credentials { user: "cassandra".to_owned(), password: "cassandra".to_owned() };
        let contact = Contact::new(&self.points).login(Some(login));
        let session = open(&contact.tls(Some(Tls::new(ca).certificate(cert, key)))).await.unwrap();
        for statement in statements {
            let done = session.query_unpaged(*statement, ()).await;
            assert!(done.is_ok(), "{statement}: {done:?}");
        }
    }

    /// As everything wants it.
    async fn run(&self, rest: &[&str]) -> Ended {
        self.run_over_tls("cassandra", "cassandra", rest).await
    }
}

async fn log_in(user: &str, password: &str, program: &str, rest: &[&str]) -> Ended {
    let login = [("HOLDFAST_CASSANDRA_USER", user), ("HOLDFAST_CASSANDRA_PASSWORD", password)];
    let command: &[&str] = if program == "holdfast" { &["cassandra"] } else { &[] };
    Program::start_in(program, &[command, rest].concat(), &login).end(secs(60)).await
}

fn expect(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.err.contains(says), "{says:?} is not in {:?}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{:?}", ended.err);
}

const ATTEMPT: [&str; 5] = ["lease", "try", "job", "--", "true"];

/// One test, because a node takes a while to start.
#[tokio::test]
async fn a_cluster_is_reached_over_tls_with_a_certificate_and_a_login_and_not_otherwise() {
    let secured = Secured::start().await;
    let made = secured.run(&["schema", "--apply", "--replication", "1"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_eq!(secured.run(&ATTEMPT).await.code, Some(0));
    let plan = ["plan", "--from", "lease"];
    let planned = secured.run_with("holdfast-migrate", "ca.pem", Some("client"), &plan).await;
    assert_eq!(planned.code, Some(0), "{planned:?}");

    names_count(&secured).await;
    wrong_files_are_named(&secured).await;
    a_password_is_read_from_a_file(&secured).await;
    roles_are_made(&secured).await;
    let cluster = a_server_keeps_its_authority_there(&secured).await;
    each_role_does_what_it_was_granted(&secured, &cluster).await;
    a_scope_moves_once_the_role_of_old_clients_is_revoked(&secured, &cluster).await;
    what_was_not_granted_is_named(&secured).await;
    the_doctor_tells_a_role_what_it_may_do(&secured).await;
}

async fn names_count(secured: &Secured) {
    let named = [&["--cassandra-server-name", "cassandra.test"][..], &ATTEMPT].concat();
    assert_eq!(secured.run(&named).await.code, Some(0));
    let other = [&["--cassandra-server-name", "db.example.com"][..], &ATTEMPT].concat();
    expect(&secured.run(&other).await, 122, "not valid for name \"db.example.com\"");
}

/// Each is refused at once, with one line that names what is wrong.
async fn wrong_files_are_named(secured: &Secured) {
    let now = Runtime::system().clock.wall();
    let term = Term { now, lasts: DAY };
    let over = Term { now: now - 3 * DAY, lasts: DAY };
    let read = |file: &str| std::fs::read_to_string(secured.file(file)).unwrap();
    let trusted = Ca::read(&read("ca.pem"), &read("ca.key")).unwrap();
    let foreign = ca("another CA", term).unwrap();
    secured.write("foreign-ca", &foreign);
    let foreign = Ca::read(&foreign.cert_pem, &foreign.key_pem).unwrap();
    secured.write("foreign", &foreign.client("app", term).unwrap());
    secured.write("over", &trusted.client("app", over).unwrap());

    let began = Runtime::system().clock.now();
    let cases = [
        (
            "foreign-ca.pem",
            Some("client"),
            122,
            "no TLS with the cluster: invalid peer certificate",
        ),
        ("ca.pem", None, 122, "it wants one of the client (--cassandra-cert, --cassandra-key)"),
        ("ca.pem", Some("foreign"), 122, "no TLS with the cluster: received fatal alert"),
        ("ca.pem", Some("over"), 125, "over.pem"),
        ("nothing.pem", Some("client"), 125, "nothing.pem: No such file"),
        ("client.key", Some("client"), 125, "client.key has no"),
    ];
    for (ca, own, code, says) in cases {
        expect(&secured.run_with("holdfast", ca, own, &ATTEMPT).await, code, says);
        let migrate = secured.run_with("holdfast-migrate", ca, own, &["plan", "--from", "lease"]);
        expect(&migrate.await, code, says);
    }
    assert!(Runtime::system().clock.now().saturating_since(began) < secs(30));
    let plain = ["--contact-points", &secured.points, "--keyspace", KEYSPACE];
    let plain = [&plain[..], &ATTEMPT].concat();
    let plain = log_in("cassandra", "cassandra", "holdfast", &plain).await;
    expect(&plain, 123, "if the cluster wants TLS: --cassandra-ca");
}

async fn a_password_is_read_from_a_file(secured: &Secured) {
    let file = secured.file("password");
    std::fs::write(&file, "cassandra\nanother line\n").unwrap();
    let read = [&["--password-file", &file][..], &ATTEMPT].concat();
    // The file counts before the variable.
    assert_eq!(secured.run_over_tls("cassandra", "wrong", &read).await.code, Some(0));
    std::fs::write(&file, "wrong\n").unwrap();
    expect(&secured.run(&read).await, 122, "does not let us in");
    let missing = [&["--password-file", "/nowhere/password"][..], &ATTEMPT].concat();
    expect(&secured.run(&missing).await, 125, "--password-file /nowhere/password: No such file");
}

/// Roles with what `schema --grants` prints, and two more: one that may nothing, and one that may read.
async fn roles_are_made(secured: &Secured) {
    let mut statements: Vec<String> = ROLES
        .iter()
        .map(|role| format!("CREATE ROLE {role} WITH PASSWORD = '{role}' AND LOGIN = true"))
        .collect();
    let printed = secured.run(&["schema", "--grants"]).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let grants: Vec<&str> = printed.out.lines().filter(|line| !line.starts_with("--")).collect();
    assert!(grants.len() > 50, "{}", printed.out);
    statements.extend(grants.into_iter().map(|grant| grant.trim_end_matches(';').to_owned()));
    statements.push(format!("GRANT SELECT ON {KEYSPACE}.leases TO reader"));
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    secured.cql(&statements).await;
}

async fn each_role_does_what_it_was_granted(secured: &Secured, cluster: &Cluster) {
    let client = async |rest: &[&str]| {
        let ended = secured.run_over_tls("holdfast_client", "holdfast_client", rest).await;
        assert_eq!(ended.code, Some(0), "{rest:?}: {ended:?}");
    };
    for recipe in Recipe::ALL {
        client(&[recipe.as_str(), "lock", "--wait", "20s", "job", "--", "true"]).await;
    }
    client(&["work", "add", "mails", "to: a@example.org"]).await;
    let endpoints = cluster.endpoints();
    let mode = |mode| ["--mode", mode, "--scope", "moved/", "--endpoints", &endpoints];
    for of in [mode("cassandra"), mode("both")] {
        client(&[&["lease", "lock"], &of[..], &["moved/job", "--", "true"]].concat()).await;
    }

    let migrate = async |rest: &[&str]| {
        let ended = secured.migrate("holdfast_migrate", rest).await;
        assert_eq!(ended.code, Some(0), "{rest:?}: {ended:?}");
    };
    for recipe in ["lease", "queue", "tokens", "bakery", "shadow"] {
        migrate(&["plan", "--from", recipe]).await;
    }
    let at = ["--endpoints", &endpoints, "--scope", "moved/"];
    migrate(&[&["cutover", "--from", "lease", "--writers-stopped"], &at[..]].concat()).await;
    migrate(&[&["rollback", "--from", "lease"], &at[..]].concat()).await;
    client(&["sequence", "next", "moved/ids"]).await;
    migrate(&[&["sequences", "--to", "native"], &at[..]].concat()).await;

    let applied =
        secured.run_over_tls("holdfast_schema", "holdfast_schema", &["schema", "--apply"]);
    assert_eq!(applied.await.code, Some(0));
}

/// B2: nobody has to know that old clients are stopped, if they have a role of their own.
async fn a_scope_moves_once_the_role_of_old_clients_is_revoked(
    secured: &Secured,
    cluster: &Cluster,
) {
    let endpoints = cluster.endpoints();
    let at = ["--from", "lease", "--scope", "old/", "--endpoints", &endpoints];
    let cutover = async |login: &str, role: &str| {
        let line = [&["cutover", "--revoked-role", role], &at[..]].concat();
        secured.migrate(login, &line).await
    };
    let refused = async |login: &str, role: &str, says: &str| {
        let ended = cutover(login, role).await;
        assert_eq!(ended.code, Some(122), "{ended:?}");
        assert!(ended.err.contains(says), "{says:?}: {ended:?}");
        let scope = secured.migrate("cassandra", &[&["rollback"], &at[..]].concat()).await;
        assert!(scope.out.contains("stage cassandra"), "it did not move: {scope:?}");
    };
    secured
        .cql(&[
            "CREATE ROLE old WITH PASSWORD = 'old' AND LOGIN = true",
            "CREATE ROLE jobs",
            &format!("GRANT MODIFY ON {KEYSPACE}.leases TO jobs"),
            &format!("GRANT SELECT ON {KEYSPACE}.leases TO old"),
            "GRANT jobs TO old",
        ])
        .await;
    let old = async || secured.run_over_tls("old", "old", &ATTEMPT).await;
    assert_eq!(old().await.code, Some(0));
    let by = format!("role old may change table {KEYSPACE}.leases");
    refused("cassandra", "old", &by).await;
    refused("cassandra", "old", &format!("REVOKE MODIFY ON table {KEYSPACE}.leases FROM jobs"))
        .await;
    refused("cassandra", "cassandra", "has the superuser cassandra").await;
    refused("cassandra", "odl", "odl").await;
    refused("holdfast_migrate", "old", "log in as a superuser, or as a role that was granted old")
        .await;

    // What old clients hold when the right is taken from them is held natively, for as long as its row stands.
    secured
        .cql(&[
            &format!(
                "INSERT INTO {KEYSPACE}.leases (name, owner) VALUES ('old/1', 'client_1') USING TTL 600"
            ),
            &format!("REVOKE MODIFY ON {KEYSPACE}.leases FROM jobs"),
            "GRANT old TO holdfast_migrate",
        ])
        .await;
    expect(&old().await, 122, "no MODIFY permission");
    let moved = cutover("holdfast_migrate", "old").await;
    assert_eq!(moved.code, Some(0), "{moved:?}");
    let revoked = "role old may change none of the tables; every node goes by that in 10 s at most";
    assert!(moved.out.contains(revoked), "{moved:?}");
    assert!(moved.out.contains("1 held and 0 waiting were imported"), "{moved:?}");
    assert!(moved.out.contains("scope \"old/\" is at native"), "{moved:?}");
}

/// Nothing is half-done: the refused statement is the first one.
async fn what_was_not_granted_is_named(secured: &Secured) {
    for (role, says) in [("nobody", "MODIFY"), ("reader", "MODIFY")] {
        let refused = secured.run_over_tls(role, role, &ATTEMPT).await;
        assert_eq!(refused.code, Some(122), "{refused:?}");
        assert!(refused.err.contains(says) && refused.err.contains(role), "{refused:?}");
    }
}

/// What the nodes do not tell a role, and what it may not do, are findings.
async fn the_doctor_tells_a_role_what_it_may_do(secured: &Secured) {
    let doctor = async |role: &str, code: i32| {
        let ended = secured.run_over_tls(role, role, &["doctor"]).await;
        assert_eq!(ended.code, Some(code), "{ended:?}");
        ended.out
    };
    // One replica on one node: a caution.
    let client = doctor("holdfast_client", 1).await;
    assert!(
        client.contains("role holdfast_client has what this needs: locks by lease;"),
        "{client}"
    );
    assert!(client.contains("SELECT ON KEYSPACE system_views"), "{client}");
    let told = doctor("holdfast_doctor", 1).await;
    assert!(told.contains("v2 on every node"), "{told}");
    assert!(told.contains("role holdfast_doctor may change the tables of no recipe"), "{told}");
    let all = doctor("cassandra", 1).await;
    assert!(all.contains("role cassandra is a superuser"), "{all}");
}

/// A server's scope falls back on it.
async fn a_server_keeps_its_authority_there(secured: &Secured) -> Cluster {
    let [password, ca, cert, key] =
        ["password", "ca.pem", "client.pem", "client.key"].map(|name| secured.file(name));
    std::fs::write(&password, "holdfast_server\n").unwrap();
    let lines = settings(&secured.points, KEYSPACE)
        + &format!(
            "cassandra_user = 'holdfast_server'\ncassandra_password_file = '{password}'\ncassandra_ca = '{ca}'\n\
             cassandra_cert = '{cert}'\ncassandra_key = '{key}'\n",
        );
    let cluster = Cluster::start(&Setup::nodes(1).with_fallback(&lines)).await;
    let admin = Client::builder().endpoints([cluster.endpoints()]).admin(secs(20)).unwrap();
    admin.set_scope("job/").await.unwrap();
    let served = async {
        loop {
            let scopes = admin.scopes().await.unwrap().scopes;
            if scopes
                .iter()
                .any(|scope| scope.row.as_ref().is_some_and(|(mode, _)| mode == "native"))
            {
                return;
            }
            Runtime::system().sleep(Duration::from_millis(50)).await;
        }
    };
    let is_served = Runtime::system().timeout(secs(30), served).await;
    assert!(is_served.is_ok(), "{:?}: {}", admin.scopes().await, cluster.log(0));
    cluster
}
