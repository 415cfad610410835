#!/usr/bin/env python3
"""Answers DNS questions for one name, until it is ended: dns.py NAME IPV4"""

import socket
import sys


def question(packet):
    """The name that is asked for, its type, and where the question ends."""
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    return ".".join(labels), int.from_bytes(packet[at + 1 : at + 3], "big"), at + 5


def answer(packet, name, address):
    asked, kind, end = question(packet)
    known = asked.lower() == name
    # An A record. Of other types the name has none; of other names nothing is known.
    record = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04" + socket.inet_aton(address)
    records = record if known and kind == 1 else b""
    code = b"\x81\x80" if known else b"\x81\x83"
    count = b"\x00\x01" if records else b"\x00\x00"
    return packet[:2] + code + b"\x00\x01" + count + b"\x00\x00\x00\x00" + packet[12:end] + records


def main():
    name, address = sys.argv[1:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind(("127.0.0.1", 53))
        while True:
            packet, sender = port.recvfrom(512)
            port.sendto(answer(packet, name, address), sender)


if __name__ == "__main__":
    main()
