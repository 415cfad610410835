"""The locks of the article on ScyllaDB, in the version with lightweight transactions: tokens, heartbeats, a housekeeper.

In two places the article's text would not exclude, and this client says more than it does:
- its release is a plain DELETE. Beside lightweight transactions that is ordered by clocks and not by Paxos: one that reaches a replica late
  erases the row of the next holder, who has read it already. Here the DELETE has a condition as well.
- it does not say what a housekeeper does about a token that has no heartbeat yet. Here the token's own timestamp counts as the first.
"""
import threading
import time
import uuid

from database import NO_ANSWER, now, until_answered

LOCK = 'INSERT INTO tokens ("token", service_session_id, timestamp) VALUES (?, ?, ?) IF NOT EXISTS'
READ = 'SELECT service_session_id FROM tokens WHERE "token" = ?'
RELEASE = 'DELETE FROM tokens WHERE "token" = ? IF service_session_id = ?'
BEAT = "INSERT INTO token_times (service_session_id, tokens, timestamp) VALUES (?, ?, ?)"
END_BEAT = "DELETE FROM token_times WHERE service_session_id = ?"
ALL_TOKENS = 'SELECT "token", service_session_id, timestamp FROM tokens'
ONE_TIME = "SELECT timestamp FROM token_times WHERE service_session_id = ?"


def stamp_ms():
    return time.time_ns() // 1_000_000


class Tokens:
    """`grace_s` is how long a session may be silent before a housekeeper takes its tokens."""

    def __init__(self, database, grace_s, pause_s):
        self.database, self.grace_s, self.pause_s = database, grace_s, pause_s

    def get(self, name, stop):
        """"while True", with the random limited sleep of the requirements; None once `stop` is set."""
        while not stop.is_set():
            held = self.try_get(name, stop)
            if held:
                return held
            stop.wait(self.pause_s())
        return None

    def try_get(self, name, stop):
        batch = self.lock_free([name], stop)
        return batch.held(name) if batch else None

    def lock_free(self, names, stop):
        """Locks whichever of the batch are free, without waiting; None if that was none of them."""
        session = uuid.uuid4().hex
        had = [name for name in names if self._lock(name, session, stop)]
        return Batch(self, session, had) if had else None

    def _lock(self, name, session, stop):
        try:
            self.database.run(LOCK, name, session, stamp_ms())
        except NO_ANSWER:
            # Whatever came of it: the next line reads it.
            pass
        read = until_answered(lambda: self.database.run(READ, name), stop)
        row = read and read.one()
        if row and row.service_session_id == session:
            return True
        # It may be applied yet; nobody beats for it, so a housekeeper would find it in the end. This is sooner.
        until_answered(lambda: self.database.run(RELEASE, name, session), stop)
        return False


class Batch:
    """The tokens of one session, and the thread that beats for them."""

    def __init__(self, tokens, session, names):
        self.tokens, self.session, self.names = tokens, session, list(names)
        self.beaten = now()
        self.over = threading.Event()
        self.beating = threading.Thread(target=self._beat, daemon=True)
        self.beating.start()

    def held(self, name):
        return Held(self, name)

    def _beat(self):
        while True:
            sent = now()
            try:
                self.tokens.database.run(BEAT, self.session, list(self.names), stamp_ms())
                self.beaten = sent
            except NO_ANSWER:
                pass
            if self.over.wait(self.tokens.grace_s / 4):
                return

    def believes(self):
        return not self.over.is_set() and now() < self.beaten + self.tokens.grace_s

    def release(self, name):
        self.names.remove(name)
        if not self.names:
            self.over.set()
            self.beating.join()
        until_answered(lambda: self.tokens.database.run(RELEASE, name, self.session), threading.Event())
        if not self.names:
            until_answered(lambda: self.tokens.database.run(END_BEAT, self.session), threading.Event())


class Held:
    def __init__(self, batch, name):
        self.batch, self.name = batch, name

    def believes(self):
        return self.batch.believes()

    def release(self):
        self.batch.release(self.name)


def keep_house(database, grace_s, stop):
    """The housekeeping service: deletes tokens whose session did not beat within the grace."""
    while not stop.wait(grace_s / 4):
        for row in until_answered(lambda: list(database.run(ALL_TOKENS)), stop) or []:
            beats = until_answered(lambda: list(database.run(ONE_TIME, row.service_session_id)), stop)
            if beats is None:
                return
            last = max([row.timestamp] + [beat.timestamp for beat in beats])
            if stamp_ms() - last.timestamp() * 1000 > grace_s * 1000:
                until_answered(lambda: database.run(RELEASE, row.token, row.service_session_id), stop)
