# The recipes of a working day. `just` alone lists them.

_list:
    @just --list --unsorted

# Reads only: format, lints, documentation, dependencies. Changes nothing.
verify:
    .ci/verify

# Rewrites: format, the lints that clippy can mend by itself, and the listing of the public API.
fix:
    cargo clippy --workspace --all-targets --locked --fix --allow-dirty --allow-staged
    cargo fmt --all
    cargo run --quiet --locked -p holdfast-api -- --write

# What `cargo add` of the library or the recipes needs, as packages in target/package.
packages:
    .ci/package --no-verify

# What people install, in target/install: a static archive, packages for Debian, an image, a list of what is in them.
release *arguments:
    deploy/package/build.sh {{ arguments }}

# The tests; arguments go to tests/run, for instance `just test --only fast`.
test *arguments:
    tests/run {{ arguments }}

# Every fuzz target, for so many minutes in all; fails below ten million executions.
fuzz minutes="10" *arguments:
    tests/fuzz/long {{ minutes }} {{ arguments }}

# The main job on real processes: three nodes, two kills of the leader, no lost increment.
demo *arguments:
    cargo build --release --locked --bins
    ./target/release/holdfast demo {{ arguments }}

# The program of `simulate`, half as fast again: built twice, the second time by what the first one did. For runs of hours.
simulate-pgo file="target/simulate-pgo":
    tests/benches/simulate_pgo.sh {{ file }}

# Simulated runs of whole clusters on virtual time: `just simulate SEED`, `just simulate --runs N`, see `just simulate --help`.
simulate *arguments:
    cargo build --profile simulate --locked -p holdfast-tests --bin holdfast-simulate
    ./target/simulate/holdfast-simulate {{ arguments }}

# Chaos on real processes for so many minutes; `--help` after it lists the faults. Root sees more of them.
chaos minutes *arguments:
    cargo build --release --locked -p holdfast-tests -p holdfast-server --bins
    ./target/release/holdfast-chaos --minutes {{ minutes }} {{ arguments }}

# A node with a million held locks is killed; how long until it serves.
recovery *arguments:
    cargo build --release --locked -p holdfast-tests -p holdfast-server --bins
    ./target/release/holdfast-recovery {{ arguments }}

# How long three nodes grant nothing when their leader is killed, and when it is stopped, twenty times each.
leader-death *arguments:
    cargo build --release --locked -p holdfast-tests -p holdfast-server --bins
    ./target/release/holdfast-leader-death {{ arguments }}

# Three nodes with a million held locks write, drop and install snapshots; how long nothing is granted.
pauses *arguments:
    cargo build --release --locked -p holdfast-tests -p holdfast-server -p holdfast-cli --bins
    ./target/release/holdfast-pauses {{ arguments }}

# Three nodes with very many sessions, waiters or watchers: memory, CPU, and how long a quiet client waits.
scale *arguments:
    cargo build --release --locked -p holdfast-tests -p holdfast-server --bins
    ./target/release/holdfast-scale {{ arguments }}

# A million leases from one Cassandra node into one server: seconds, and memory.
migrate-million *arguments:
    cargo build --release --locked -p holdfast-tests -p holdfast-server -p holdfast-migrate --bins
    ./target/release/holdfast-migrate-million {{ arguments }}

# Looks for each deliberate bug with the simulator, and says after how many runs it was found.
mutants *arguments:
    cargo build --profile simulate --locked -p holdfast-tests --bin holdfast-mutants
    ./target/simulate/holdfast-mutants {{ arguments }}

# The cells of the performance milestone, three runs each, beside their targets.
bench-milestone *arguments:
    tests/benches/milestone.sh {{ arguments }}

# The same cells with another revision's programs and with ours, in turns: `just bench-against 87a71e0`.
bench-against *arguments:
    tests/benches/against.sh {{ arguments }}

# Builds the lock stores that `bench-peers` measures beside ours, as far as Go, Java and Maven are there.
install-peers *peers:
    tests/peers/install {{ peers }}

# Ours beside etcd, ZooKeeper, hiqlite and Hazelcast, those that are installed: the tables of docs/benchmarks.md, in about 75 minutes.
bench-peers *arguments:
    cargo build --profile dist --locked --bins
    cargo build --profile dist --locked -p holdfast-tests --bin holdfast-bench-peers
    ./target/dist/holdfast-bench-peers --write docs/benchmarks.md --rows target/bench-peers.jsonl {{ arguments }}

# What ten thousand sessions cost that only stay alive, with the programs of each folder.
bench-sessions *folders:
    tests/benches/sessions.sh {{ folders }}

# What it costs to reach the leader through another node: direct and relayed in one run (takes about 5 minutes).
bench-relayed:
    cargo build --profile dist --locked --bins
    tests/benches/relayed.sh target/dist

# What TLS and rules cost, and a quiet client beside 10,000 half-open handshakes.
bench-security *arguments:
    tests/benches/security.sh {{ arguments }}

# Benches of the parts (core, judge, log, memory); `just bench --test` only sees that they run.
bench *arguments:
    cargo bench --locked -p holdfast-tests --bench applies --bench core --bench judge --bench log_store --bench memory -- {{ arguments }}

# Three nodes on this machine until Ctrl-C.
three-nodes *arguments:
    cargo build --release --locked --bins
    deploy/three-nodes.sh {{ arguments }}

# Asks the advisory database; needs to reach github.com.
advisories:
    cargo deny --locked check advisories
