#!/usr/bin/env bash
# Builds what people install, into target/install:
#
#   holdfast-VERSION-x86_64-linux.tar.gz   static programs, manual pages, completions; in *-symbols.tar.gz the names of
#                                          their functions, for debuggers
#   holdfast-server_VERSION_amd64.deb      the server, its unit, user and folders
#   holdfast_VERSION_amd64.deb             the command line and holdfast-migrate
#   holdfast-VERSION-oci.tar               an image with the static programs and nothing else
#   *.cdx.json, SHA256SUMS                 what is in them, and their sums
#
#   deploy/package/build.sh                  all of it
#   deploy/package/build.sh archive deb      some of it; also: image, sbom
#   deploy/package/build.sh --debug deb      packages of the programs in target/debug, as they are there: for tests
#
# Needs cargo, binutils, python3, gzip, tar; for deb cargo-deb, for sbom cargo-cyclonedx. Nothing is pulled from anywhere but cargo's
# registry.

set -euo pipefail
cd "$(dirname "$0")/../.."

die() {
  echo "package: $1" >&2
  exit 1
}

profile=dist debug="" pieces=()
while (($#)); do
  case $1 in
    -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    --debug) debug=yes profile=dev ;;
    archive | deb | image | sbom) pieces+=("$1") ;;
    *) die "unknown argument '$1'; see deploy/package/build.sh --help" ;;
  esac
  shift
