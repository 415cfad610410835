#!/usr/bin/env python3
"""Prints the licences of everything that is linked into the programs of Holdfast.

Each text once, with the packages that it belongs to; of a package without a text, what its manifest says.
"""

import json
import pathlib
import subprocess
import sys

PROGRAMS = ("holdfast-server", "holdfast-cli", "holdfast-migrate")
NAMES = ("LICEN", "COPYING", "NOTICE", "UNLICENSE")


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--features", "holdfast-cli/cassandra"]
    command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def linked(found):
    """The ids of the packages that the programs are made of, without what only builds or tests them."""
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    names = {package["id"]: package["name"] for package in found["packages"]}
    left = [node for node in nodes if names[node] in PROGRAMS]
    seen = set(left)
    while left:
        for dependency in nodes[left.pop()]["deps"]:
            usual = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if usual and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                left.append(dependency["pkg"])
    return seen


def texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if path.is_file())
    licences = (path for path in files if path.name.upper().startswith(NAMES))
    return [path.read_text(errors="replace").strip() for path in licences]


def main():
    found = metadata()
    ids = linked(found)
    by_text, without = {}, []
    for package in found["packages"]:
        # Our own, whose licence lies beside this text, has no source.
        if package["id"] not in ids or package["source"] is None:
            continue
        name = f"{package['name']} {package['version']} ({package['license']})"
        own = texts(package)
        for text in own:
            by_text.setdefault(text, []).append(name)
        if not own:
            without.append(name)
    if not by_text:
        sys.exit("licences: no licence was found; are the sources of the packages there?")
    line = "-" * 79
    for text, names in sorted(by_text.items(), key=lambda pair: pair[1]):
        print(line, *sorted(names), line, text, "", sep="\n")
    if without:
        print(line, "Without a text of their own; the licence as their manifest names it:", *sorted(without), sep="\n")


if __name__ == "__main__":
    main()
