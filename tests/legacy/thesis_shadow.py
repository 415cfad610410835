"""The older recipe of the thesis, section 4, listings 3 and 4 line by line.

Section 4 knows no lease, so this has none: what a killed one leaves stands for ever, and a holder believes in it for ever. Two holders are possible by
the text in two ways, and this client takes neither: step 10 takes the cells of the main row once more (the listing does not say so, and to
the letter it goes by those of step 1), and a thread's id is one of its own for each call, so that none of its cells is hidden under a
delete of an earlier one; the driver gives the statements of a process timestamps that rise. Without a TTL no cell ends under a thread that stalls.
The thesis says nothing of a write without an answer; a cell of our own is simply written again, or removed again.
"""
import random
import threading
import uuid

from database import until_answered

SUCCESS, ANOTHER_THREAD_IS_OWNER, CONCURRENT_ATTEMPT = "success", "another thread is owner", "concurrent attempt"

# Column families made through Thrift: key, column1, value.
TABLES = ("lock_main", "lock_shadow")
TAKE = {table: f"SELECT column1 FROM {table} WHERE key = ?" for table in TABLES}
ADD = {table: f"INSERT INTO {table} (key, column1, value) VALUES (?, ?, ?)" for table in TABLES}
REMOVE = {table: f"DELETE FROM {table} WHERE key = ? AND column1 = ?" for table in TABLES}


class Shadow:
    """`ttl_s` and `pause_s` are for the other recipes: this one has no lease, and pauses of its own."""

    def __init__(self, database, ttl_s, pause_s):
        self.database = database

    def get(self, lock_id, stop):
        """Listing 4; None once `stop` is set."""
        thread = Thread(self.database, lock_id)
        attempt = 1
        while not stop.is_set():
            result = thread.try_lock(stop)
            if result == SUCCESS:
                return thread
            if result == ANOTHER_THREAD_IS_OWNER:
                stop.wait(random.uniform(0, 1.0))
            if result == CONCURRENT_ATTEMPT:
                stop.wait(random.uniform(0, 0.05 * attempt))
                attempt = attempt + 1
        return None

    def try_get(self, lock_id, stop):
        """One call of listing 3."""
        thread = Thread(self.database, lock_id)
        return thread if thread.try_lock(stop) == SUCCESS else None


class Thread:
    def __init__(self, database, lock_id):
        self.database, self.lock_id, self.thread_id = database, lock_id, uuid.uuid4().hex
        self.over = False

    def try_lock(self, stop):
        """Listing 3; None once `stop` is set, with nothing left behind."""
        main = self._take("lock_main", stop)
        if main is None:
            return None
        if len(main) == 1:
            return SUCCESS if main[0] == self.thread_id else ANOTHER_THREAD_IS_OWNER
        self._add("lock_shadow")
        shadow = self._take("lock_shadow")
        if len(shadow) == 1:
            if len(self._take("lock_main")) == 0:
                self._add("lock_main")
                self._remove("lock_shadow")
                return SUCCESS
        self._remove("lock_shadow")
        return CONCURRENT_ATTEMPT

    def _take(self, table, stop=threading.Event()):
        taken = until_answered(lambda: self.database.run(TAKE[table], self.lock_id), stop)
        return None if taken is None else [row.column1 for row in taken]

    def _add(self, table):
        until_answered(lambda: self.database.run(ADD[table], self.lock_id, self.thread_id, self.thread_id), threading.Event())

    def _remove(self, table):
        until_answered(lambda: self.database.run(REMOVE[table], self.lock_id, self.thread_id), threading.Event())

    def believes(self):
        return not self.over

    def release(self):
        """`Dispose`."""
        self.over = True
        self._remove("lock_main")
