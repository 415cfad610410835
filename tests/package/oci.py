#!/usr/bin/env python3
"""Checks that a folder is an OCI image layout, and prints the digests of the layers of its one image, lowest first."""

import hashlib
import json
import pathlib
import sys


def blob(layout, descriptor):
    digest = descriptor["digest"].removeprefix("sha256:")
    content = (layout / "blobs/sha256" / digest).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest or len(content) != descriptor["size"]:
        sys.exit(f"oci: {digest} is not what it is said to be")
    return content


def main():
    layout = pathlib.Path(sys.argv[1])
    if json.loads((layout / "oci-layout").read_text())["imageLayoutVersion"] != "1.0.0":
        sys.exit("oci: another version of the layout")
    (described,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(layout, described))
    config = json.loads(blob(layout, manifest["config"]))
    if config["config"]["Entrypoint"] != ["/usr/bin/holdfastd"] or config["config"]["User"] != "65532:65532":
        sys.exit(f"oci: the entry point or the user is another: {config['config']}")
    if len(config["rootfs"]["diff_ids"]) != len(manifest["layers"]):
        sys.exit("oci: not as many layers as are described")
    for layer in manifest["layers"]:
        blob(layout, layer)
        print(layer["digest"].removeprefix("sha256:"))


if __name__ == "__main__":
    main()
