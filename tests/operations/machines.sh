# Machines for the guides, by shell: each has a root of its own above this machine's, a network namespace, a name and an address.
# Sourced by tests/operations/run and tests/operations/kubernetes, in mount, network and process namespaces that end with them.
#
# $work is a folder on a file system of its own; $machines and $domain say which machines there are.

suite=operations
# shellcheck source=tests/checks.sh
. tests/checks.sh

# One network for all, which the first machine's namespace is the middle of.
make_network() {
  ip link set lo up && ip link add between type bridge && ip link set between up && ip address add 10.77.0.1/24 dev between
}

# Makes the machine at this place of $machines.
make_machine() {
  local at=$1 name=${machines[$1]} root
  root=$work/$name/root
  mkdir -p "$work/$name"/{root,upper,change}
  mount -t overlay overlay -o "lowerdir=/,upperdir=$work/$name/upper,workdir=$work/$name/change" "$root" &&
    mount -t proc proc "$root/proc" && mount -t tmpfs tmpfs "$root/run" && mount -t tmpfs tmpfs "$root/tmp" &&
    chmod 1777 "$root/tmp" && mount -t tmpfs tmpfs "$root/root" && make_devices "$root" && name_machines >"$root/etc/hosts" || return
  if ((at == 0)); then
    keep_namespaces "$name" --uts
  else
    keep_namespaces "$name" --uts --net && wire "$name" $((at + 1))
  fi && on "$name" hostname "$name.$domain"
}

name_machines() {
  local at
  echo "127.0.0.1 localhost"
  for at in "${!machines[@]}"; do echo "10.77.0.$((at + 1)) ${machines[at]}.$domain ${machines[at]}"; done
}

# A process keeps a machine's namespaces.
keep_namespaces() {
  unshare "${@:2}" sleep infinity &
  echo $! >"$work/$1/keeper"
  # It is in them when it is sleep.
  until [[ $(<"/proc/$!/comm") == sleep ]]; do sleep 0.01; done
}

wire() {
  local name=$1
  ip link add "$name" type veth peer name eth0 netns "$(<"$work/$name/keeper")" && ip link set "$name" master between up &&
    on "$name" ip link set lo up && on "$name" ip address add "10.77.0.$2/24" dev eth0 && on "$name" ip link set eth0 up
}

# Runs a command on a machine, as root, with no variables but these.
on() {
  local name=$1
  shift
  nsenter --target "$(<"$work/$name/keeper")" --uts --net chroot "$work/$name/root" \
    env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
}

# The blocks of shell commands of a guide, each up to its end, with a NUL after it.
blocks() { awk '/^```sh$/ { inside = 1; next } /^```$/ && inside { inside = 0; printf "%c", 0; next } inside' "$1"; }
# What the first line of a block says.
heading() {
  local first=${1%%$'\n'*}
  echo "${first#\# }"
}

# What follows a failure would only fail because of it.
check_or_end() {
  check "$@" && return
  tail -n 20 "$work"/*/root/run/holdfastd.log
  result
  exit 1
}
