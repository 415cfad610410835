"""The queue of the thesis, section 5, listings 5 to 7 line by line, and 5.3.

Faithful where the text is loose: "only one record" does not ask whose it is, and a place in the queue is written again only once
the lock is had. Both are harmless as long as nobody stalls, or waits, for a TTL. The thesis says nothing of a write without an answer;
a cell of our own is simply written again, or removed again.
"""
import threading
import time
import uuid

from database import NO_ANSWER, now, until_answered

# Column families made through Thrift: key, column1, value.
PUT = {table: f"INSERT INTO {table} (key, column1, value) VALUES (?, ?, ?) USING TTL ?" for table in ("lock_queue", "lock_main")}
REMOVE = {table: f"DELETE FROM {table} WHERE key = ? AND column1 = ?" for table in ("lock_queue", "lock_main")}
FIRST = "SELECT column1 FROM lock_queue WHERE key = ? LIMIT 1"
MAIN = "SELECT column1 FROM lock_main WHERE key = ?"


def column_name(thread_id):
    """Listing 5."""
    current_time = str(time.time_ns() // 1000)
    return current_time.zfill(20) + thread_id


class Queue:
    def __init__(self, database, ttl_s, pause_s):
        self.database, self.ttl_s, self.pause_s = database, ttl_s, pause_s

    def get(self, lock_id, stop):
        """Listing 6; None once `stop` is set."""
        attempt = Attempt(self, lock_id)
        attempt.put("lock_queue", stop)
        while not stop.is_set():
            if attempt.is_first(stop):
                attempt.enter_main(stop)
                if attempt.is_only_record(stop):
                    return attempt.hold()
                attempt.remove("lock_main")
            # "Go to step 2": the thesis does not say how soon.
            stop.wait(self.pause_s())
        attempt.leave()
        return None

    def try_get(self, lock_id, stop):
        """Listing 7."""
        attempt = Attempt(self, lock_id)
        if attempt.records(stop):
            return None
        attempt.put("lock_queue", stop)
        while not stop.is_set() and attempt.is_first(stop):
            attempt.enter_main(stop)
            if attempt.is_only_record(stop):
                return attempt.hold()
            attempt.remove("lock_main")
        attempt.leave()
        return None


class Attempt:
    """One thread's cells."""

    def __init__(self, queue, lock_id):
        self.queue, self.database, self.lock_id = queue, queue.database, lock_id
        self.thread_id = uuid.uuid4().hex
        self.columns = {"lock_queue": column_name(self.thread_id), "lock_main": self.thread_id}
        self.sent = None
        self.over = threading.Event()
        self.renewing = None

    def put(self, table, stop):
        def act():
            sent = now()
            self.database.run(PUT[table], self.lock_id, self.columns[table], self.thread_id, self.queue.ttl_s)
            return sent

        return until_answered(act, stop)

    def enter_main(self, stop):
        """The main row's cell is the lock: the TTL runs from before it was last written."""
        self.sent = self.put("lock_main", stop) or self.sent

    def remove(self, table):
        until_answered(lambda: self.database.run(REMOVE[table], self.lock_id, self.columns[table]), threading.Event())

    def is_first(self, stop):
        looked = until_answered(lambda: self.database.run(FIRST, self.lock_id), stop)
        row = looked and looked.one()
        return bool(row) and row.column1 == self.columns["lock_queue"]

    def records(self, stop):
        looked = until_answered(lambda: self.database.run(MAIN, self.lock_id), stop)
        return list(looked) if looked else []

    def is_only_record(self, stop):
        return len(self.records(stop)) == 1

    def hold(self):
        """5.3: a thread that writes both cells again every N/2 seconds."""
        self.renewing = threading.Thread(target=self._renew, daemon=True)
        self.renewing.start()
        return self

    def _renew(self):
        while not self.over.wait(self.queue.ttl_s / 2):
            self.put("lock_queue", self.over)
            self.enter_main(self.over)

    def believes(self):
        return not self.over.is_set() and now() < self.sent + self.queue.ttl_s

    def leave(self):
        self.remove("lock_main")
        self.remove("lock_queue")

    def release(self):
        self.over.set()
        self.renewing.join()
        self.leave()
