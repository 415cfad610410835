#!/usr/bin/env python3
"""The size of the house: lines of product and of tests by package, lengths of files and functions,
bytes of Markdown. `tests/house/count.py [FOLDER]`, the root of a checkout; default: this one.

A line of product is a line of a `.rs` file below some `src` that is not part of a `#[cfg(test)]` item,
in a file that is reached without one; every other line is one of tests, and so is everything below
`tests`. Behind the features `simulation` and `model`, which no program that is released is built with,
is what simulated runs stand on: lines of tests too. Comments and blank lines count."""

import os
import re
import statistics
import sys

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../.."))
FOR_TESTS = r'(?:any\(test, )?feature = "(?:simulation|model)"\)?'
ITEM_OF_TESTS = re.compile(rf"#\[cfg\((?:test|all\(test\b[^]]*|{FOR_TESTS})\)\]")
FUNCTION = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:const\s+)?(?:async\s+)?(?:unsafe\s+)?fn\s+\w+", re.M)


def blanked(text):
    """The text with strings, characters and comments blanked, line breaks kept."""
    out, at, end = [], 0, len(text)
    token = re.compile(r'//[^\n]*|/\*|b?r(#*)"|b?"|b?\'(?:\\.[^\']*|[^\\\'])\'', re.S)
    while at < end:
        found = token.search(text, at)
        if not found:
            out.append(text[at:])
            break
        out.append(text[at:found.start()])
        start, opened = found.start(), found.group()
        if opened == "/*":
            depth, stop = 1, found.end()
            while depth and stop < end:
                step = re.compile(r"/\*|\*/").search(text, stop)
                if not step:
                    stop = end
                    break
                depth += 1 if step.group() == "/*" else -1
                stop = step.end()
        elif found.group(1) is not None:
            closing = '"' + found.group(1)
            stop = text.find(closing, found.end())
            stop = end if stop < 0 else stop + len(closing)
        elif opened.endswith('"'):
            stop = found.end()
            while stop < end and text[stop] != '"':
                stop += 2 if text[stop] == "\\" else 1
            stop += 1
        else:
            stop = found.end()
        out.append("".join(c if c == "\n" else " " for c in text[start:stop]))
        at = stop
    return "".join(out)


def closing(code, opening):
    """Where the brace at `opening` is closed."""
    depth = 0
    for at in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        if depth == 0:
            return at
    return len(code) - 1


def item_end(code, start):
    """The end of the item that begins at `start`: its closing brace, or its semicolon."""
    for at in range(start, len(code)):
        if code[at] == ";":
            return at
        if code[at] == "{":
            return closing(code, at)
    return len(code) - 1


class File:
    def __init__(self, path):
        self.path = path
        with open(os.path.join(ROOT, path), encoding="utf-8") as opened:
            text = opened.read()
        self.lines = text.count("\n")
        self.code = blanked(text)
        self.test_lines, self.only_tests = set(), []
        for found in ITEM_OF_TESTS.finditer(text):
            if self.code[found.start()] != "#":
                continue
            end = item_end(self.code, found.end())
            first, last = self.line(found.start()), self.line(end)
            self.test_lines.update(range(first, last + 1))
            item = self.code[found.end():end]
            named = re.search(r"\bmod\s+(\w+)\s*$", item)
            if named:
                self.only_tests.append(named.group(1))

    def line(self, at):
        return self.code.count("\n", 0, at) + 1

    def modules(self):
        """The files that a `mod name;` outside of tests reaches, and those that one inside reaches."""
        folder, name = os.path.split(self.path)
        if name not in ("lib.rs", "main.rs", "mod.rs"):
            folder = os.path.join(folder, name[:-3])
        for found in re.finditer(r"(?m)\bmod\s+(\w+)\s*;", self.code):
            for path in (f"{folder}/{found.group(1)}.rs", f"{folder}/{found.group(1)}/mod.rs"):
                if os.path.exists(os.path.join(ROOT, path)):
                    yield path, self.line(found.start()) in self.test_lines

    def functions(self):
        for found in FUNCTION.finditer(self.code):
            brace, semicolon = self.code.find("{", found.end()), self.code.find(";", found.end())
            if brace < 0 or 0 <= semicolon < brace:
                continue
            first = self.line(found.start() + len(found.group()) - len(found.group().lstrip()))
            yield first, self.line(closing(self.code, brace)) - first + 1


def walk(end):
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if f != "target" and not f.startswith("."))
        for name in sorted(files):
            if name.endswith(end):
                yield os.path.relpath(os.path.join(folder, name), ROOT)


def reached_by_tests_alone(files):
    alone, product = set(), set()

    def visit(path, in_tests):
        seen = alone if in_tests else product
        if path in seen or path not in files:
            return
        seen.add(path)
        for module, test in files[path].modules():
            visit(module, in_tests or test)

    for path in files:
        if re.search(r"/src/(lib|main)\.rs$|/src/bin/|/src/[\w-]+/main\.rs$|/build\.rs$", path):
            visit(path, False)
    return alone - product


def share(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))]


def main():
    files = {path: File(path) for path in walk(".rs")}
    alone = reached_by_tests_alone(files)
    packages = sorted({os.path.dirname(path) for path in walk("Cargo.toml")} - {""}, key=len, reverse=True)
    product, tests, lengths, product_files = {}, {}, [], []
    for path, file in files.items():
        package = next((p for p in packages if path.startswith(p + "/")), "?")
        is_product = "/src/" in path and not path.startswith("tests/") and path not in alone
        own = file.lines - len(file.test_lines) if is_product else 0
        product[package] = product.get(package, 0) + own
        tests[package] = tests.get(package, 0) + file.lines - own
        if own:
            product_files.append(own)
            lengths += [length for line, length in file.functions() if line not in file.test_lines]
    print(f"{'package':22}{'product':>9}{'tests':>9}")
    for package in sorted(product):
        print(f"{package:22}{product[package]:>9}{tests[package]:>9}")
    print(f"{'all':22}{sum(product.values()):>9}{sum(tests.values()):>9}")
    print(f"product files: {len(product_files)}, median {statistics.median(product_files):.0f} lines, "
          f"p90 {share(product_files, 0.9)}, largest {max(product_files)}, "
          f"below 60 lines: {sum(lines < 60 for lines in product_files)}")
    print(f"product functions: {len(lengths)}, median {statistics.median(lengths):.0f} lines, "
          f"p90 {share(lengths, 0.9)}, p99 {share(lengths, 0.99)}, longest {max(lengths)}")
    size = sum(os.path.getsize(os.path.join(ROOT, path)) for path in walk(".md"))
    print(f"Markdown: {size / 1024:.1f} KiB")


main()
