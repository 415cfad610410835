#!/usr/bin/env bash
# Makes an image of static programs and nothing else, as an OCI archive: `podman load -i FILE`, `docker load -i FILE`,
# `skopeo copy oci-archive:FILE docker://REGISTRY/NAME`. Pulls nothing. The same programs make the same file.
#
#   deploy/image/build.sh PROGRAMS LICENCES VERSION FILE
#
# PROGRAMS is the folder with holdfastd and holdfast, LICENCES the text for /usr/share/doc/holdfast. `just package` calls it.

set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

[[ $# -eq 4 ]] || {
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
  exit 64
}
programs=$1 licences=$2 version=$3 file=$4
epoch=${SOURCE_DATE_EPOCH:-0}
# The user of the programs: no user of the machine has this number by itself.
user=65532

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root layout=$work/layout
mkdir -p "$root"/{usr/bin,etc,usr/share/doc/holdfast,etc/holdfast/certs,var/lib/holdfast,tmp} "$layout/blobs/sha256"
cp "$programs/holdfastd" "$programs/holdfast" "$root/usr/bin/"
cp "$licences" "$root/usr/share/doc/holdfast/LICENCES"
cp "$here/../../LICENSE" "$root/usr/share/doc/holdfast/LICENSE"
printf 'root:x:0:0:root:/:/sbin/nologin\nholdfast:x:%s:%s:Holdfast:/var/lib/holdfast:/sbin/nologin\n' $user $user >"$root/etc/passwd"
printf 'root:x:0:\nholdfast:x:%s:\n' $user >"$root/etc/group"
# Names are looked up in the file first, and then by DNS.
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
chmod -R u=rwX,go=rX "$root"
chmod 1777 "$root/tmp"
# The user's, also in a volume that is put there: it takes over the owner of the folder.
own=(./var/lib/holdfast ./etc/holdfast/certs)
(cd "$root" && chmod 700 "${own[@]}")

pack() {
  tar -C "$root" --sort=name --mtime="@$epoch" --numeric-owner "$@"
}
layer=$work/layer.tar
pack --owner=0 --group=0 "${own[@]/#/--exclude=}" -cf "$layer" .
pack --owner=$user --group=$user -rf "$layer" "${own[@]}"

sum() {
  sha256sum "$1" | cut -d' ' -f1
}
# Puts a file among the blobs; prints its descriptor of the media type $2.
blob() {
  local digest size
  digest=$(sum "$1") size=$(stat -c %s "$1")
  cp "$1" "$layout/blobs/sha256/$digest"
  printf '{"mediaType":"%s","digest":"sha256:%s","size":%s}' "$2" "$digest" "$size"
}

diff_id=$(sum "$layer")
gzip -9n "$layer"
of_layer=$(blob "$layer.gz" application/vnd.oci.image.layer.v1.tar+gzip)
created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
cat >"$work/config" <<JSON
{"created":"$created","architecture":"amd64","os":"linux",
"config":{"User":"$user:$user","Entrypoint":["/usr/bin/holdfastd"],"WorkingDir":"/var/lib/holdfast","StopSignal":"SIGTERM",
"Env":["PATH=/usr/bin","HOLDFAST_DATA_DIR=/var/lib/holdfast"],
"ExposedPorts":{"7420/tcp":{},"7421/tcp":{},"7422/tcp":{}},"Volumes":{"/var/lib/holdfast":{}},
"Labels":{"org.opencontainers.image.title":"holdfast","org.opencontainers.image.version":"$version",
"org.opencontainers.image.revision":"${HOLDFAST_COMMIT-unknown}","org.opencontainers.image.licenses":"Apache-2.0"}},
"rootfs":{"type":"layers","diff_ids":["sha256:$diff_id"]},
"history":[{"created":"$created","created_by":"deploy/image/build.sh"}]}
JSON
of_config=$(blob "$work/config" application/vnd.oci.image.config.v1+json)
cat >"$work/manifest" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":$of_config,"layers":[$of_layer]}
JSON
of_manifest=$(blob "$work/manifest" application/vnd.oci.image.manifest.v1+json)
named=${of_manifest%\}}',"annotations":{"org.opencontainers.image.ref.name":"holdfast:'$version'","io.containerd.image.name":"docker.io/library/holdfast:'$version'"}}'
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' "$named" >"$layout/index.json"
echo '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
tar -C "$layout" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -cf "$file" .
