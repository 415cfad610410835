"""The lease of the article on leader election with lightweight transactions, with its four statements as they stand.

The article says nothing of an answer that does not come. A client that took that for "no" would lock everybody out, itself
among them, for a TTL: exclusion would hold, but little else would be seen. So the fourth statement is asked then.
"""
import threading
import uuid

from database import NO_ANSWER, now, until_answered

# "IF NOT EXISTS"; the TTL is the table's default_time_to_live.
ACQUIRE = "INSERT INTO leases (name, owner) VALUES (?, ?) IF NOT EXISTS"
RENEW = "UPDATE leases SET owner = ? WHERE name = ? IF owner = ?"
DROP = "DELETE FROM leases WHERE name = ? IF owner = ?"
LOOK = "SELECT writetime(owner), value, owner FROM leases WHERE name = ?"


class Lease:
    def __init__(self, database, ttl_s, pause_s):
        self.database, self.ttl_s, self.pause_s = database, ttl_s, pause_s

    def get(self, name, stop):
        """Polls until it is ours; None once `stop` is set."""
        owner = "client_" + uuid.uuid4().hex
        first_sent = None
        while not stop.is_set():
            sent = now()
            first_sent = first_sent or sent
            holder, applied = self._insert(name, owner, stop)
            if applied or holder == owner:
                # One of ours that was not answered may be what has it: then the TTL runs from there.
                return Held(self, name, owner, sent if applied else first_sent)
            stop.wait(self.pause_s())
        # An insert without an answer may be ours yet.
        until_answered(lambda: self.database.run(DROP, name, owner), threading.Event())
        return None

    def try_get(self, name, stop):
        """One attempt."""
        owner = "client_" + uuid.uuid4().hex
        sent = now()
        holder, applied = self._insert(name, owner, stop)
        if applied or holder == owner:
            return Held(self, name, owner, sent)
        until_answered(lambda: self.database.run(DROP, name, owner), stop)
        return None

    def _insert(self, name, owner, stop):
        """Who has it, and whether this insert gave it to us."""
        try:
            row = self.database.run(ACQUIRE, name, owner).one()
            return (owner, True) if row.applied else (row.owner, False)
        except NO_ANSWER:
            looked = until_answered(lambda: self.database.run_serial(LOOK, name), stop)
            row = looked and looked.one()
            return (row.owner if row else None), False


class Held:
    """"We know we have it for a max of 3 minutes": renewed in the background every third of that."""

    def __init__(self, lease, name, owner, sent):
        self.lease, self.name, self.owner, self.sent = lease, name, owner, sent
        self.over = threading.Event()
        self.renewing = threading.Thread(target=self._renew, daemon=True)
        self.renewing.start()

    def believes(self):
        return not self.over.is_set() and now() < self.sent + self.lease.ttl_s

    def _renew(self):
        while not self.over.wait(self.lease.ttl_s / 3):
            sent = now()
            try:
                if not self.lease.database.run(RENEW, self.owner, self.name, self.owner).one().applied:
                    self.over.set()
                else:
                    self.sent = sent
            except NO_ANSWER:
                pass

    def release(self):
        self.over.set()
        self.renewing.join()
        until_answered(lambda: self.lease.database.run(DROP, self.name, self.owner), threading.Event())
