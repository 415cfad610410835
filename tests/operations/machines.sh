# Machines for the guides, by shell: each has a root of its own above this machine's, a network namespace, a name and an address.
# Sourced by tests/operations/run and tests/operations/kubernetes, in mount, network and process namespaces that end with them.
#
# $work is a folder on a file system of its own; $machines and $domain say which machines there are.

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

# A folder of devices that every root has: new ones, none of the machine's.
make_devices() {
  mount -t tmpfs tmpfs "$1/dev" && mknod -m 666 "$1/dev/null" c 1 3 && mknod -m 666 "$1/dev/zero" c 1 5 &&
    mknod -m 666 "$1/dev/random" c 1 8 && mknod -m 666 "$1/dev/urandom" c 1 9 && ln -s /proc/self/fd "$1/dev/fd"
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

passed=0 failed=0

# Runs a check, named by its first argument, and says how it ended. What follows a failure would only fail because of it.
check() {
  local name=$1
  shift
  if "$@" >"$work/said" 2>&1; then
    echo "test operations::$name ... ok"
    passed=$((passed + 1))
  else
    echo "test operations::$name ... FAILED"
    sed 's/^/    /' "$work/said"
    failed=$((failed + 1))
    tail -n 20 "$work"/*/root/run/holdfastd.log
    finish
  fi
}

finish() {
  local result=ok
  ((failed)) && result=FAILED
  echo "test result: $result. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
  exit $((failed > 0))
}
