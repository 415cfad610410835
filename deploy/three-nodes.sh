#!/usr/bin/env bash
# Starts three nodes on this machine from deploy/config/cluster-{1,2,3}.toml and stops them on Ctrl-C.
#
#   deploy/three-nodes.sh            in a new temporary folder, removed at the end
#   deploy/three-nodes.sh FOLDER     in this folder, kept; starting again goes on with its data
#   deploy/three-nodes.sh --tls ...  with TLS on every port, by certificates that are made in FOLDER/certs if there are none,
#                                    and with the owner of one of them, cn:ops, as administrator (holdfast auth)
#
# holdfastd is taken from HOLDFAST_BIN_DIR, target/release, target/dist, target/debug or PATH, in this order.

set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)

die() {
  echo "three-nodes: $1" >&2
  exit 1
}

find_holdfastd() {
  local folder
  for folder in ${HOLDFAST_BIN_DIR:+"$HOLDFAST_BIN_DIR"} "$here/../target/"{release,dist,debug}; do
    [[ -x $folder/holdfastd ]] && echo "$folder/holdfastd" && return
  done
  command -v holdfastd
}

tls=""
[[ ${1-} == --tls ]] && tls=yes && shift
case ${1-} in
  -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;;
  -*) die "unknown argument '$1'; see deploy/three-nodes.sh --help" ;;
esac
holdfastd=$(find_holdfastd) || die "there is no holdfastd; build it with: cargo build --release --bins"

folder=${1-} temporary=""
[[ -n $folder ]] || { folder=$(mktemp -d) && temporary=yes; }
mkdir -p "$folder" || die "cannot use the folder $folder"

holdfast="$(dirname "$holdfastd")/holdfast" with=()
# Makes FOLDER/certs/$1.pem by the further arguments, unless it is there.
make_certificate() {
  local name=$1
  shift
  [[ -e $certs/$name.pem ]] || "$holdfast" cert "$@" --dir "$certs" >/dev/null
}
make_certificates() {
  make_certificate ca ca || return
  for id in 1 2 3; do make_certificate "node-$id" node --id "$id" --address 127.0.0.1,localhost || return; done
  make_certificate ops client ops
}
if [[ -n $tls ]]; then
  certs="$folder/certs"
  make_certificates || die "there are not all certificates in $certs; see above"
  with=(--ca "$certs/ca.pem" --cert "$certs/ops.pem" --key "$certs/ops.key")
fi

declare -A node_of=()

stop_all() {
  trap '' INT TERM
  ((${#node_of[@]})) && kill -TERM "${!node_of[@]}" 2>/dev/null
  wait
  [[ -n $temporary ]] && rm -rf "$folder"
  echo "three-nodes: stopped"
  exit "${1:-0}"
}
trap 'echo; stop_all' INT TERM

start_node() {
  local id=$1 log="$folder/node-$1.log" secured=()
  [[ -n $tls ]] && secured=(--tls-cert "$certs/node-$id.pem" --tls-key "$certs/node-$id.key" --tls-ca "$certs/ca.pem" --admins cn:ops)
  # In a process group of its own: Ctrl-C reaches this script, which then stops the nodes in an orderly way.
  setsid "$holdfastd" --config "$here/config/cluster-$id.toml" --data-dir "$folder/node-$id" "${secured[@]}" \
    </dev/null >>"$log" 2>&1 &
  node_of[$!]=$id
}

for id in 1 2 3; do start_node "$id"; done

for pid in "${!node_of[@]}"; do
  echo "node ${node_of[$pid]}: pid $pid, log $folder/node-${node_of[$pid]}.log"
done | sort
echo
endpoints=127.0.0.1:7420,127.0.0.1:7430,127.0.0.1:7440
client="$holdfast${with[*]:+ ${with[*]}} --endpoints $endpoints"
echo "endpoints: $endpoints"
echo "try:       $client lock nightly -- sleep 5"
[[ -n $tls ]] && echo "rules:     $client auth status   (see docs/security.md)"
echo "Ctrl-C stops all three. Kill one (kill -9 PID) to see the others go on."

while ((${#node_of[@]})); do
  wait -n -p ended "${!node_of[@]}" 2>/dev/null
  status=$?
  [[ -n ${ended-} ]] || continue
  id=${node_of[$ended]}
  unset "node_of[$ended]"
  echo "node $id (pid $ended) ended with status $status; the end of its log:" >&2
  tail -n 3 "$folder/node-$id.log" | sed 's/^/  /' >&2
done
echo "three-nodes: no node is left" >&2
stop_all 1