done
((${#pieces[@]})) || pieces=(archive deb image sbom)

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
target=${CARGO_TARGET_DIR:-target}
out=target/install files=target/install/files
folder_of_profile=$profile
if [[ -n $debug ]]; then
  folder_of_profile=debug
  [[ "${pieces[*]}" == deb ]] || die "--debug makes packages for Debian only: deploy/package/build.sh --debug deb"
fi
commit=$(git rev-parse --short=12 HEAD 2>/dev/null) || commit=unknown
git diff --quiet HEAD 2>/dev/null || commit+=-changed
export HOLDFAST_COMMIT=$commit
# The time of the commit, so that the same commit makes the same archives.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH

packages=(-p holdfast-server -p holdfast-cli -p holdfast-migrate --features holdfast-cli/cassandra,holdfast-migrate/cassandra)
triple=x86_64-unknown-linux-gnu
programs=(holdfastd holdfast holdfast-migrate)

# Linked with the system's libraries.
build_programs() {
  [[ -z ${built-} ]] || return 0
  [[ -n $debug ]] || cargo build --profile "$profile" --locked --bins "${packages[@]}"
  built=$target/$folder_of_profile
}

# Linked with nothing: for any Linux, and for an image without one.
build_static() {
  [[ -z ${static-} ]] || return 0
  # Random bytes come from the system call, also where there is no /dev. The addresses that a program which may lie
  # anywhere corrects at its start are stored as a bitmap: 0.4 MB less. Functions are inlined less readily than by default
  # (225): 1.4 MB less at 75 than at 175. Six runs in turns with `holdfast bench --members 3` (medians of the servers' CPU for 1,000 locks): W1
  # 0.84 s at 175 and 0.83 at 75, W3 with 100 clients 0.50 and 0.50.
  RUSTFLAGS="${RUSTFLAGS-} -C target-feature=+crt-static --cfg getrandom_backend=\"linux_getrandom\" \
-C link-arg=-Wl,-z,pack-relative-relocs -C llvm-args=-inline-threshold=75" \
    cargo build --profile "$profile" --locked --bins "${packages[@]}" --target "$triple"
  static=$target/$triple/$folder_of_profile
  local program
  for program in "${programs[@]}"; do
    [[ -x $static/$program ]] || die "the build made no $program"
    if readelf -d "$static/$program" | grep -q NEEDED; then die "$program is not static"; fi
  done
  static=$(stripped "$static" static)
}

# A copy of the programs in $1 without the names of their functions, which go into an archive of symbols: a debugger
# finds them by the build id. Prints the folder of the copy.
stripped() {
  local folder=$out/programs-$2 program
  rm -rf "$folder" && mkdir -p "$folder/symbols"
  for program in "${programs[@]}"; do
    objcopy --only-keep-debug "$1/$program" "$folder/symbols/$program.debug"
    objcopy --strip-all "$1/$program" "$folder/$program"
  done
  packed "$folder" symbols "$out/holdfast-$version-x86_64-linux-$2-symbols.tar.gz"
  rm -rf "$folder/symbols"
  echo "$folder"
}

# The folder $2 in $1 as an archive: the same content makes the same file.
packed() {
  tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$2" | gzip -9n >"$3"
}

# Manual pages, completions, licences, unit: what the programs say of themselves, so $1 has them.
make_files() {
  rm -rf "$files" && mkdir -p "$files/man" "$files/completions"
  "$1/holdfast" man "$files/man"
  "$1/holdfastd" man "$files/man"
  gzip -9n "$files"/man/*
  local shell
  for shell in bash zsh fish; do "$1/holdfast" completions "$shell" >"$files/completions/holdfast.$shell"; done
  python3 deploy/package/licences.py >"$files/LICENCES"
  sed -e '/^#   /d' -e 's|/usr/local/bin/|/usr/bin/|' deploy/systemd/holdfastd.service >"$files/holdfastd.service"
  cp deploy/systemd/holdfast.conf "$files/holdfast.conf"
}

make_archive() {
  build_static
  make_files "$static"
  local name=holdfast-$version-x86_64-linux
  local folder=$out/$name program
  rm -rf "$folder" && mkdir -p "$folder/bin"
  for program in "${programs[@]}"; do cp "$static/$program" "$folder/bin/"; done
  cp -r "$files/man" "$files/completions" "$files/LICENCES" "$folder/"
  cp LICENSE CHANGELOG.md deploy/config/node.toml "$folder/"
  cp -r deploy/systemd "$folder/"
  packed "$out" "$name" "$out/$name.tar.gz"
  rm -rf "$folder"
  say "$out/$name.tar.gz"
}

make_debs() {
  command -v cargo-deb >/dev/null || die "cargo-deb is missing: cargo install --locked cargo-deb"
  build_programs
  make_files "$built"
  local package
  for package in holdfast-server holdfast-cli; do
    say "$(cargo deb --quiet --locked --no-build --strip ${debug:+--fast} --profile "$profile" -p "$package" --output "$out/")"
  done
}

make_image() {
  build_static
  make_files "$static"
  deploy/image/build.sh "$static" "$files/LICENCES" "$version" "$out/holdfast-$version-oci.tar"
  say "$out/holdfast-$version-oci.tar"
}

make_sboms() {
  command -v cargo-cyclonedx >/dev/null || die "cargo-cyclonedx is missing: cargo install --locked cargo-cyclonedx"
  sbom_of server holdfast-server
  sbom_of client/cli holdfast -F cassandra
  sbom_of migrate holdfast-migrate -F cassandra
}

# Of the package in the folder $1, under the name $2.
sbom_of() {
  local folder=$1 name=$2-$version.cdx
  shift 2
  cargo cyclonedx --quiet --manifest-path "$folder/Cargo.toml" --format json --spec-version 1.5 --no-build-deps \
    --target "$triple" --override-filename "$name" "$@"
  mv "$folder/$name.json" "$out/"
  # It leaves one in the folder of each package of ours.
  find . -path ./target -prune -o -name "$name.json" -exec rm {} +
  say "$out/$name.json"
}

say() {
  echo "package: $1"
}

mkdir -p "$out"
for piece in "${pieces[@]}"; do
  case $piece in
    archive) make_archive ;;
    deb) make_debs ;;
    image) make_image ;;
    sbom) make_sboms ;;
  esac
done
(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f\n' | sort | xargs sha256sum >SHA256SUMS)
say "$out/SHA256SUMS"
