#!/usr/bin/env bash
# Builds the program of `just simulate` twice, the second time by what the first one did in sixty runs, and puts it at FILE. It makes
# half as many runs again in the same time, and the same runs: a long run can go on with it (`--resume`).
#
#   tests/benches/simulate_pgo.sh FILE
#
# It takes about as long as two builds of the profile `simulate`, below target/pgo, and needs the tools of LLVM:
# rustup component add llvm-tools
set -euo pipefail
cd "$(dirname "$0")/../.."

(($# == 1)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
to=$1
host=$(rustc -vV | sed -n 's/^host: //p')
profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
[[ -x $profdata ]] || { echo "simulate_pgo: llvm-profdata is missing: rustup component add llvm-tools" >&2; exit 2; }

export CARGO_TARGET_DIR=$PWD/target/pgo CARGO_INCREMENTAL=0
export CARGO_PROFILE_SIMULATE_CODEGEN_UNITS=1 CARGO_PROFILE_SIMULATE_LTO=thin CARGO_PROFILE_SIMULATE_DEBUG=false
seen=$CARGO_TARGET_DIR/seen program=$CARGO_TARGET_DIR/$host/simulate/holdfast-simulate

# A target of its own keeps the flags from build scripts and macros.
build() { RUSTFLAGS=$1 cargo build --profile simulate --locked -p holdfast-tests --bin holdfast-simulate --target "$host"; }

rm -rf "$seen"
build "-Cprofile-generate=$seen"
RUST_LOG=off "$program" --runs 60 --first-seed 9950000000 | tail -n 1
"$profdata" merge -o "$seen/all.profdata" "$seen"/*.profraw
build "-Cprofile-use=$seen/all.profdata"
install -D "$program" "$to"
echo "simulate_pgo: $to"
