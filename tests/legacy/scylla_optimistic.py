"""The locks of the article on ScyllaDB in their first version: "a very optimistic lock", without lightweight transactions.

The article has neither a lease nor a heartbeat for this table: what a killed one leaves stands for ever, and a holder believes in it for
ever. The text lets no two in. It says nothing of a write without an answer; the row is simply deleted then, as after any attempt that failed.
"""
import threading
import uuid

from database import NO_ANSWER, until_answered

WRITE = 'INSERT INTO optimistic_tokens ("token", service_session_id) VALUES (?, ?)'
READ = 'SELECT service_session_id FROM optimistic_tokens WHERE "token" = ?'
DELETE = 'DELETE FROM optimistic_tokens WHERE "token" = ? AND service_session_id = ?'


class Optimistic:
    """`ttl_s` is for the other recipes: this one has no lease."""

    def __init__(self, database, ttl_s, pause_s):
        self.database, self.pause_s = database, pause_s

    def get(self, token, stop):
        """"while True", with "random sleep between lock retries"; None once `stop` is set."""
        while not stop.is_set():
            held = self.try_get(token, stop)
            if held:
                return held
            stop.wait(self.pause_s())
        return None

    def try_get(self, token, stop):
        worker = Worker(self.database, token)
        if worker.is_alone():
            return worker
        worker.release()
        return None


class Worker:
    """One turn of the loop."""

    def __init__(self, database, token):
        self.database, self.token, self.session = database, token, uuid.uuid4().hex
        self.over = False

    def is_alone(self):
        try:
            self.database.run(WRITE, self.token, self.session)
            entries = list(self.database.run(READ, self.token))
        except NO_ANSWER:
            return False
        return len(entries) == 1 and entries[0].service_session_id == self.session

    def believes(self):
        return not self.over

    def release(self):
        self.over = True
        until_answered(lambda: self.database.run(DELETE, self.token, self.session), threading.Event())
