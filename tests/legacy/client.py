#!/usr/bin/env python3
"""A process of somebody who runs one of the recipes today, made from the article's text and nothing of ours.

    client.py RECIPE CONTACT_POINTS KEYSPACE TTL_S HISTORY FIRST_CLIENT work WORKERS HOLD_MS PAUSE_MS NAME...
    client.py RECIPE CONTACT_POINTS KEYSPACE TTL_S HISTORY FIRST_CLIENT hold NAME
    client.py tokens-lwt CONTACT_POINTS KEYSPACE GRACE_S HISTORY FIRST_CLIENT house

RECIPE is lease, queue, shadow, tokens-lwt, tokens-optimistic, bakery (as the wiki has it) or bakery-php. `work`: so many threads acquire, hold and give back until SIGTERM, which ends them gracefully. `hold`: holds until it is killed.
What its threads ask, are told and believe stands in HISTORY, a record a line, as tests/src/history/mod.rs reads it. Prints `ready`, or `held`.
"""
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time

from bakery_php import BakeryPhp
from bakery_wiki import BakeryWiki
from database import Database
from lease_lwt import Lease
from scylla_optimistic import Optimistic
from scylla_tokens import Tokens, keep_house
from thesis_queue import Queue
from thesis_shadow import Shadow

RECIPES = {
    "lease": Lease,
    "queue": Queue,
    "shadow": Shadow,
    "tokens-lwt": Tokens,
    "tokens-optimistic": Optimistic,
    "bakery": BakeryWiki,
    "bakery-php": BakeryPhp,
}
LOOK_EVERY_S = 0.01


class History:
    """What a client does is written before, what it is told after: its beliefs are drawn too short, never too long."""

    def __init__(self, path):
        self.file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def write(self, client, what, at_ns=None, **fields):
        record = {"at_ns": at_ns or boot_ns(), "client": client, "what": what, **fields}
        os.write(self.file, (json.dumps(record) + "\n").encode())


def boot_ns():
    """The clock of all histories."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Client:
    """One thread with a name of its own in the history."""

    def __init__(self, locker, history, client):
        self.locker, self.history, self.client, self.requests = locker, history, client, 0

    def acquire(self, name, wait, stop):
        """What is held, and its number in the history; or None."""
        self.requests += 1
        items = [{"name": name, "shared": False}]
        self.history.write(self.client, "acquire", request=self.requests, items=items, any=None, wait=wait, within_ms=None)
        held = (self.locker.get if wait else self.locker.try_get)(name, stop)
        if held is None:
            self.history.write(self.client, "denied", request=self.requests)
            return None, None
        token = boot_ns()
        self.history.write(self.client, "granted", at_ns=token, request=self.requests, token=token, names=[name], values=[])
        return held, token

    def look(self, name, held, token):
        """Whether it believes that it holds."""
        at_ns = boot_ns()
        safe = held.believes()
        self.history.write(self.client, "is_safe", at_ns=at_ns, token=token, safe=safe, names=[name])
        return safe

    def work(self, names, hold_s, pause_s, stop):
        turn = self.client
        while not stop.is_set():
            turn += 1
            name = names[turn % len(names)]
            # Every third time it would not wait.
            held, token = self.acquire(name, turn % 3 != 0, stop)
            if held:
                until = boot_ns() + hold_s * 1e9
                while self.look(name, held, token) and boot_ns() < until:
                    time.sleep(min(hold_s, LOOK_EVERY_S))
                self.history.write(self.client, "release", token=token, names=[])
                held.release()
                self.history.write(self.client, "released", token=token, names=[])
            stop.wait(pause_s * random.random())


def serve_until_told(target, stop):
    """Runs `target` on a thread of its own until SIGTERM, and its end."""
    thread = threading.Thread(target=target)
    thread.start()
    print("ready", flush=True)
    signal.sigwait({signal.SIGTERM})
    stop.set()
    thread.join()


def work(clients, names, hold_s, pause_s, stop):
    threads = [threading.Thread(target=client.work, args=(names, hold_s, pause_s, stop)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hold(client, name, stop):
    held, token = client.acquire(name, True, stop)
    # A reader of "held" may kill this process at once: what it believes is written down by then.
    safe = client.look(name, held, token)
    print("held", flush=True)
    while safe:
        time.sleep(LOOK_EVERY_S)
        safe = client.look(name, held, token)
    print("lost", flush=True)


def main():
    # SIGABRT prints where each thread is: a test sends it to a process that does not end.
    faulthandler.enable()
    # A handler in Python runs on the main thread only, and not while that waits for another thread if the kernel gave the signal to a
    # third one. So no thread takes SIGTERM, the driver's included, and the main thread waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    recipe, points, keyspace, ttl_s, path, first, command, *rest = sys.argv[1:]
    stop = threading.Event()
    database, history = Database(points, keyspace), History(path)
    # "Sleep 1", says one seed; "random limited sleep periods", the same; the others leave it open.
    locker = RECIPES[recipe](database, int(ttl_s), lambda: random.uniform(0.02, 0.3))
    if command == "hold":
        hold(Client(locker, history, int(first)), rest[0], stop)
    elif command == "house":
        serve_until_told(lambda: keep_house(database, int(ttl_s), stop), stop)
    else:
        workers, hold_ms, pause_ms, *names = rest
        clients = [Client(locker, history, int(first) + number) for number in range(int(workers))]
        serve_until_told(lambda: work(clients, names, int(hold_ms) / 1000, int(pause_ms) / 1000, stop), stop)


main()
# All is written down. What the driver does at an exit may wait for nodes that do not answer.
os._exit(0)
